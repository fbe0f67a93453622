package text

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Switch is the Switch Transformer (Fedus, Zoph and Shazeer, 2021), as
// SwitchTransformersForConditionalGeneration in transformers. Where word embeddings are tied,
// encoder, decoder and head use Shared's weight. The state lists it under each name.
type Switch struct {
	Config SwitchConfig `state:"-"`

	Shared  *nn.Embedding // [vocab_size, d_model]
	Encoder *Encoder
	Decoder *Decoder
	LMHead  *nn.Linear // [vocab_size, d_model]
}

// SwitchOptions choose the dtype and the experts of [NewSwitch] and [LoadSwitch].
type SwitchOptions struct {
	// DType is the dtype of all weights, Float32 or BFloat16. 0 means Float32. Routers compute in
	// float32 in both cases. Choose the dtype here: after [nn.To], each Forward copies all experts.
	DType cgotorch.DType
	// NoExperts makes sparse layers without experts, which run elsewhere: see [Sparse]. The state lacks
	// their names, and loading passes over them.
	NoExperts bool
	// NoGrouped makes experts run without LibTorch's grouped product. Several tokens run by that
	// product on the CPU, and on CUDA in bfloat16. LibTorch 2.11 does not wait there on compute
	// capability 9.0, where it was tried. A device without that kernel waits and cannot be captured.
	NoGrouped bool
}

// NewSwitch makes a model on x's device with new weights, drawn from transformers' distributions
// but not in its order. [nn.Close] frees it. It fails with [cgotorch.ErrInvalidArgument] for a
// config with illegal values, and for another dtype.
func NewSwitch(x *cgotorch.Exec, config SwitchConfig, o SwitchOptions) *Switch {
	return newSwitch(x, "text.NewSwitch", config, o, true)
}

// Encode maps ids, Int64 [batch, n], to [batch, n, d_model]. mask [batch, n], of any dtype, is 0 at
// padding; nil means no padding.
func (m *Switch) Encode(x *cgotorch.Exec, ids, mask *cgotorch.Tensor) *cgotorch.Tensor {
	return m.Encoder.forward(plain(x), ids, mask)
}

// Logits returns the logits [batch, m, vocab_size] of the token after each of decoderIDs, Int64
// [batch, m]. ids and mask are as for [Switch.Encode]. decoderIDs begin with the config's
// decoder_start_token_id.
func (m *Switch) Logits(x *cgotorch.Exec, ids, mask, decoderIDs *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor {
		return m.head(x, m.Decoder.forward(x, decoderIDs, m.Encode(x, ids, mask), mask))
	})
}

// Predict maps the result of the decoder's last block, [..., d_model], to logits [..., vocab_size].
func (m *Switch) Predict(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor { return m.head(x, m.Decoder.end(x, hidden)) })
}

func (m *Switch) head(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	if m.Config.TieWordEmbeddings {
		hidden = x.MulScalar(hidden, 1/math.Sqrt(float64(m.Config.DModel)))
	}
	return m.LMHead.Forward(x, hidden)
}
