package text_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// savedModel writes a whole folder of a model.
func savedModel(t *testing.T, config string) string {
	t.Helper()
	m, folder := openRandom(t, config, text.Options{Context: 32}), t.TempDir()
	must.Do(t, cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error { return m.Save(x, folder) }))
	return folder
}

// damage changes the files of a folder by a seed, and says how.
func damage(t *testing.T, r *rand.Rand, folder string) string {
	t.Helper()
	config, weights := filepath.Join(folder, "config.json"), filepath.Join(folder, "model.safetensors")
	data := must.Get(os.ReadFile(weights))(t)
	header := int(binary.LittleEndian.Uint64(data))
	change := func(path string, data []byte) { must.Do(t, os.WriteFile(path, data, 0o644)) }
	switch r.IntN(8) {
	case 0:
		change(weights, data[:r.IntN(len(data))])
		return "weights cut short"
	case 1:
		for range 3 {
			data[8+r.IntN(header)] = byte(r.IntN(256))
		}
		change(weights, data)
		return "bytes of the header"
	case 2:
		binary.LittleEndian.PutUint64(data, r.Uint64()>>uint(r.IntN(60)))
		change(weights, data)
		return "the header's length"
	case 3:
		must.Do(t, os.Remove(weights))
		return "no weights"
	case 4:
		index := `{"weight_map": {"model.norm.weight": "` + []string{"../up.safetensors", "model.safetensors", "gone.safetensors", "/etc/passwd"}[r.IntN(4)] + `"}}`
		must.Do(t, os.Remove(weights))
		change(weights+".index.json", []byte(index))
		return "an index " + index
	case 5:
		text := must.Get(os.ReadFile(config))(t)
		change(config, text[:r.IntN(len(text))])
		return "config.json cut short"
	}
	var fields map[string]any
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(config))(t), &fields))
	names := []string{"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
		"rms_norm_eps", "rope_scaling", "rope_theta", "layer_types", "sliding_window", "model_type", "num_local_experts", "num_experts_per_tok", "dtype",
		"eos_token_id", "max_position_embeddings", "quantization_config", "tie_word_embeddings", "text_config", "attention_bias"}
	values := []any{-1, 0, 1, 3, 1 << 40, 1e300, "text", nil, true, []int{1, 2}, map[string]any{"rope_type": "yarn", "factor": -2}, map[string]any{"rope_type": "magic"},
		map[string]any{"model_type": "llama", "num_hidden_layers": 1 << 20}, 0.5, []string{"sliding_attention"}, ""}
	name, value := names[r.IntN(len(names))], values[r.IntN(len(values))]
	fields[name] = value
	change(config, must.Get(json.Marshal(fields))(t))
	return name + " is " + string(must.Get(json.Marshal(value))(t))
}

// A damaged folder is an error that names the file, or a model that answers. Nothing else happens.
func TestOpen_Damaged(t *testing.T) {
	torchtest.CheckLeaks(t)
	r := rand.New(rand.NewPCG(11, 12))
	refused := 0
	for name, config := range map[string]string{"llama": configs["llama"], "experts": configs["experts"], "windows": configs["windows"]} {
		whole := savedModel(t, config)
		for range 100 {
			folder := t.TempDir()
			must.Do(t, os.CopyFS(folder, os.DirFS(whole)))
			what := damage(t, r, folder)
			began := time.Now()
			m, err := text.Open(torchtest.Device(), folder, text.Options{Context: 16})
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%s: %s: Open took %v", name, what, took)
			}
			if err != nil {
				refused++
				if !strings.Contains(err.Error(), folder) {
					t.Errorf("%s: %s: the error names no file: %v", name, what, err)
				}
				continue
			}
			c := m.NewConversation()
			if err := errorOf(t.Context(), c, []int64{0}, text.GenerateOptions{MaxTokens: 2}); err != nil && !strings.Contains(err.Error(), "text: ") {
				t.Errorf("%s: %s: got %v", name, what, err)
			}
			must.Do(t, c.Close())
			must.Do(t, m.Close())
		}
	}
	if refused < 200 {
		t.Errorf("%d of 300 were refused, want most", refused)
	}
}

// What a generation_config.json asks for, and nothing here does, is refused by the name of the
// field.
func TestOpen_GenerationConfig(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder := savedModel(t, configs["llama"])
	for config, want := range map[string]string{
		`{"suppress_tokens": [1, 2]}`:           "suppress_tokens",
		`{"no_repeat_ngram_size": 3}`:           "no_repeat_ngram_size",
		`{"num_beams": 4}`:                      "num_beams",
		`{"top_k": 2000}`:                       "TopK is 2000",
		`{"temperature": "hot"}`:                "temperature",
		`{"stop_strings": ["x"]}`:               "stop_strings",
		`{"do_sample": true, "temperature": 0}`: "Temperature is 0",
		`{"do_sample": true, "top_p": 0}`:       "TopP is 0",
		`{"num_beams": 1, "typical_p": 1, "suppress_tokens": [], "bad_words_ids": null, "top_p": 0.9}`: "",
	} {
		must.Do(t, os.WriteFile(filepath.Join(folder, "generation_config.json"), []byte(config), 0o644))
		m, err := text.Open(torchtest.Device(), folder, text.Options{Context: 16})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "generation_config.json")) {
			t.Errorf("%s: got %v, want %q", config, err, want)
		}
		must.Do(t, m.Close())
	}
}

// Values from which transformers would compute something doubtful are refused by their field.
func TestOpen_DoubtfulConfig(t *testing.T) {
	torchtest.CheckLeaks(t)
	for field, want := range map[string]string{
		`"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "attention_factor": -1}`:          "attention_factor",
		`"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 1, "beta_slow": 32}`: "beta_slow",
		`"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64}, "rope_theta": 1`:                 "rope_theta",
		`"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": -7`:                               "swiglu_limit",
		`"model_type": "qwen3_moe", "num_experts": 0`:                                                                                 "0 experts",
		`"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 0`:                             "decoder_sparse_step",
		`"vocab_size": 16000000, "hidden_size": 1048576, "num_hidden_layers": 4096, "intermediate_size": 16000000`:                    "are free",
	} {
		folder := t.TempDir()
		config := `{"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
			"head_dim": 8, "max_position_embeddings": 256, "model_type": "llama", ` + field + `}`
		must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o644))
		m, err := text.Open(torchtest.Device(), folder, text.Options{Context: 16, RandomWeights: 1})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", field, err, want)
		}
		must.Do(t, m.Close())
	}
}

// A pass over no tokens is refused, and a pass over one is computed.
func TestModel_Forward_Sizes(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := openRandom(t, configs["llama"], text.Options{Context: 32, Stream: cgotorch.DefaultStream(torchtest.Device())})
	for _, shape := range [][]int64{{0, 3}, {1, 0}, {0, 0}, {1, 1}, {3, 1}} {
		err := cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error {
			got := m.Forward(x.NoGrad(), x.Zeros(cgotorch.Int64, shape...)).Shape()
			if want := []int64{shape[0], shape[1], 61}; !slices.Equal(got, want) {
				t.Errorf("ids of the shape %v give logits of the shape %v, want %v", shape, got, want)
			}
			return nil
		})
		if empty := shape[0]*shape[1] == 0; empty != errors.Is(err, cgotorch.ErrInvalidArgument) || !empty && err != nil {
			t.Errorf("ids of the shape %v: got %v", shape, err)
		}
	}
}
