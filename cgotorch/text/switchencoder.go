package text

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// SwitchEncoder maps tokens to hidden states.
type SwitchEncoder struct {
	EmbedTokens    *nn.Embedding // [vocab_size, d_model]
	Block          []*SwitchEncoderBlock
	FinalLayerNorm *rmsNorm

	held   *heldExperts `state:"-"` // nil if the experts lie on the device
	config *SwitchConfig
}

// SwitchEncoderBlock has two layers: self-attention and feed-forward.
type SwitchEncoderBlock struct {
	Attention *selfAttention `state:"layer.0"`
	FF        *FeedForward   `state:"layer.1"`
}

// forward maps `ids`, Int64 [batch, n], to [batch, n, d_model]. `mask` [batch, n], of any dtype, is
// 0 at padding. A nil `mask` means that there is no padding.
func (m *SwitchEncoder) forward(x *cgotorch.Exec, ids, mask *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		hidden, bias := m.begin(x, ids, mask)
		for _, block := range m.Block {
			hidden = then(hidden, block.Attention.forward(x, hidden, bias))
			hidden = then(hidden, block.FF.forward(x, hidden))
		}
		return m.FinalLayerNorm.Forward(x, hidden)
	})
}

// then closes `read` and returns `next`. The caller has computed `next` from `read`, and does not
// need `read` any more.
func then(read, next *cgotorch.Tensor) *cgotorch.Tensor {
	read.Close()
	return next
}

// begin returns `hidden` [batch, n, d_model], the embeddings of `ids`. It also returns `bias`
// [batch, heads, n, n], which the attentions add to the scores. If `mask` is nil, the shape
// of `bias` is [1, heads, n, n]. See [Switch.Encode] for `ids` and `mask`.
func (m *SwitchEncoder) begin(x *cgotorch.Exec, ids, mask *cgotorch.Tensor) (hidden, bias *cgotorch.Tensor) {
	const where = "Switch.Encode"
	x = plain(x)
	wantIDs(x, where, ids, mask)
	n := ids.Shape()[1]
	bias = x.Tidy(func() *cgotorch.Tensor {
		biases := m.Block[0].Attention.SelfAttention.RelativeAttentionBias
		bias := positionBias(x, biases, m.config.buckets(x, relative(x, n), true))
		if p := padding(x, mask, m.EmbedTokens.Weight.DType()); p != nil {
			bias = x.Add(bias, p)
		}
		return bias
	})
	return m.EmbedTokens.Forward(x, ids), bias
}

// wantIDs fails unless `ids` is Int64 [batch, n]. `mask` must be nil or have the same shape.
func wantIDs(x *cgotorch.Exec, where string, ids, mask *cgotorch.Tensor) {
	shape := ids.Shape()
	if len(shape) != 2 || ids.Numel() == 0 || ids.DType() != cgotorch.Int64 {
		refuse(x, where, "the ids are %s, want int64 [batch, tokens], at least one", ids)
	}
	if mask == nil {
		return
	}
	if m := mask.Shape(); len(m) != 2 || m[0] != shape[0] || m[1] != shape[1] {
		refuse(x, where, "the mask is %s for ids %s, want the same shape", mask, ids)
	}
}
