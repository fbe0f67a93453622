package text

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// SwitchDecoder maps the tokens so far and the encoder's result to hidden states, from which the
// head computes the logits of the next token.
type SwitchDecoder struct {
	EmbedTokens    *nn.Embedding // [vocab_size, d_model]
	Block          []*SwitchDecoderBlock
	FinalLayerNorm *rmsNorm

	held   *heldExperts `state:"-"` // nil if the experts lie on the device
	config *SwitchConfig
}

// SwitchDecoderBlock has three layers. The method `attend` of the decoder runs the first two.
type SwitchDecoderBlock struct {
	Attention *selfAttention  `state:"layer.0"`
	Cross     *crossAttention `state:"layer.1"`
	FF        *FeedForward    `state:"layer.2"`
}

// forward maps all tokens of the decoder at once. It maps `ids`, Int64 [batch, n], to [batch, n,
// d_model]. A token does not see the tokens after it. `encoded` [batch, source, d_model] is the
// result of [Switch.Encode]. `mask` [batch, source] is 0 at padding. A nil `mask` means that there
// is no padding.
func (m *SwitchDecoder) forward(x *cgotorch.Exec, ids, encoded, mask *cgotorch.Tensor) *cgotorch.Tensor {
	const where = "Switch.Logits"
	x = plain(x)
	wantIDs(x, where, ids, nil)
	wantEncoded(x, where, encoded, mask, ids.Shape()[0])
	return x.Tidy(func() *cgotorch.Tensor {
		dtype := m.EmbedTokens.Weight.DType()
		pairs := relative(x, ids.Shape()[1])
		bias := positionBias(x, m.biases(), m.config.buckets(x, pairs, false))
		bias = then(bias, x.MaskedFill(bias, x.GtScalar(pairs, 0), lowest(dtype)))
		cross := padding(x, mask, dtype)
		hidden := m.EmbedTokens.Forward(x, ids)
		for _, block := range m.Block {
			hidden = then(hidden, block.Attention.forward(x, hidden, bias))
			keys, values := block.remember(x, encoded)
			hidden = then(hidden, block.Cross.forward(x, hidden, keys, values, cross))
			keys.Close()
			values.Close()
			hidden = then(hidden, block.FF.forward(x, hidden))
		}
		return m.FinalLayerNorm.Forward(x, hidden)
	})
}

func (m *SwitchDecoder) biases() *nn.Embedding {
	return m.Block[0].Attention.SelfAttention.RelativeAttentionBias
}

// remember returns the keys and values of the block's cross-attention, [batch, heads, source,
// d_kv]. `encoded` is the result of [Switch.Encode].
func (b *SwitchDecoderBlock) remember(x *cgotorch.Exec, encoded *cgotorch.Tensor) (keys, values *cgotorch.Tensor) {
	a := b.Cross.EncDecAttention
	return a.split(x, a.K.Forward(x, encoded)), a.split(x, a.V.Forward(x, encoded))
}

func wantEncoded(x *cgotorch.Exec, where string, encoded, mask *cgotorch.Tensor, batch int64) {
	shape := encoded.Shape()
	if len(shape) != 3 || shape[0] != batch {
		refuse(x, where, "the encoder's result is %s, want [%d, source, d_model]", encoded, batch)
	}
	if mask == nil {
		return
	}
	if m := mask.Shape(); len(m) != 2 || m[0] != batch || m[1] != shape[1] {
		refuse(x, where, "the mask is %s for the encoder's result %s, want [%d, %d]", mask, encoded, batch, shape[1])
	}
}
