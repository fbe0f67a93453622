package text

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Switch is the Switch Transformer (Fedus, Zoph and Shazeer, 2021) as transformers' SwitchTransformersForConditionalGeneration has it. Where
// word embeddings are tied, the encoder's, the decoder's and the head's weight are Shared's, and the state lists it under each name.
type Switch struct {
	Config SwitchConfig `state:"-"`

	Shared  *nn.Embedding // [vocab_size, d_model]
	Encoder *Encoder
	Decoder *Decoder
	LMHead  *nn.Linear // [vocab_size, d_model]
}

// SwitchOptions are the options of [NewSwitch] and [LoadSwitch].
type SwitchOptions struct {
	DType     cgotorch.DType // of all weights, Float32 or BFloat16; 0 means Float32. Routers compute in float32 all the same
	NoExperts bool           // sparse layers have no experts: the state leaves their names out, and files' are passed over. Somebody else runs them, see [Sparse]
	NoGrouped bool           // experts run without LibTorch's grouped product, which waits on some devices: see [ResidentExperts.Forward]
}

// NewSwitch makes a model on x's device with new weights, drawn from transformers' distributions but not in its order. [nn.Close] frees it.
// It fails with [cgotorch.ErrInvalidArgument] for a config that [SwitchConfig.Check] refuses and for another dtype.
func NewSwitch(x *cgotorch.Exec, config SwitchConfig, o SwitchOptions) *Switch {
	return newSwitch(x, "text.NewSwitch", config, o, true)
}

// DType is that of the weights.
func (m *Switch) DType() cgotorch.DType { return m.Shared.Weight.DType() }

// Encode maps ids, Int64 [batch, n], to [batch, n, d_model]. mask [batch, n], of any dtype, is 0 at padding; nil means that there is none.
func (m *Switch) Encode(x *cgotorch.Exec, ids, mask *cgotorch.Tensor) *cgotorch.Tensor {
	return m.Encoder.Forward(plain(x), ids, mask)
}

// Logits returns, for each of decoderIDs, Int64 [batch, m], the logits of what follows it, [batch, m, vocab_size]. ids and mask are
// [Switch.Encode]'s; decoderIDs begin with the config's decoder_start_token_id.
func (m *Switch) Logits(x *cgotorch.Exec, ids, mask, decoderIDs *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor {
		return m.head(x, m.Decoder.Forward(x, decoderIDs, m.Encode(x, ids, mask), mask))
	})
}

// Predict maps what the decoder's last block has made, [..., d_model], to logits [..., vocab_size].
func (m *Switch) Predict(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor { return m.head(x, m.Decoder.End(x, hidden)) })
}

func (m *Switch) head(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	if m.Config.TieWordEmbeddings {
		hidden = x.MulScalar(hidden, 1/math.Sqrt(float64(m.Config.DModel)))
	}
	return m.LMHead.Forward(x, hidden)
}
