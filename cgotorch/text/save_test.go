package text_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The text model of a folder with vision keeps what stands beside its text_config, and numbers stay
// as they are written. A model may be saved into its own folder.
func TestModel_Save_Config(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder := t.TempDir()
	write(t, filepath.Join(folder, "config.json"), `{"model_type": "gemma3", "eos_token_id": [7, 60], "tie_word_embeddings": false, "text_config": {"vocab_size": 61, "hidden_size": 32,
		"intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8, "sliding_window": 16, "initializer_range": 0.3, "large": 12345678901234567890}}`)
	m := must.Get(text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 7}))(t)
	defer m.Close()
	must.Do(t, cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error { return m.Save(x, folder) }))
	var config map[string]json.RawMessage
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(folder, "config.json")))(t), &config))
	var eos []int
	must.Do(t, json.Unmarshal(config["eos_token_id"], &eos))
	if len(eos) != 2 || string(config["tie_word_embeddings"]) != "false" || string(config["large"]) != "12345678901234567890" {
		t.Errorf("config.json has eos_token_id %v, tie_word_embeddings %s, large %s", eos, config["tie_word_embeddings"], config["large"])
	}
	must.Do(t, must.Get(text.Open(torchtest.Device(), folder, text.Options{}))(t).Close())
}

// A head of its own is refused if the head is said to be the embedding, whatever the head's name.
func TestOpen_Tied(t *testing.T) {
	torchtest.CheckLeaks(t)
	const config = `{"model_type": "gemma3_text", "vocab_size": 7, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 8}`
	whole := savedModel(t, config)
	for _, name := range []string{"lm_head.weight", "language_model.lm_head.weight", "other.lm_head.weight"} {
		for _, value := range []byte{0, 1} {
			folder := t.TempDir()
			must.Do(t, os.CopyFS(folder, os.DirFS(whole)))
			path := filepath.Join(folder, "model.safetensors")
			f := must.Get(safetensors.Open(path))(t)
			var all []safetensors.Tensor
			for _, info := range f.Tensors() {
				data := must.Get(f.Read(info.Name))(t)
				tensor := safetensors.Tensor{Name: info.Name, DType: info.DType, Shape: info.Shape, Read: func() ([]byte, error) { return data, nil }}
				if all = append(all, tensor); info.Name == "model.embed_tokens.weight" {
					head := slices.Clone(data)
					head[0] ^= value
					tensor.Name, tensor.Read = name, func() ([]byte, error) { return head, nil }
					all = append(all, tensor)
				}
			}
			must.Do(t, f.Close())
			must.Do(t, safetensors.WriteFile(path, all, nil))
			m, err := text.Open(torchtest.Device(), folder, text.Options{})
			if wrong := value == 1 || strings.HasPrefix(name, "other"); errors.Is(err, cgotorch.ErrInvalidArgument) != wrong || wrong && !strings.Contains(err.Error(), name) {
				t.Errorf("%s with %d: got %v", name, value, err)
			}
			must.Do(t, m.Close())
		}
	}
}
