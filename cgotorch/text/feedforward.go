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
	Experts *residentExperts // the experts in the memory of the device; nil with [SwitchOptions].NoExperts

	Override Experts `state:"-"` // if not nil, it runs in place of Experts; it is not part of the model's state
}

// router computes how well each expert suits a token.
type router struct {
	Classifier *nn.Linear // [experts, d_model]
}

// Routed is the routing of a sparse layer: one expert for each token. In the shapes below,
// `tokens` is the number of tokens of all sequences together. The sequences follow one another.
type Routed struct {
	States        *cgotorch.Tensor // [tokens, d_model], normalized: the input of the experts
	IDs           *cgotorch.Tensor // Int64 [tokens]: the chosen experts
	Probabilities *cgotorch.Tensor // [tokens, 1]: the probabilities of the chosen experts
}

// Close closes the three tensors.
func (r Routed) Close() {
	r.States.Close()
	r.IDs.Close()
	r.Probabilities.Close()
}

// Forward maps `hidden` [..., d_model] to the same shape. It fails with
// [cgotorch.ErrInvalidArgument] for a sparse layer that has neither Experts nor an Override.
func (m *FeedForward) Forward(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	if m.Sparse == nil {
		return x.Tidy(func() *cgotorch.Tensor {
			return x.Add(hidden, m.Dense.Forward(x, m.LayerNorm.Forward(x, hidden)))
		})
	}
	return x.Tidy(func() *cgotorch.Tensor {
		routed := m.Route(x, hidden)
		return m.Combine(x, hidden, routed, m.Sparse.experts(x).Forward(x, routed.States, routed.IDs))
	})
}

func (m *Sparse) experts(x *cgotorch.Exec) Experts {
	if m.Override != nil {
		return m.Override
	}
	if m.Experts == nil {
		refuse(x, "FeedForward.Forward", "the model was made without experts: set Sparse.Override, or call Route and Combine")
	}
	return m.Experts
}

// Route normalizes `hidden` [..., d_model] and chooses the likeliest expert for each token. The
// routing is that of Hugging Face's transformers. Route computes in float32 and rounds the
// probabilities to the dtype of `hidden`. If experts have equal probabilities, Route takes the
// first of them. The caller must Close the result. Route fails with [cgotorch.ErrInvalidArgument]
// for a dense layer.
//
// No expert is ever full. transformers 5.17 counts the tokens of an expert along a dimension of
// size 1, so no count exceeds 1. expert_capacity therefore drops no token in transformers, and
// Route drops none either.
func (m *FeedForward) Route(x *cgotorch.Exec, hidden *cgotorch.Tensor) Routed {
	const where = "FeedForward.Route"
	if m.Sparse == nil {
		refuse(x, where, "the layer is dense")
	}
	r := Routed{States: m.norm(x, hidden)}
	r.IDs, r.Probabilities = m.Sparse.Router.choose(x, r.States)
	return r
}

// norm returns the input of the layer's router and experts. This is `hidden` [..., d_model],
// normalized, with the shape [tokens, d_model].
func (m *FeedForward) norm(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor { return rows(x, m.LayerNorm.Forward(x, hidden)) })
}

// choose returns the likeliest expert of each token and the probability of that expert. `states` is
// [tokens, d_model], `ids` is Int64 [tokens], and `probabilities` is [tokens, 1].
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

// Combine multiplies each row of `out` by the probability of the token's expert, and adds the
// products to `hidden` [..., d_model]. `out` [tokens, d_model] has the results of the experts.
func (m *FeedForward) Combine(x *cgotorch.Exec, hidden *cgotorch.Tensor, routed Routed, out *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor {
		weighted := x.Mul(out, routed.Probabilities)
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
