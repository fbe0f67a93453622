package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// AttentionOptions are the options of [NewMultiheadAttention].
type AttentionOptions struct {
	Dropout float64 // probability that a weight of the attention becomes 0 in training, in [0, 1)
	Causal  bool    // position i sees the positions 0 to i
}

// MultiheadAttention is self-attention with several heads, as in torch.nn.MultiheadAttention with
// one input and batches first.
type MultiheadAttention struct {
	InProjWeight *cgotorch.Tensor // [3*width, width]: makes the queries, then the keys, then the values
	InProjBias   *cgotorch.Tensor // [3*width]
	OutProj      *Linear
	Heads        int
	Dropout      float64 // as in [AttentionOptions]
	Causal       bool    // as in [AttentionOptions]
	Eval         bool
	Unfused      bool // use LibTorch's operators only; see [SetFused]
}

// NewMultiheadAttention makes a layer for sequences of `width` numbers for each position, in
// float32 on x's device. `width` must be a multiple of `heads`. Weights begin as random numbers,
// biases as 0, as in torch.nn.
func NewMultiheadAttention(x *cgotorch.Exec, width, heads int, o AttentionOptions) *MultiheadAttention {
	const where = "nn.NewMultiheadAttention"
	atLeast(x, where, 1, argument{"width", width}, argument{"heads", heads})
	if width%heads != 0 || !(o.Dropout >= 0 && o.Dropout < 1) {
		refuse(x, where, "width is %d, heads is %d, want a divisor of width; Dropout is %v, want from 0 to below 1", width, heads, o.Dropout)
	}
	n := int64(width)
	m := &MultiheadAttention{Heads: heads, Dropout: o.Dropout, Causal: o.Causal}
	m.InProjWeight, m.InProjBias = x.Empty(cgotorch.Float32, 3*n, n), x.Zeros(cgotorch.Float32, 3*n)
	m.OutProj = NewLinear(x, width, width, LinearOptions{})
	complete := false
	defer func() {
		if !complete {
			Close(m.OutProj)
		}
	}()
	XavierUniform(x, m.InProjWeight)
	Constant(x, m.OutProj.Bias, 0)
	keepParameters(x, where, m.InProjWeight, m.InProjBias)
	complete = true
	return m
}

// Forward maps [N, L, width] to a tensor of the same shape. Without Causal, each of the L
// positions sees all positions. With Causal, a position sees itself and the positions before it.
// In training with Dropout, Forward draws random numbers. On CUDA, a kernel of this library
// computes the gradient of the projections' result, unless Unfused is set.
func (m *MultiheadAttention) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	width := m.InProjWeight.Shape()[1]
	if in.Dim() != 3 || in.Shape()[2] != width {
		refuse(x, "nn.MultiheadAttention", "the input is %s, want [N, L, %d]", in, width)
	}
	dependsOnMode(x, "nn.MultiheadAttention", &m.Eval)
	o := cgotorch.ScaledDotProductAttentionOptions{Causal: m.Causal}
	if !m.Eval {
		o.Dropout = m.Dropout
	}
	n, length := in.Shape()[0], in.Shape()[1]
	return x.Tidy(func() *cgotorch.Tensor {
		parts := x.Call("streamtorch::linear_heads", in, castOf(x, m.InProjWeight), castOf(x, m.InProjBias), m.Heads, isFused(x, "nn.MultiheadAttention", &m.Unfused))
		seen := x.ScaledDotProductAttention(parts[0].(*cgotorch.Tensor), parts[1].(*cgotorch.Tensor), parts[2].(*cgotorch.Tensor), o)
		return m.OutProj.Forward(x, x.Reshape(x.Transpose(seen, 1, 2), n, length, width))
	})
}
