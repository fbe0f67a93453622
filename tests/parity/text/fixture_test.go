// Package text_test compares the text models with those of Hugging Face's transformers. make.py
// writes the fixtures.
package text_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// fixture is the data that make.py writes for one model.
type fixture struct {
	Config    json.RawMessage
	State     []stateEntry
	Runs      []run
	Generated struct {
		Open, Ended [][]int64
		EOS         int
	}
}

// run is the data of one forward pass.
type run struct {
	Masked     bool
	IDs        [][]int64
	Mask       [][]int64
	DecoderIDs [][]int64 `json:"decoder_ids"`
	Logits     []float64
	Experts    [][]int64 // for each sparse layer the experts that its tokens choose
}

// stateEntry is a list in the fixture: name, shape, start and scale.
type stateEntry struct {
	Name  string
	Shape []int64
	Start int // -1 if another entry is the same tensor
	Scale float64
}

func (e *stateEntry) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&e.Name, &e.Shape, &e.Start, &e.Scale})
}

// cases are the fixtures of whole models.
var cases = []string{"tied", "untied"}

func readCase(t *testing.T, name string) (f fixture) {
	t.Helper()
	filetest.JSON(t, filepath.Join("testdata", name+".json"), &f)
	return f
}

// random returns a model of random weights, with this config.json. The end of the test closes it.
func random(t *testing.T, x *cgotorch.Exec, config []byte, o text.SwitchOptions) *text.Switch {
	t.Helper()
	folder := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(folder, "config.json"), config, 0o644))
	o.RandomWeights = 1
	m := must.Get(text.LoadSwitch(x, o, folder))(t)
	t.Cleanup(func() { must.Check(t, m.Close()) })
	return m
}

// model returns the model of a fixture, with the weights of make.py. The end of the test closes
// it.
func model(t *testing.T, x *cgotorch.Exec, f fixture, o text.SwitchOptions) *text.Switch {
	t.Helper()
	m := random(t, x, f.Config, o)
	state := map[string]*cgotorch.Tensor{}
	for _, n := range nn.State(m) {
		state[n.Name] = n.Tensor
	}
	for _, e := range f.State {
		if to := state[e.Name]; to != nil && e.Start >= 0 {
			nn.Copy(x, to, e.tensor(x))
		}
	}
	return m
}

// tensor returns the values that make.py has given to the parameter.
func (e stateEntry) tensor(x *cgotorch.Exec) *cgotorch.Tensor {
	var shift float32
	if strings.HasSuffix(e.Name, "layer_norm.weight") {
		shift = 1
	}
	n := int64(1)
	for _, s := range e.Shape {
		n *= s
	}
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(float64(uint32((e.Start+i)*2654435761))/(1<<32)-0.5)*float32(e.Scale) + shift
	}
	return cgotorch.FromSlice(x, numbers, e.Shape...)
}

func rows(x *cgotorch.Exec, ids [][]int64) *cgotorch.Tensor {
	var all []int64
	for _, row := range ids {
		all = append(all, row...)
	}
	return cgotorch.FromSlice(x, all, int64(len(ids)), int64(len(ids[0])))
}

// inputs returns the inputs of a run: the ids, the mask or nil, and the ids of the decoder.
func (r run) inputs(x *cgotorch.Exec) (ids, mask, decoderIDs *cgotorch.Tensor) {
	if r.Masked {
		mask = rows(x, r.Mask)
	}
	return rows(x, r.IDs), mask, rows(x, r.DecoderIDs)
}

func isExpert(name string) bool { return strings.Contains(name, ".experts.") }

// wantNear fails the test unless `got` equals `want`. A number may differ by `tolerance` times
// the largest magnitude in `want`.
func wantNear(t *testing.T, what string, got []float32, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	var scale, worst float64
	for i, w := range want {
		d := math.Abs(float64(got[i]) - w)
		if math.IsNaN(d) {
			t.Fatalf("%s: number %d is %v, want %v", what, i, got[i], w)
		}
		scale, worst = max(scale, math.Abs(w)), max(worst, d)
	}
	if worst > tolerance*scale {
		t.Errorf("%s: off by %.3g of the largest magnitude, %v, want at most %v", what, worst/scale, scale, tolerance)
	}
}
