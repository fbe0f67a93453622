package text

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func configFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	must.Do(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

func TestReadSwitchConfig(t *testing.T) {
	with := func(change func(c *SwitchConfig)) SwitchConfig {
		c := defaultSwitchConfig()
		change(&c)
		return c
	}
	for _, test := range []struct {
		name, content string
		want          SwitchConfig
	}{
		{"empty", `{}`, defaultSwitchConfig()},
		{"base-128", `{"model_type": "switch_transformers", "d_ff": 3072, "num_experts": 128, "num_sparse_encoder_layers": 6,
			"num_sparse_decoder_layers": 6, "decoder_start_token_id": 0, "architectures": ["other fields"], "transformers_version": "4"}`, with(func(c *SwitchConfig) {
			c.DFF, c.NumSparseEncoderLayers, c.NumSparseDecoderLayers, c.NumExperts = 3072, 6, 6, 128
		})},
		{"symmetry", `{"num_layers": 4, "num_decoder_layers": null}`, with(func(c *SwitchConfig) { c.NumLayers, c.NumDecoderLayers = 4, 4 })},
		{"half", `{"num_layers": 4}`, with(func(c *SwitchConfig) { c.NumLayers = 4 })},
		{"start is padding", `{"pad_token_id": 7, "eos_token_id": [3, 4]}`, with(func(c *SwitchConfig) {
			c.PadTokenID, c.DecoderStartTokenID, c.EOSTokenID = 7, 7, []int{3, 4}
		})},
		{"no end", `{"eos_token_id": null, "decoder_start_token_id": 5, "tie_word_embeddings": false}`, with(func(c *SwitchConfig) {
			c.EOSTokenID, c.DecoderStartTokenID, c.TieWordEmbeddings = nil, 5, false
		})},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := must.Get(readSwitchConfig(configFile(t, test.content)))(t)
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestReadSwitchConfig_Refuses(t *testing.T) {
	for content, part := range map[string]string{
		`{"d_model": 0}`:                         "d_model is 0",
		`{"d_model": "wide"}`:                    "d_model is a string",
		`{"num_layers": 1.5}`:                    "num_layers is a number 1.5",
		`{"num_decoder_layers": -1}`:             "num_decoder_layers is -1",
		`{"dense_act_fn": "gated-gelu"}`:         `dense_act_fn is "gated-gelu"`,
		`{"model_type": "t5"}`:                   `model_type is "t5"`,
		`{"router_dtype": "bfloat16"}`:           `router_dtype is "bfloat16"`,
		`{"expert_capacity": 0}`:                 "expert_capacity is 0",
		`{"eos_token_id": "</s>"}`:               "eos_token_id",
		`{"eos_token_id": 40000}`:                "eos_token_id is 40000, outside of vocab_size, 32128",
		`{"decoder_start_token_id": -4}`:         "decoder_start_token_id is -4",
		`{"initializer_factor": -1}`:             "initializer_factor is -1",
		`{"layer_norm_epsilon": -1e-6}`:          "layer_norm_epsilon is -1e-06",
		`{"relative_attention_max_distance": 9}`: "relative_attention_max_distance is 9",
		`{"relative_attention_num_buckets": 1}`:  "relative_attention_num_buckets is 1",
	} {
		path := configFile(t, content)
		_, err := readSwitchConfig(path)
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, path, part)
	}
	for _, path := range []string{configFile(t, "["), filepath.Join(t.TempDir(), "none.json")} {
		if _, err := readSwitchConfig(path); err == nil {
			t.Errorf("%s is read", path)
		}
	}
}
