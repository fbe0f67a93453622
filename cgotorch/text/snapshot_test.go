package text_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// write makes a file, and the folders around it.
func write(t *testing.T, path, data string) {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, []byte(data), 0o644))
}

// An id is the snapshot that refs/main names. Another one is not taken in its place.
func TestOpen_Cache(t *testing.T) {
	torchtest.CheckLeaks(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("HF_HUB_CACHE", "")
	t.Setenv("HF_HOME", "~/hugging [face]")
	repository := filepath.Join(home, "hugging [face]", "hub", "models--an.org--a.model-1.5")
	open := func() (string, error) {
		m, err := text.Open(torchtest.Device(), "an.org/a.model-1.5", text.Options{RandomWeights: 1})
		if err != nil {
			return "", err
		}
		defer m.Close()
		return m.Weights[0].Name, nil
	}
	if _, err := open(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "hf download an.org/a.model-1.5") {
		t.Errorf("an empty cache: got %v", err)
	}
	write(t, filepath.Join(repository, "blobs", "abc"), configs["llama"])
	must.Do(t, os.MkdirAll(filepath.Join(repository, "snapshots", "111"), 0o755))
	must.Do(t, os.Symlink("../../blobs/abc", filepath.Join(repository, "snapshots", "111", "config.json")))
	must.Get(open())(t)
	write(t, filepath.Join(repository, "snapshots", "222", "config.json"), "{}")
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "2 snapshots") {
		t.Errorf("two snapshots: got %v", err)
	}
	write(t, filepath.Join(repository, "refs", "main"), "111\n")
	must.Get(open())(t)
	for _, name := range []string{"333", "", ".."} {
		write(t, filepath.Join(repository, "refs", "main"), name+"\n")
		must.Do(t, os.RemoveAll(filepath.Join(repository, "snapshots", "222")))
		if _, err := open(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "refs/main names the snapshot") {
			t.Errorf("refs/main is %q: got %v", name, err)
		}
	}
}

// Adapters that are more than two matrices beside the model's own weights are refused by field.
func TestOpen_Adapter(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder, adapter := t.TempDir(), t.TempDir()
	write(t, filepath.Join(folder, "config.json"), configs["llama"])
	for _, fields := range []string{
		`"init_lora_weights": "pissa_niter_4"`, `"init_lora_weights": "olora"`, `"use_dora": true`, `"kasa_config": {}`, `"rank_pattern": {"q_proj": 4}`, `"r": 0`,
		`"modules_to_save": ["lm_head"]`,
	} {
		write(t, filepath.Join(adapter, "adapter_config.json"), `{"peft_type": "LORA", `+fields+`}`)
		_, err := text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 1, Adapter: adapter})
		field := strings.Split(fields, `"`)[1]
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), "merge_and_unload") {
			t.Errorf("%s: got %v", fields, err)
		}
	}
}

// An adapter of a model that also sees images is merged into its text model.
func TestOpen_Adapter_Names(t *testing.T) {
	torchtest.CheckLeaks(t)
	folder, adapter := t.TempDir(), t.TempDir()
	write(t, filepath.Join(folder, "config.json"), `{"model_type": "gemma3", "text_config": {"vocab_size": 7, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 8}}`)
	write(t, filepath.Join(adapter, "adapter_config.json"), `{"peft_type": "LORA", "r": 1, "lora_alpha": 1}`)
	const matrix = "layers.0.mlp.down_proj"
	value := func(m *text.Model) (values []float32) {
		must.Do(t, cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error {
			for _, n := range m.Weights {
				if n.Name == "model."+matrix+".weight" {
					values = cgotorch.ToSlice[float32](x, x.Detach(n.Tensor))
				}
			}
			return nil
		}))
		return values
	}
	plain := must.Get(text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 1}))(t)
	defer plain.Close()
	before := value(plain)
	write(t, filepath.Join(folder, "tokenizer.json"), "{}") // the adapter's counts
	write(t, filepath.Join(adapter, "tokenizer.json"), bytesTokenizer)
	write(t, filepath.Join(folder, "generation_config.json"), `{"eos_token_id": 3}`)
	for _, prefix := range []string{"model.", "model.language_model.", "language_model.model."} {
		var all []safetensors.Tensor
		for _, part := range []string{"lora_A", "lora_B"} { // ones in bfloat16
			ones := []byte(strings.Repeat("\x80\x3f", 8))
			shape := []int64{1, 8}
			if part == "lora_B" {
				shape = []int64{8, 1}
			}
			all = append(all, safetensors.Tensor{Name: "base_model.model." + prefix + matrix + "." + part + ".weight", DType: "BF16", Shape: shape, Read: func() ([]byte, error) { return ones, nil }})
		}
		must.Do(t, safetensors.WriteFile(filepath.Join(adapter, "adapter_model.safetensors"), all, nil))
		m := must.Get(text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 1, Adapter: adapter}))(t)
		for i, v := range value(m) {
			if v != before[i]+1 {
				t.Fatalf("%s: element %d is %v, want %v", prefix, i, v, before[i]+1)
			}
		}
		narrow := must.Get(text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 1, Adapter: adapter, Quantize: "int8"}))(t)
		if d := distance(logitsOf(t, narrow), logitsOf(t, m)); d > 0.1 {
			t.Errorf("%s: the logits of int8 are %v from those of merged weights", prefix, d)
		}
		must.Do(t, narrow.Close())
		saved := t.TempDir()
		must.Do(t, cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error { return m.Save(x, saved) }))
		if got := string(must.Get(os.ReadFile(filepath.Join(saved, "tokenizer.json")))(t)); got != bytesTokenizer || m.Tokenizer == nil {
			t.Errorf("%s: the saved tokenizer is %s", prefix, got)
		}
		must.Get(os.ReadFile(filepath.Join(saved, "generation_config.json")))(t)
		must.Do(t, m.Close())
	}
}

// A folder that is both a model and an adapter is refused, and so is an adapter of no model.
func TestOpen_Adapter_Doubtful(t *testing.T) {
	for _, test := range []struct{ name, config, adapter, text string }{
		{"both", configs["llama"], `{"peft_type": "LORA", "base_model_name_or_path": "some/model"}`, "Options.Adapter too"},
		{"no base", "", `{"peft_type": "LORA"}`, "names no model"},
	} {
		folder := t.TempDir()
		write(t, filepath.Join(folder, "adapter_config.json"), test.adapter)
		if test.config != "" {
			write(t, filepath.Join(folder, "config.json"), test.config)
		}
		m, err := text.Open(torchtest.Device(), folder, text.Options{RandomWeights: 1})
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: got %v", test.name, err)
		}
		must.Do(t, m.Close())
	}
}

// Models that are opened at the same time have the weights of their seeds.
func TestOpen_RandomWeights_AtOnce(t *testing.T) {
	var all [4][]float32
	var done sync.WaitGroup
	for i := range all {
		done.Add(1)
		go func() {
			defer done.Done()
			m := openRandom(t, configs["llama"], text.Options{Context: 16, RandomWeights: 5})
			all[i] = logitsOf(t, m)
		}()
	}
	done.Wait()
	for i, logits := range all {
		if !slices.Equal(logits, all[0]) {
			t.Errorf("model %d has other weights than model 0", i)
		}
	}
}

func logitsOf(t *testing.T, m *text.Model) (logits []float32) {
	t.Helper()
	must.Do(t, cgotorch.DefaultStream(torchtest.Device()).Do(func(x *cgotorch.Exec) error {
		logits = cgotorch.ToSlice[float32](x, m.Forward(x.NoGrad(), cgotorch.FromSlice(x, []int64{1, 2, 3}, 1, 3)))
		return nil
	}))
	return logits
}
