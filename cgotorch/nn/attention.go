package nn

import (
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// AttentionOptions are the options of [NewMultiheadAttention].
type AttentionOptions struct {
	Dropout float64 // probability that a weight of the attention becomes 0 in training, in [0, 1)
	Causal  bool    // position i sees the positions 0 to i
	NoBias  bool    // without InProjBias and without a bias of OutProj
	// KeyWidth and ValueWidth are the widths of the keys and values that [MultiheadAttention.Attend]
	// gets. 0 means the width of the queries. With another width, there are three weights in place of
	// InProjWeight.
	KeyWidth, ValueWidth int
}

// MultiheadAttention is attention with several heads, as in torch.nn.MultiheadAttention with
// batches first. [MultiheadAttention.Forward] is self-attention.
type MultiheadAttention struct {
	InProjWeight *cgotorch.Tensor // [3*width, width]: makes the queries, then the keys, then the values; or nil
	QProjWeight  *cgotorch.Tensor // [width, width], or nil
	KProjWeight  *cgotorch.Tensor // [width, KeyWidth], or nil
	VProjWeight  *cgotorch.Tensor // [width, ValueWidth], or nil
	InProjBias   *cgotorch.Tensor // [3*width], or nil
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
	if width%heads != 0 {
		refuse(x, where, "width is %d, heads is %d, want a divisor of width", width, heads)
	}
	if !(o.Dropout >= 0 && o.Dropout < 1) {
		refuse(x, where, "Dropout is %v, want from 0 to below 1", o.Dropout)
	}
	n := int64(width)
	m := &MultiheadAttention{Heads: heads, Dropout: o.Dropout, Causal: o.Causal}
	atLeast(x, where, 0, argument{"KeyWidth", o.KeyWidth}, argument{"ValueWidth", o.ValueWidth})
	for _, other := range []*int{&o.KeyWidth, &o.ValueWidth} {
		if *other == 0 {
			*other = width
		}
	}
	if o.KeyWidth == width && o.ValueWidth == width {
		m.InProjWeight = x.Empty(cgotorch.Float32, 3*n, n)
	} else {
		m.QProjWeight = x.Empty(cgotorch.Float32, n, n)
		m.KProjWeight, m.VProjWeight = x.Empty(cgotorch.Float32, n, int64(o.KeyWidth)), x.Empty(cgotorch.Float32, n, int64(o.ValueWidth))
	}
	if !o.NoBias {
		m.InProjBias = x.Zeros(cgotorch.Float32, 3*n)
	}
	m.OutProj = NewLinear(x, width, width, LinearOptions{NoBias: o.NoBias})
	complete := false
	defer func() {
		if !complete {
			Close(m.OutProj)
		}
	}()
	weights := []*cgotorch.Tensor{m.InProjWeight, m.QProjWeight, m.KProjWeight, m.VProjWeight}
	for _, w := range weights {
		if w != nil {
			XavierUniform(x, w, 1)
		}
	}
	if !o.NoBias {
		Constant(x, m.OutProj.Bias, 0)
	}
	keepParameters(x, where, append(weights, m.InProjBias)...)
	complete = true
	return m
}

// Forward maps [N, L, width] to a tensor of the same shape. Without Causal, each of the L
// positions sees all positions. With Causal, a position sees itself and the positions before it.
// In training with Dropout, Forward draws random numbers. On CUDA, a kernel of this library
// computes the gradient of the projections' result, unless Unfused is set.
func (m *MultiheadAttention) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.Attend(x, in, in, in, AttentionMask{})
}

// AttentionMask says which keys the queries of [MultiheadAttention.Attend] do not see. A mask is
// Bool, true where a key is hidden. Or it has numbers that are added to the scores. nil hides none.
type AttentionMask struct {
	Hidden  *cgotorch.Tensor // [L, S], or [N*heads, L, S]: for each query and key
	Padding *cgotorch.Tensor // [N, S]: for each key
}

// Attend maps queries [N, L, width] to a tensor of the same shape. Each query sees the keys [N, S,
// width] and the values of the same shape. With Causal, query i sees the keys 0 to i. In training
// with Dropout, Attend draws random numbers. It does not wait.
func (m *MultiheadAttention) Attend(x *cgotorch.Exec, query, key, value *cgotorch.Tensor, mask AttentionMask) *cgotorch.Tensor {
	m.check(x, query, key, value)
	o := cgotorch.ScaledDotProductAttentionOptions{Causal: m.Causal}
	if !m.Eval {
		o.Dropout = m.Dropout
	}
	n, length := query.Shape()[0], query.Shape()[1]
	return x.Tidy(func() *cgotorch.Tensor {
		q, k, v := m.project(x, query, key, value)
		if mask != (AttentionMask{}) {
			o.Mask, o.Causal = m.scores(x, mask, q.DType(), n, length, key.Shape()[1]), false
		}
		seen := x.ScaledDotProductAttention(q, k, v, o)
		return m.OutProj.Forward(x, x.Reshape(x.Transpose(seen, 1, 2), n, length, m.OutProj.Weight.Shape()[1]))
	})
}

// AttendWeights is [MultiheadAttention.Attend] that also returns the weights, [N, L, S]. These are
// the means over the heads of what each query takes from each key. A query that sees no key takes
// nothing, in both functions: its weights are 0, and its result is OutProj's bias. AttendWeights
// needs more memory than Attend.
func (m *MultiheadAttention) AttendWeights(x *cgotorch.Exec, query, key, value *cgotorch.Tensor, mask AttentionMask) (out, weights *cgotorch.Tensor) {
	m.check(x, query, key, value)
	n, length := query.Shape()[0], query.Shape()[1]
	q, k, v := m.project(x, query, key, value)
	defer closeUnless(nil, q, k, v)
	each := x.Tidy(func() *cgotorch.Tensor {
		scores := x.MatMul(x.MulScalar(q, 1/math.Sqrt(float64(q.Shape()[3]))), x.Transpose(k, 2, 3))
		var blind *cgotorch.Tensor // the queries that see no key
		if added := m.scores(x, mask, scores.DType(), n, length, key.Shape()[1]); added != nil {
			blind = x.AllDim(x.EqScalar(added, math.Inf(-1)), -1, cgotorch.ReduceOptions{KeepDim: true})
			scores = x.MaskedFill(x.Add(scores, added), blind, 0) // the softmax of -Inf alone is NaN, and so is its gradient
		}
		weights := x.Softmax(scores, -1)
		if blind != nil {
			weights = x.MaskedFill(weights, blind, 0)
		}
		return x.Dropout(weights, m.Dropout, !m.Eval)
	})
	defer each.Close()
	out = x.Tidy(func() *cgotorch.Tensor {
		return m.OutProj.Forward(x, x.Reshape(x.Transpose(x.MatMul(each, v), 1, 2), n, length, m.OutProj.Weight.Shape()[1]))
	})
	return out, x.MeanDim(each, []int64{1}, cgotorch.SumOptions{})
}

// check fails for inputs that are not batches of sequences of the right widths.
func (m *MultiheadAttention) check(x *cgotorch.Exec, query, key, value *cgotorch.Tensor) {
	const where = "nn.MultiheadAttention"
	weights := [3]*cgotorch.Tensor{m.InProjWeight, m.InProjWeight, m.InProjWeight}
	if m.InProjWeight == nil {
		weights = [3]*cgotorch.Tensor{m.QProjWeight, m.KProjWeight, m.VProjWeight}
	}
	for i, in := range []*cgotorch.Tensor{query, key, value} {
		checkOpen(x, where, [...]string{"query", "key", "value"}[i], in, "weight", weights[i])
		if width := weights[i].Shape()[1]; in.Dim() != 3 || in.Shape()[2] != width {
			refuse(x, where, "the input is %s, want [N, L, %d]", in, width)
		}
	}
	if q, k, v := query.Shape(), key.Shape(), value.Shape(); k[1] != v[1] || q[0] != k[0] || k[0] != v[0] {
		refuse(x, where, "the query is %s, the key %s, the value %s: want one N, and one length of key and value", query, key, value)
	}
	dependsOnMode(x, where, &m.Eval)
}

// project returns the queries, keys and values of all heads, [N, heads, L, width/heads]. It
// projects equal inputs at once.
func (m *MultiheadAttention) project(x *cgotorch.Exec, query, key, value *cgotorch.Tensor) (q, k, v *cgotorch.Tensor) {
	weight, bias := castOf(x, m.InProjWeight), castOf(x, m.InProjBias)
	if query == key && key == value && weight != nil {
		parts := x.Call("streamtorch::linear_heads", query, weight, bias, m.Heads, isFused(x, "nn.MultiheadAttention", &m.Unfused))
		return parts[0].(*cgotorch.Tensor), parts[1].(*cgotorch.Tensor), parts[2].(*cgotorch.Tensor)
	}
	width := int(m.OutProj.Weight.Shape()[1])
	each := [3]*cgotorch.Tensor{m.QProjWeight, m.KProjWeight, m.VProjWeight}
	heads := func(in *cgotorch.Tensor, first, count int) []*cgotorch.Tensor {
		part := func(t *cgotorch.Tensor) *cgotorch.Tensor {
			if t == nil {
				return nil
			}
			return x.Narrow(t, 0, first*width, count*width)
		}
		shape, rows := in.Shape(), part(weight)
		if rows == nil {
			rows = castOf(x, each[first])
		}
		all := x.Reshape(x.Linear(in, rows, part(bias)), shape[0], shape[1], int64(count), int64(m.Heads), int64(width/m.Heads))
		return x.Unbind(x.Permute(all, 2, 0, 3, 1, 4), 0)
	}
	if key == value && weight != nil {
		both := heads(key, 1, 2)
		return heads(query, 0, 1)[0], both[0], both[1]
	}
	return heads(query, 0, 1)[0], heads(key, 1, 1)[0], heads(value, 2, 1)[0]
}

// scores returns the numbers that are added to the scores of n*heads*l queries and s keys.
func (m *MultiheadAttention) scores(x *cgotorch.Exec, mask AttentionMask, dtype cgotorch.DType, n, l, s int64) *cgotorch.Tensor {
	var sum *cgotorch.Tensor
	check := func(name string, t *cgotorch.Tensor, shapes ...[]int64) {
		fits := func(shape []int64) bool { return slices.Equal(t.Shape(), shape) }
		if !slices.ContainsFunc(shapes, fits) || t.DType() != cgotorch.Bool && !t.DType().IsFloat() {
			refuse(x, "nn.MultiheadAttention", "AttentionMask.%s is %s, want Bool, or numbers to add, of the shape %v", name, t, shapes)
		}
	}
	add := func(t *cgotorch.Tensor) {
		if t.DType() == cgotorch.Bool {
			t = x.MaskedFill(x.Zeros(dtype, t.Shape()...), t, math.Inf(-1))
		} else {
			t = x.To(t, dtype)
		}
		if sum != nil {
			t = x.Add(sum, t)
		}
		sum = t
	}
	if mask.Hidden != nil {
		hidden := mask.Hidden
		check("Hidden", hidden, []int64{l, s}, []int64{n * int64(m.Heads), l, s})
		if hidden.Dim() == 3 {
			hidden = x.Reshape(hidden, n, int64(m.Heads), l, s)
		}
		add(hidden)
	}
	if mask.Padding != nil {
		check("Padding", mask.Padding, []int64{n, s})
		add(x.Reshape(mask.Padding, n, 1, 1, s))
	}
	if m.Causal {
		add(x.Triu(x.Ones(cgotorch.Bool, l, s), 1))
	}
	return sum
}
