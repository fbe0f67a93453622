package checkpoint

import (
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/pth"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// tiedModel has three weights, which are one tensor if they are tied.
type tiedModel struct{ Aux, Embed, Head *cgotorch.Tensor }

func newTiedModel(x *cgotorch.Exec, tied bool) *tiedModel {
	m := &tiedModel{Aux: x.Zeros(cgotorch.Float32, 2)}
	m.Embed, m.Head = m.Aux, m.Aux
	if !tied {
		m.Embed, m.Head = x.Zeros(cgotorch.Float32, 2), x.Zeros(cgotorch.Float32, 2)
	}
	return m
}

// A file has a tied weight under one name or under several. Its metadata may note the other names,
// as those of Python's save_model do for one file, and those of save_torch_model in the index of
// shards.
func TestLoadModel_Tied(t *testing.T) {
	u8 := func(name string, values ...byte) safetensors.Tensor {
		return safetensors.Tensor{Name: name, DType: "U8", Shape: []int64{int64(len(values))}, Data: values}
	}
	type notes = map[string]string
	noted := notes{"embed": "aux", "head": "aux", "format": "pt"}
	for name, c := range map[string]struct {
		tensors []safetensors.Tensor
		notes   notes
		o       nn.LoadOptions
		tied    string // the values of the three weights of a model with a tie, or the error
		untied  string
	}{
		"each name": {tensors: []safetensors.Tensor{u8("aux", 7, 8), u8("embed", 7, 8), u8("head", 7, 8)}, tied: "7 7 7", untied: "7 7 7"},
		"two values": {tensors: []safetensors.Tensor{u8("aux", 7, 8), u8("embed", 7, 8), u8("head", 7, 9)},
			tied: "one tensor for aux and head, and their stored values differ", untied: "7 7 7"},
		"one name":              {tensors: []safetensors.Tensor{u8("head", 7, 8)}, tied: "7 7 7", untied: "2 missing: aux, embed"},
		"a note":                {tensors: []safetensors.Tensor{u8("aux", 7, 8)}, notes: noted, tied: "7 7 7", untied: "7 7 7"},
		"a note, not strict":    {tensors: []safetensors.Tensor{u8("aux", 7, 8)}, notes: noted, o: nn.LoadOptions{AllowMissing: true}, tied: "7 7 7", untied: "7 7 7"},
		"a note of one name":    {tensors: []safetensors.Tensor{u8("aux", 7, 8), u8("head", 6, 6)}, notes: notes{"embed": "aux"}, tied: "one tensor for aux and head", untied: "7 7 6"},
		"a note, and a tensor":  {tensors: []safetensors.Tensor{u8("aux", 7, 8), u8("embed", 6, 6), u8("head", 5, 5)}, notes: noted, tied: "one tensor for aux and embed", untied: "7 6 5"},
		"a note of none":        {tensors: []safetensors.Tensor{u8("aux", 7, 8)}, notes: notes{"head": "none", "embed": "head"}, tied: "7 7 7", untied: "2 missing: embed, head"},
		"a note of no model":    {tensors: []safetensors.Tensor{u8("aux", 7, 8)}, notes: notes{"head": "aux", "embed": "aux", "other": "aux"}, tied: "7 7 7", untied: "7 7 7"},
		"a note of other sizes": {tensors: []safetensors.Tensor{u8("aux", 7, 8), u8("wide", 1, 2, 3)}, notes: notes{"head": "wide", "embed": "aux"}, o: nn.LoadOptions{AllowUnexpected: true}, tied: "7 7 7", untied: "1 missing: head"},
		"a note and a prefix":   {tensors: []safetensors.Tensor{u8("m.aux", 7, 8), u8("x", 1)}, notes: notes{"m.head": "m.aux", "m.embed": "m.aux"}, o: nn.LoadOptions{Prefix: "m."}, tied: "7 7 7", untied: "7 7 7"},
		"a note that is renamed": {tensors: []safetensors.Tensor{u8("wte", 7, 8), u8("aux", 7, 8)}, notes: notes{"lm_head": "wte"}, o: nn.LoadOptions{Rename: func(name string) string {
			return strings.NewReplacer("wte", "embed", "lm_head", "head").Replace(name)
		}}, tied: "7 7 7", untied: "7 7 7"},
		"a note that is skipped": {tensors: []safetensors.Tensor{u8("aux", 7, 8)}, notes: noted, o: nn.LoadOptions{Skip: func(name string) bool { return name == "head" }}, tied: "7 7 7", untied: "7 7 0"},
	} {
		folder := t.TempDir()
		paths := map[string]string{"safetensors": filepath.Join(folder, "m.safetensors"), "shards": filepath.Join(folder, "m.json")}
		err := safetensors.WriteFile(paths["safetensors"], c.tensors, c.notes)
		// The index of the shards has the notes, and the shards have none.
		index, comma := `{"metadata": {"total_size": 6`, `}, "weight_map": {`
		for _, name := range slices.Sorted(maps.Keys(c.notes)) {
			index += fmt.Sprintf(", %q: %q", name, c.notes[name])
		}
		for i, tensor := range c.tensors {
			shard := fmt.Sprintf("%d.safetensors", i)
			err = errors.Join(err, safetensors.WriteFile(filepath.Join(folder, shard), c.tensors[i:i+1], map[string]string{"format": "pt"}))
			index += fmt.Sprintf("%s%q: %q", comma, tensor.Name, shard)
			comma = ", "
		}
		must.Do(t, errors.Join(err, os.WriteFile(paths["shards"], []byte(index+"}}"), 0o644)))
		if c.notes == nil {
			paths["pth"] = filepath.Join(folder, "m.pth")
			file, err := os.Create(paths["pth"])
			must.Do(t, errors.Join(err, pth.Write(file, c.tensors), file.Close()))
		}
		for kind, path := range paths {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
				for _, tied := range []bool{true, false} {
					m := newTiedModel(x, tied)
					err := LoadModel(x, path, m, c.o)
					got := fmt.Sprint(x.Item(x.Select(m.Aux, 0, 0)), x.Item(x.Select(m.Embed, 0, 0)), x.Item(x.Select(m.Head, 0, 0)))
					want := map[bool]string{true: c.tied, false: c.untied}[tied]
					if want[0] > '9' || strings.Contains(want, "missing") {
						if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "checkpoint: ") != 1 || got != "0 0 0" {
							t.Errorf("%s, %s, tied %v: %v and %s, want %q", name, kind, tied, err, got, want)
						}
					} else if err != nil || got != want {
						t.Errorf("%s, %s, tied %v: %v and %s, want %s", name, kind, tied, err, got, want)
					}
				}
			})
		}
	}
}

// A run of a model with tied weights goes on from its own checkpoint, and from one whose weights
// have parted only in a model without the tie.
func TestLoad_Tied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.safetensors")
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		saved := newTiedModel(x, true)
		nn.Copy(x, saved.Aux, x.Full(cgotorch.Float32, 4, 2))
		must.Do(t, Save(x, path, Checkpoint{Model: saved}))
		for _, tied := range []bool{true, false} {
			m := newTiedModel(x, tied)
			if _, err := load(x, path, m, nil); err != nil || x.Item(x.Sum(m.Head)) != 8 {
				t.Errorf("tied %v: %v", tied, err)
			}
		}
		parted := newTiedModel(x, false)
		nn.Copy(x, parted.Head, x.Full(cgotorch.Float32, 4, 2))
		must.Do(t, Save(x, path, Checkpoint{Model: parted}))
		m := newTiedModel(x, true)
		if _, err := load(x, path, m, nil); err == nil || !strings.Contains(err.Error(), "their stored values differ") || x.Item(x.Sum(m.Head)) != 0 {
			t.Errorf("weights that have parted: %v", err)
		}
	})
}
