package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// returning returns a program of x [n, 2] that returns a dict of relu(x+b) and relu(x+b)+c.
func returning(t *testing.T, first, second string) string {
	const leaf = `{\"type\": null, \"context\": null, \"children_spec\": []}`
	return program(t, [][2]string{
		{`"outputs": [{"as_tensor": {"name": "add"}}],` + "\n   \"nodes\"", `"outputs": [{"as_tensor": {"name": "relu"}}, {"as_tensor": {"name": "add"}}], "nodes"`},
		{`{"user_output": {"arg": {"as_tensor": {"name": "add"}}}}`, `{"user_output": {"arg": {"as_tensor": {"name": "relu"}}}}, {"user_output": {"arg": {"as_tensor": {"name": "add"}}}}`},
		{`"out_spec": "[1, ` + leaf, `"out_spec": "[1, {\"type\": \"builtins.dict\", \"context\": \"[\\\"` + first + `\\\", \\\"` + second + `\\\"]\", \"children_spec\": [` + leaf + ", " + leaf + "]}"},
	}...)
}

// loaded returns a repository with the model net, of a program and its model.json, and why it is
// not loaded.
func loaded(t *testing.T, settings, program string) (*serve.Repository, error) {
	t.Helper()
	path := t.TempDir()
	for file, text := range map[string]string{"model.json": settings, "1/model.pt2": program} {
		file = filepath.Join(path, "net", filepath.FromSlash(file))
		must.Do(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must.Do(t, os.WriteFile(file, []byte(text), 0o600))
	}
	models := serve.NewRepository(serve.RepositoryOptions{})
	t.Cleanup(func() { models.Close() })
	f, err := openFolder(path, models, &opener{device: cgotorch.CPU, batchSizes: []int{1, 2}, log: t.Logf})
	must.Do(t, err)
	t.Cleanup(func() { f.root.Close() })
	if err = f.loadAll(context.Background()); err == nil {
		err = models.List()[0].Err
	}
	return models, err
}

// Results have Python's order and names, unless model.json gives other names in the same order.
func TestOpener_Outputs(t *testing.T) {
	torchtest.CheckLeaks(t)
	for name, c := range map[string]struct {
		first, second string // keys in Python
		settings      string
		want          []string
		refused       string
	}{
		"Python's":           {"start_logits", "end_logits", `{}`, []string{"start_logits", "end_logits"}, ""},
		"the same":           {"logits", "aux", `{"outputs": ["logits", "aux"]}`, []string{"logits", "aux"}, ""},
		"others":             {"logits", "aux", `{"outputs": ["scores", "more"]}`, []string{"scores", "more"}, ""},
		"one other":          {"logits", "aux", `{"outputs": ["scores", "aux"]}`, []string{"scores", "aux"}, ""},
		"none":               {"z", "a", `{"outputs": []}`, []string{"z", "a"}, ""},
		"exchanged":          {"logits", "aux", `{"outputs": ["aux", "logits"]}`, nil, `net/model.json: outputs has "aux" at place 0`},
		"one at another":     {"logits", "aux", `{"outputs": ["more", "logits"]}`, nil, `outputs has "logits" at place 1`},
		"too few":            {"loss", "logits", `{"outputs": ["logits"]}`, nil, `outputs has 1 names, and the model has 2 results, in this order: ["loss" "logits"]`},
		"too many":           {"logits", "aux", `{"outputs": ["a", "b", "c"]}`, nil, "outputs has 3 names"},
		"twice":              {"logits", "aux", `{"outputs": ["a", "a"]}`, nil, `the results 0 and 1 are both named "a"`},
		"twice by a default": {"logits", "aux", `{"outputs": ["output1", ""]}`, nil, `both named "output1"`},
	} {
		t.Run(name, func(t *testing.T) {
			models, err := loaded(t, c.settings, returning(t, c.first, c.second))
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) || !strings.Contains(err.Error(), "net/model.json") {
					t.Errorf("got %v, want %q", err, c.refused)
				}
				return
			}
			must.Do(t, err)
			err = models.Use(context.Background(), "net", "", func(m *serve.Model) error {
				var got []string
				for _, s := range m.Outputs() {
					got = append(got, s.Name)
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("the results are %q, want %q", got, c.want)
				}
				out, err := m.Predict(context.Background(), serve.Of([]float32{3, 4}, 1, 2))
				for i, want := range [][]float32{{4, 2}, {5, 4}} {
					if v, failed := serve.Elements[float32](out[i]); failed != nil || !slices.Equal(v, want) {
						t.Errorf("result %d is %v, want %v", i, v, want)
					}
				}
				return err
			})
			must.Check(t, err)
		})
	}
}

// A program whose results depend on the batch is served only where model.json says so.
func TestOpener_Dependent(t *testing.T) {
	torchtest.CheckLeaks(t)
	const relu = `{"target": "torch.ops.aten.relu.default", "name": "relu", "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "linear"}}, "kind": 1}],`
	mixed := program(t, [2]string{relu, strings.ReplaceAll(strings.Replace(relu, `"kind": 1}]`, `"kind": 1}, {"name": "dim", "arg": {"as_int": 0}, "kind": 1}]`, 1), "relu.default", "softmax.int")})
	_, err := loaded(t, `{}`, mixed)
	torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, "net/model.json", `result 0, "output0", of an entry changes with the other entries`)
	if _, err := loaded(t, `{"dependent": true}`, mixed); err != nil {
		t.Error(err)
	}
}

// Texts are in UTF-8, with or without a byte-order mark and in any form of lines.
func TestReadSettings_Encodings(t *testing.T) {
	labels := func(text string) (settings, error) {
		return readSettings(fstest.MapFS{"net/labels.txt": {Data: []byte(text)}, "net/model.json": {Data: []byte("\ufeff{\"softmax\": true}")}}, "net")
	}
	for _, text := range []string{"tench\nshärk\n", "\ufefftench\nshärk\n", "\ufefftench\r\nshärk\r\n", "tench\nshärk", "\ufefftench\nshärk\n\n"} {
		if s, err := labels(text); err != nil || !slices.Equal(s.labels, []string{"tench", "shärk"}) || !s.Softmax {
			t.Errorf("%q: %q, %v", text, s.labels, err)
		}
	}
	for _, text := range []string{"\xff\xfet\x00e\x00", "\xfe\xff\x00t\x00e", "sh\xe4rk\n", "t\x00e\x00"} {
		if _, err := labels(text); err == nil || !strings.Contains(err.Error(), "net/labels.txt is no text in UTF-8") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestSamplesOf(t *testing.T) {
	inputs := []serve.Spec{{Name: "ids", DType: cgotorch.Int32}, {Name: "mask", DType: cgotorch.Bool}, {Name: "x", DType: cgotorch.Float32}}
	read := func(text string) (list []serve.Array, err error) {
		var s settings
		must.Do(t, json.Unmarshal([]byte(`{"samples": `+text+`}`), &s))
		return samplesOf(inputs, s.Samples)
	}
	list := must.Get(read(`{"ids": [[1, -2], [3, 4]], "mask": [[1, 0], [1, 1]], "x": [0.5, 2]}`))(t)
	ids, err := serve.Elements[int32](list[0])
	mask, err2 := serve.Elements[bool](list[1])
	x, err3 := serve.Elements[float32](list[2])
	if err = errors.Join(err, err2, err3); err != nil || !slices.Equal(ids, []int32{1, -2, 3, 4}) || !slices.Equal(mask, []bool{true, false, true, true}) || !slices.Equal(x, []float32{0.5, 2}) || !slices.Equal(list[0].Shape, []int64{2, 2}) {
		t.Errorf("%+v, %v", list, err)
	}
	for text, want := range map[string]string{
		`{"ids": [[1, 2]], "x": [1]}`:                          `samples are for the inputs ["ids" "x"]`,
		`{"ids": [[1, 2]], "mask": [[1]], "y": [1]}`:           `"x" is one`,
		`{"ids": [[1, 2], [3]], "mask": [[1]], "x": [1]}`:      "a list of 1 values is not as long",
		`{"ids": [[1, 2], 3], "mask": [[1]], "x": [1]}`:        "3 is no number at the depth",
		`{"ids": [[1, [2]], [3, 4]], "mask": [[1]], "x": [1]}`: "not as long",
		`{"ids": [[1, 2.5]], "mask": [[1]], "x": [1]}`:         "2.5 is no int32",
		`{"ids": [[1, 4294967297]], "mask": [[1]], "x": [1]}`:  "is no int32",
		`{"ids": [[1, "2"]], "mask": [[1]], "x": [1]}`:         "2 is no number",
		`{"ids": [[1, 2]], "mask": [[2]], "x": [1]}`:           "2 is no bool",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
