package text

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Switch is the Switch Transformer (Fedus, Zoph and Shazeer, 2021). In Hugging Face's
// transformers it is SwitchTransformersForConditionalGeneration. If word embeddings are tied,
// encoder, decoder and head use the weight of Shared. The state then lists this weight under each
// of its names.
type Switch struct {
	Config SwitchConfig `state:"-"`

	Shared  *nn.Embedding // [vocab_size, d_model]
	Encoder *SwitchEncoder
	Decoder *SwitchDecoder
	LMHead  *nn.Linear // [vocab_size, d_model]
}

// SwitchOptions choose the dtype, the experts and the weights of [LoadSwitch].
type SwitchOptions struct {
	// DType is the dtype of all weights: Float32 or BFloat16. 0 means Float32. Routers always
	// compute in float32. Choose the dtype here and not by [nn.To]. After nn.To, each Forward
	// copies the weights of all experts.
	DType cgotorch.DType
	// Slots is how many experts of each sparse layer of the decoder the device has room for. All
	// experts then lie in page-locked host memory: see [weights.Table]. Up to 8 tokens of the
	// decoder take their experts by the slots. More tokens, and those of the encoder, read the
	// experts that they choose over the bus. 0, or as many as a layer has, means that all experts
	// lie on the device.
	//
	// One goroutine at a time then uses the model, and [Switch.ExpertStats] counts. On CUDA this
	// needs compute capability 8.0. In bfloat16 on 9.0 the device fills the slots, if d_model and
	// d_ff are multiples of 8. Else a step waits for the choice of each sparse layer, and cannot be
	// captured.
	Slots int
	// NoGrouped makes experts run without LibTorch's grouped product. Without NoGrouped, several
	// tokens run by that product on the CPU, and on CUDA in bfloat16. With LibTorch 2.11 the
	// product does not wait on compute capability 9.0, where it was tried. If a device does not
	// have the product's kernel, the product waits and cannot be captured.
	NoGrouped bool
	// RandomWeights is a seed. If it is not 0, the weights are drawn on the device, and the folder
	// needs no more than a config.json. The weights come from the distributions of Hugging Face's
	// transformers, but the order of the random numbers is different.
	RandomWeights uint64
}

// Encode maps `ids`, Int64 [batch, n], to [batch, n, d_model]. `mask` [batch, n], of any dtype,
// is 0 at padding. A nil `mask` means that there is no padding.
func (m *Switch) Encode(x *cgotorch.Exec, ids, mask *cgotorch.Tensor) *cgotorch.Tensor {
	return m.Encoder.forward(plain(x), ids, mask)
}

// Logits returns the logits of the token after each token of decoderIDs. decoderIDs is Int64
// [batch, m], and the result is [batch, m, vocab_size]. Each row of decoderIDs begins with the
// config's decoder_start_token_id. ids and mask are those of [Switch.Encode].
func (m *Switch) Logits(x *cgotorch.Exec, ids, mask, decoderIDs *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor {
		return m.head(x, m.Decoder.forward(x, decoderIDs, m.Encode(x, ids, mask), mask))
	})
}

// predict maps the result of the decoder's last block, [..., d_model], to logits [..., vocab_size].
func (m *Switch) predict(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor { return m.head(x, m.Decoder.FinalLayerNorm.Forward(x, hidden)) })
}

func (m *Switch) head(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	if m.Config.TieWordEmbeddings {
		hidden = x.MulScalar(hidden, 1/math.Sqrt(float64(m.Config.DModel)))
	}
	return m.LMHead.Forward(x, hidden)
}
