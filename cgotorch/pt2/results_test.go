package pt2_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/pt2"
	"github.com/streamtorch/streamtorch/cgotorch/pt2/internal/pt2test"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// pythonResult is a line of testdata/results.jsonl, which testdata/results.py has written.
type pythonResult struct {
	Returns     string      `json:"returns"`
	OutSpec     string      `json:"out_spec"`
	Outputs     string      `json:"outputs"`
	NamedTuples string      `json:"named_tuples"`
	Nodes       string      `json:"nodes"`
	Names       []string    `json:"names"`
	Values      [][]float32 `json:"values"`
}

// file returns the small program with these results.
func (r pythonResult) file(t *testing.T) []byte {
	t.Helper()
	quoted := must.Get(json.Marshal(r.OutSpec))(t)
	var outputs []json.RawMessage
	must.Do(t, json.Unmarshal([]byte(r.Outputs), &outputs))
	var specs []string
	for _, o := range outputs {
		specs = append(specs, fmt.Sprintf(`{"user_output": {"arg": %s}}`, o))
	}
	made := pt2test.Entries()
	for _, change := range [][2]string{
		{`"out_spec": "[1, {\"type\": null, \"context\": null, \"children_spec\": []}]"`, `"out_spec": ` + string(quoted)},
		{`"outputs": [{"as_tensor": {"name": "add"}}],` + "\n   \"nodes\": [", `"outputs": ` + r.Outputs + `, "nodes": [` + r.Nodes},
		{`"output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "add"}}}}]`, `"output_specs": [` + strings.Join(specs, ",") + "]"},
		{`"module_call_graph"`, `"treespec_namedtuple_fields": ` + r.NamedTuples + `, "module_call_graph"`},
	} {
		if !strings.Contains(made["models/model.json"], change[0]) {
			t.Fatalf("the program has no %s", change[0])
		}
		made["models/model.json"] = strings.Replace(made["models/model.json"], change[0], change[1], 1)
	}
	return pt2test.Archive(t, made)
}

func pythonResults(t *testing.T, text []byte) (list []pythonResult) {
	t.Helper()
	for line := range bytes.Lines(text) {
		var r pythonResult
		must.Do(t, json.Unmarshal(line, &r))
		list = append(list, r)
	}
	return list
}

// The names and the order are those of Python, for dicts, tuples, dataclasses and what they hold.
func TestProgram_Outputs(t *testing.T) {
	torchtest.CheckLeaks(t)
	text := must.Get(os.ReadFile("testdata/results.jsonl"))(t)
	list := pythonResults(t, text)
	if len(list) < 30 {
		t.Fatalf("results.jsonl has %d lines", len(list))
	}
	for _, r := range list {
		for _, o := range []pt2.Options{{}, {Fuse: true}} {
			torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
				x = x.NoGrad()
				p, err := load(x, r.file(t), o)
				if err != nil {
					return fmt.Errorf("%s: %w", r.Returns, err)
				}
				defer p.Close()
				if got := p.Outputs(); !slices.Equal(got, r.Names) {
					t.Errorf("%s: the names are %q, want %q", r.Returns, got, r.Names)
				}
				got := p.Tensors(x, pt2.Keywords{"x": cgotorch.FromSlice(x, []float32{1, -2, 3, 4}, 2, 2)})
				if len(got) != len(r.Values) {
					t.Errorf("%s: %d tensors, want %d", r.Returns, len(got), len(r.Values))
				}
				for i := range min(len(got), len(r.Values)) {
					if v := cgotorch.ToSlice[float32](x, got[i]); !slices.Equal(v, r.Values[i]) {
						t.Errorf("%s: tensor %d is %v, want %v", r.Returns, i, v, r.Values[i])
					}
				}
				return nil
			})
		}
	}
}

// The stored results are what the peer's PyTorch writes and returns today.
func TestProgram_Outputs_Peer(t *testing.T) {
	python := os.Getenv("CGOTORCH_PEER")
	if python == "" {
		t.Skip("CGOTORCH_PEER is not set: it is the path of a Python with torch 2.11 and transformers")
	}
	made := must.Get(exec.Command(python, "testdata/results.py").Output())(t)
	stored := must.Get(os.ReadFile("testdata/results.jsonl"))(t)
	if !bytes.Equal(made, stored) {
		t.Errorf("testdata/results.jsonl is not what results.py writes: write it anew")
	}
}

// Two keys that are one in Go would lose a result.
func TestLoad_EqualKeys(t *testing.T) {
	const leaf = `{"type": null, "context": null, "children_spec": []}`
	r := pythonResult{
		OutSpec:     `[1, {"type": "builtins.dict", "context": "[1, \"1\"]", "children_spec": [` + leaf + `, ` + leaf + `]}]`,
		Outputs:     `[{"as_tensor": {"name": "relu"}}, {"as_tensor": {"name": "add"}}]`,
		NamedTuples: "{}",
	}
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		p, err := load(x, r.file(t), pt2.Options{})
		torchtest.WantError(t, err, pt2.ErrFormat, `a builtins.dict of 2 values has 1 different keys: ["1"]`)
		p.Close()
	})
}
