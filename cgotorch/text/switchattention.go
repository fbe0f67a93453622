package text

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// attention is T5's attention. Its linear layers have no bias, and its scores are not scaled.
type attention struct {
	Q, K, V, O *nn.Linear // Q, K and V are [heads*d_kv, d_model], O is [d_model, heads*d_kv]

	// RelativeAttentionBias [buckets, heads] serves all blocks of the encoder, or all blocks of the
	// decoder. Only the first of these blocks holds the tensor. In all later blocks the field is
	// nil.
	RelativeAttentionBias *nn.Embedding

	heads, width int
}

// split cuts t [batch, n, heads*width] into heads. The result is [batch, heads, n, width].
func (m *attention) split(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	shape := t.Shape()
	return x.Transpose(x.View(t, shape[0], shape[1], int64(m.heads), int64(m.width)), 1, 2)
}

// merge undoes `split`. It maps t [batch, heads, n, width] to [batch, n, heads*width].
func (m *attention) merge(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor {
	shape := t.Shape()
	return x.Reshape(x.Transpose(t, 1, 2), shape[0], shape[2], int64(m.heads*m.width))
}

// attend maps `hidden` [batch, n, d_model], the hidden states of the queries, to the same shape.
// `keys` and `values` are [batch, heads, m, width]. `bias` is added to the scores, whose shape is
// [batch, heads, n, m]. A nil `bias` adds nothing.
func (m *attention) attend(x *cgotorch.Exec, hidden, keys, values, bias *cgotorch.Tensor) *cgotorch.Tensor {
	scores := x.Tidy(func() *cgotorch.Tensor {
		scores := x.MatMul(m.split(x, m.Q.Forward(x, hidden)), x.Transpose(keys, 2, 3))
		if bias != nil {
			x.AddInPlace(scores, bias)
		}
		return x.Softmax(scores, -1)
	})
	defer scores.Close()
	return x.Tidy(func() *cgotorch.Tensor {
		return m.O.Forward(x, m.merge(x, x.MatMul(scores, values)))
	})
}

// project returns the queries, keys and values of `hidden` [batch, d_model], as one tensor [batch,
// 3*heads*width]. One product computes all of them if the three weights are adjacent in memory.
func (m *attention) project(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		if all := stackedView(x, 3, m.Q.Weight, m.K.Weight, m.V.Weight); all != nil {
			shape := all.Shape()
			return x.Linear(hidden, x.View(all, shape[0]*shape[1], shape[2]), nil)
		}
		return x.Cat([]*cgotorch.Tensor{m.Q.Forward(x, hidden), m.K.Forward(x, hidden), m.V.Forward(x, hidden)}, 1)
	})
}

// attendStep does what `attend` does for one token of each sequence, with as few operators as
// possible. `queries` is [batch*heads, 1, width], and `bias` is [batch*heads, 1, n]. `keys` is
// [batch*heads, width, n], and `values` is [batch*heads, n, width]. The result is [batch,
// d_model].
func (m *attention) attendStep(x *cgotorch.Exec, queries, keys, values, bias *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		weights := x.Softmax(call(x, "aten::baddbmm", bias, queries, keys), -1)
		return m.O.Forward(x, x.View(x.BMM(weights, values), -1, int64(m.heads*m.width)))
	})
}

// selfAttention is the first layer of a block. The tokens of a sequence attend to each other.
type selfAttention struct {
	SelfAttention *attention `state:"SelfAttention"`
	LayerNorm     *rmsNorm
}

// forward returns the sum of `hidden` [batch, n, d_model] and the attention of `hidden` to itself.
// The result is a new handle.
func (m *selfAttention) forward(x *cgotorch.Exec, hidden, bias *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		a, normed := m.SelfAttention, m.LayerNorm.Forward(x, hidden)
		keys, values := a.split(x, a.K.Forward(x, normed)), a.split(x, a.V.Forward(x, normed))
		return x.Add(hidden, a.attend(x, normed, keys, values, bias))
	})
}

// crossAttention is the second layer of a decoder's block. The decoder's tokens attend to the
// encoder's result.
type crossAttention struct {
	EncDecAttention *attention `state:"EncDecAttention"`
	LayerNorm       *rmsNorm
}

// forward returns the sum of `hidden` [batch, n, d_model] and the attention of `hidden` to `keys`
// and `values`. `keys` and `values` are [batch, heads, source, width].
func (m *crossAttention) forward(x *cgotorch.Exec, hidden, keys, values, bias *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		return x.Add(hidden, m.EncDecAttention.attend(x, m.LayerNorm.Forward(x, hidden), keys, values, bias))
	})
}

// forwardStep does what forward does, in the shapes of [attention.attendStep].
func (m *crossAttention) forwardStep(x *cgotorch.Exec, hidden, keys, values, bias *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		a := m.EncDecAttention
		queries := x.View(a.Q.Forward(x, m.LayerNorm.Forward(x, hidden)), -1, 1, int64(a.width))
		return x.Add(hidden, a.attendStep(x, queries, keys, values, bias))
	})
}
