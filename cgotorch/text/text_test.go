package text_test

import (
	"path/filepath"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// tiny returns the config of a model with one sparse block in the encoder and one in the decoder.
func tiny() text.SwitchConfig {
	return text.SwitchConfig{
		ModelType: "switch_transformers", DenseActFn: "relu", RouterDType: "float32",
		VocabSize: 11, DModel: 8, DKV: 4, DFF: 12, NumHeads: 2, NumExperts: 3, ExpertCapacity: 64,
		NumLayers: 2, NumDecoderLayers: 2, NumSparseEncoderLayers: 1, NumSparseDecoderLayers: 1,
		RelativeAttentionNumBuckets: 32, RelativeAttentionMaxDistance: 128,
		LayerNormEpsilon: 1e-6, InitializerFactor: 1, TieWordEmbeddings: true, EOSTokenID: []int{1},
	}
}

// randomSwitch makes a model of random weights, of a folder that has the config alone.
func randomSwitch(t *testing.T, x *cgotorch.Exec, config text.SwitchConfig, o text.SwitchOptions) *text.Switch {
	t.Helper()
	folder := t.TempDir()
	writeJSON(t, filepath.Join(folder, "config.json"), config)
	o.RandomWeights = 20
	m, err := text.LoadSwitch(x, o, folder)
	cgotorch.Check(err) // the error of the Do, which a test may want
	return m
}
