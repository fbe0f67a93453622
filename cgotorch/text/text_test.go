package text_test

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// tiny returns the config of a model with one sparse block in the encoder and one in the decoder.
func tiny() text.SwitchConfig {
	c := text.DefaultSwitchConfig()
	c.VocabSize, c.DModel, c.DKV, c.DFF, c.NumHeads, c.NumExperts = 11, 8, 4, 12, 2, 3
	c.NumLayers, c.NumDecoderLayers, c.NumSparseEncoderLayers, c.NumSparseDecoderLayers = 2, 2, 1, 1
	return c
}

// switchBase128 returns the config of google/switch-base-128. It has 12 blocks in the encoder and
// 12 in the decoder. Every second block has 128 experts.
func switchBase128() text.SwitchConfig {
	c := text.DefaultSwitchConfig()
	c.DFF, c.NumSparseEncoderLayers, c.NumSparseDecoderLayers, c.NumExperts = 3072, 6, 6, 128
	return c
}
