package text

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// FeedForward is the last layer of a block. A dense layer, or the expert of each token, computes
// a result from the hidden states. FeedForward adds this result to the hidden states.
type FeedForward struct {
	Dense     *Dense  `state:"mlp"` // nil in a sparse layer
	Sparse    *Sparse `state:"mlp"` // nil in a dense layer
	LayerNorm *rmsNorm
}

// Sparse routes tokens to experts.
type Sparse struct {
	Router  *router
	Experts *switchExperts
}

// router computes how well each expert suits a token.
type router struct {
	Classifier *nn.Linear // [experts, d_model]
}

// forward maps `hidden` [..., d_model] to the same shape.
func (m *FeedForward) forward(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	if m.Sparse == nil {
		return x.Tidy(func() *cgotorch.Tensor {
			return x.Add(hidden, m.Dense.Forward(x, m.LayerNorm.Forward(x, hidden)))
		})
	}
	return x.Tidy(func() *cgotorch.Tensor {
		states := m.norm(x, hidden)
		ids, probabilities := m.Sparse.Router.choose(x, states)
		return combine(x, hidden, probabilities, m.Sparse.Experts.Forward(x, states, ids))
	})
}

// norm returns the input of the layer's router and experts. This is `hidden` [..., d_model],
// normalized, with the shape [tokens, d_model].
func (m *FeedForward) norm(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor { return rows(x, m.LayerNorm.Forward(x, hidden)) })
}

// choose returns the likeliest expert of each token and the probability of that expert. `states` is
// [tokens, d_model], `ids` is Int64 [tokens], and `probabilities` is [tokens, 1]. The routing is
// that of Hugging Face's transformers: it is computed in float32, and the probabilities are rounded
// to the dtype of `states`. Among equal probabilities the first expert is taken.
//
// No expert is ever full. transformers 5.17 counts the tokens of an expert along a dimension of
// size 1, so no count exceeds 1. expert_capacity therefore drops no token in transformers, and
// none here.
func (m *router) choose(x *cgotorch.Exec, states *cgotorch.Tensor) (ids, probabilities *cgotorch.Tensor) {
	x = plain(x)
	all := x.Tidy(func() *cgotorch.Tensor { return m.probabilities(x, states) })
	defer all.Close()
	probabilities, best := x.MaxDim(all, -1, cgotorch.ReduceOptions{KeepDim: true})
	defer best.Close()
	return x.Squeeze(best, 1), probabilities
}

// probabilities maps `tokens` [tokens, d_model] to the probability of each expert. The result is
// [tokens, experts], with the dtype of `tokens`.
func (m *router) probabilities(x *cgotorch.Exec, tokens *cgotorch.Tensor) *cgotorch.Tensor {
	as := func(t *cgotorch.Tensor, dtype cgotorch.DType) *cgotorch.Tensor {
		if t == nil || t.DType() == dtype {
			return t
		}
		return x.To(t, dtype)
	}
	const f32 = cgotorch.Float32
	scores := x.Linear(as(tokens, f32), as(m.Classifier.Weight, f32), as(m.Classifier.Bias, f32))
	return as(x.Softmax(scores, -1), tokens.DType())
}

// combine multiplies each row of `out` by the probability of the token's expert, and adds the
// products to `hidden` [..., d_model]. `out` [tokens, d_model] has the results of the experts.
func combine(x *cgotorch.Exec, hidden, probabilities, out *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		weighted := x.Mul(out, probabilities)
		if hidden.Dim() != 2 {
			weighted = x.View(weighted, hidden.Shape()...)
		}
		return x.Add(hidden, weighted)
	})
}

// rows returns `hidden` [..., d_model] with the shape [tokens, d_model].
func rows(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	if hidden.Dim() == 2 {
		return hidden
	}
	shape := hidden.Shape()
	return x.Reshape(hidden, -1, shape[len(shape)-1])
}
