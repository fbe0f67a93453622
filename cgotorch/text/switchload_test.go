package text_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// tensorsOf returns the state of m as the tensors of a safetensors file.
func tensorsOf(x *cgotorch.Exec, m *text.Switch) map[string]safetensors.Tensor {
	tensors := map[string]safetensors.Tensor{}
	for _, n := range nn.State(m) {
		tensors[n.Name] = stored(n.Name, n.Tensor.Shape(), cgotorch.ToBytes(x, n.Tensor))
	}
	return tensors
}

func stored(name string, shape []int64, data []byte) safetensors.Tensor {
	return safetensors.Tensor{Name: name, DType: "F32", Shape: shape, Data: data}
}

func writeFile(t *testing.T, path string, tensors map[string]safetensors.Tensor) {
	t.Helper()
	list := make([]safetensors.Tensor, 0, len(tensors))
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		list = append(list, tensors[name])
	}
	must.Do(t, safetensors.WriteFile(path, list, nil))
}

func writeJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(path, data, 0o644)
	}
	must.Do(t, err)
}

// forward returns the logits of m for a few tokens.
func forward(x *cgotorch.Exec, m *text.Switch) []float32 {
	ids := cgotorch.FromSlice(x, []int64{3, 1, 4, 1, 5, 9}, 1, 6)
	return cgotorch.ToSlice[float32](x, x.To(m.Logits(x, ids, nil, ids), cgotorch.Float32))
}

func TestLoadSwitch(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		for _, tied := range []bool{true, false} {
			config := tiny()
			config.TieWordEmbeddings = tied
			m := randomSwitch(t, x, config, text.SwitchOptions{})
			defer nn.Close(m)
			want := forward(x, m)
			if !tied { // older files lack the two embeddings, which then equal the shared embedding
				for _, e := range []*nn.Embedding{m.Encoder.EmbedTokens, m.Decoder.EmbedTokens} {
					nn.Copy(x, e.Weight, m.Shared.Weight)
				}
				want = forward(x, m)
			}
			all := tensorsOf(x, m)
			without := func(names ...string) map[string]safetensors.Tensor {
				some := maps.Clone(all)
				for _, name := range names {
					delete(some, name)
				}
				return some
			}
			variants := map[string]map[string]safetensors.Tensor{
				"every name":           all,
				"without embed_tokens": without("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
			}
			if tied {
				variants["shared alone"] = without("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
				variants["embed_tokens alone"] = without("shared.weight", "decoder.embed_tokens.weight", "lm_head.weight")
				variants["head alone"] = without("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
			}
			for name, tensors := range variants {
				folder := t.TempDir()
				whole := filepath.Join(folder, "model.safetensors")
				writeFile(t, whole, tensors)
				writeJSON(t, filepath.Join(folder, "config.json"), config)

				shards := t.TempDir()
				writeJSON(t, filepath.Join(shards, "config.json"), config)
				parts, index := [3]map[string]safetensors.Tensor{{}, {}, {}}, map[string]string{}
				for i, name := range slices.Sorted(maps.Keys(tensors)) {
					parts[i%3][name] = tensors[name]
					index[name] = fmt.Sprintf("model-%05d-of-00003.safetensors", i%3+1)
				}
				var files []string
				for i, part := range parts {
					files = append(files, filepath.Join(shards, fmt.Sprintf("model-%05d-of-00003.safetensors", i+1)))
					writeFile(t, files[i], part)
				}
				writeJSON(t, filepath.Join(shards, "model.safetensors.index.json"), map[string]any{"metadata": map[string]any{}, "weight_map": index})

				for _, paths := range [][]string{{folder}, {whole}, {shards}, files} {
					loaded, err := text.LoadSwitch(x, text.SwitchOptions{}, paths...)
					if err != nil {
						return fmt.Errorf("tied=%v, %s, %v: %w", tied, name, paths, err)
					}
					if got := forward(x, loaded); !slices.Equal(got, want) {
						t.Errorf("tied=%v, %s, %v: the logits are others", tied, name, paths)
					}
					nn.Close(loaded)
				}
				held := must.Get(text.LoadSwitch(x, text.SwitchOptions{Slots: 1, DType: cgotorch.BFloat16}, folder))(t)
				for i, n := range nn.State(held) {
					if n.Tensor.DType() != cgotorch.BFloat16 || !x.Equal(n.Tensor, x.To(nn.State(m)[i].Tensor, cgotorch.BFloat16)) {
						t.Errorf("%s is %v, want that of the model in bfloat16", n.Name, n.Tensor)
					}
				}
				must.Check(t, held.Close())
			}
		}
		return nil
	})
}

func TestSwitch_Load_Refuses(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		m := randomSwitch(t, x, tiny(), text.SwitchOptions{})
		defer nn.Close(m)
		before := forward(x, m)
		all := tensorsOf(x, m)
		const name = "decoder.block.1.layer.2.mlp.experts.expert_2.wo.weight"
		folder := t.TempDir()
		path := filepath.Join(folder, "model.safetensors")
		writeJSON(t, filepath.Join(folder, "config.json"), tiny())
		for _, test := range []struct {
			name   string
			change func(tensors map[string]safetensors.Tensor)
			want   []string
		}{
			{"missing", func(tensors map[string]safetensors.Tensor) { delete(tensors, name) }, []string{path, name, "missing"}},
			{"of another shape", func(tensors map[string]safetensors.Tensor) {
				tensors[name] = stored(name, []int64{12, 8}, make([]byte, 4*96))
			}, []string{path, name, "F32[12 8]", "[8 12]"}},
			{"of another dtype", func(tensors map[string]safetensors.Tensor) {
				tensors[name] = safetensors.Tensor{Name: name, DType: "I8", Shape: []int64{8, 12}, Data: make([]byte, 96)}
			}, []string{path, name, "I8"}},
			{"unknown", func(tensors map[string]safetensors.Tensor) {
				tensors["encoder.block.7.bias"] = stored("encoder.block.7.bias", []int64{1}, make([]byte, 4))
			}, []string{path, "encoder.block.7.bias", "not the model's"}},
			{"of more experts", func(tensors map[string]safetensors.Tensor) {
				other := "decoder.block.1.layer.2.mlp.experts.expert_3.wi.weight"
				tensors[other] = stored(other, []int64{12, 8}, make([]byte, 4*96))
			}, []string{path, "expert_3", "not the model's"}},
			{"all missing", func(tensors map[string]safetensors.Tensor) {
				clear(tensors)
				tensors["a"] = stored("a", nil, make([]byte, 4))
			}, []string{"more"}},
		} {
			tensors := maps.Clone(all)
			test.change(tensors)
			writeFile(t, path, tensors)
			torchtest.WantError(t, m.Load(x, path), cgotorch.ErrInvalidArgument, test.want...)
			_, err := text.LoadSwitch(x, text.SwitchOptions{}, folder)
			torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, test.want...)
		}
		writeFile(t, path, all)
		twice := filepath.Join(t.TempDir(), "again.safetensors")
		writeFile(t, twice, map[string]safetensors.Tensor{name: all[name]})
		torchtest.WantError(t, m.Load(x, path, twice), cgotorch.ErrInvalidArgument, path, twice, name)
		if err := os.WriteFile(twice, []byte("no such thing"), 0o644); err != nil {
			return err
		}
		if err := m.Load(x, twice); err == nil || !strings.Contains(err.Error(), twice) {
			t.Errorf("a damaged file: got error %v", err)
		}
		if !slices.Equal(forward(x, m), before) {
			t.Error("a load that failed has changed the model")
		}
		return nil
	})
}

func TestLoadSwitch_Folder_Refuses(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		folder := t.TempDir()
		load := func(want ...string) {
			t.Helper()
			_, err := text.LoadSwitch(x, text.SwitchOptions{}, folder)
			if err == nil {
				t.Fatal("it loads")
			}
			for _, part := range want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got error %q, want %q in it", err, part)
				}
			}
		}
		load(folder, "config.json")
		writeJSON(t, filepath.Join(folder, "config.json"), tiny())
		load(folder, "neither")
		index := filepath.Join(folder, "model.safetensors.index.json")
		writeJSON(t, index, map[string]any{"weight_map": map[string]string{"shared.weight": "../elsewhere.safetensors"}})
		load(index, "shared.weight")
		writeJSON(t, index, map[string]any{})
		load(index, "empty")
		writeJSON(t, index, map[string]any{"weight_map": map[string]string{"shared.weight": "gone.safetensors"}})
		load("gone.safetensors")
		_, err := text.LoadSwitch(x, text.SwitchOptions{})
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "no file")
	})
}
