package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// A guardedProgram is a program of package pt2's corpus, and what PyTorch does with it.
type guardedProgram struct {
	Name  string
	Model json.RawMessage
	Calls []struct {
		Args []struct {
			Tensor     []int64
			Transposed bool
		}
		Kwargs  map[string]any
		Refused bool
		Result  []struct {
			Shape  []int64
			Values []string
		}
	}
}

// guardedPrograms returns the programs by name.
func guardedPrograms(t *testing.T) map[string]*guardedProgram {
	data := must.Get(os.ReadFile("../../cgotorch/pt2/testdata/guards/programs.jsonl"))(t)
	programs := map[string]*guardedProgram{}
	for line := range bytes.Lines(data) {
		var p guardedProgram
		must.Do(t, json.Unmarshal(line, &p))
		programs[p.Name] = &p
	}
	return programs
}

// file returns the .pt2 of a program.
func (p *guardedProgram) file(t *testing.T) string {
	return archiveOf(t, map[string]string{"models/model.json": string(p.Model), "data/weights/model_weights_config.json": `{"config": {}}`,
		"data/constants/model_constants_config.json": `{"config": {}}`})
}

// added returns what a program adds to each element, as its calls in PyTorch show.
func (p *guardedProgram) added(t *testing.T) float32 {
	for _, c := range p.Calls {
		if !c.Refused && len(c.Result[0].Values) > 0 {
			first := must.Get(strconv.ParseFloat(c.Result[0].Values[0], 32))(t)
			return float32(first) + 1 // the first element of the argument is -1
		}
	}
	t.Fatalf("%s: PyTorch refuses all calls", p.Name)
	return 0
}

// A request gets PyTorch's result, or an error, for each program of the corpus.
func TestOpener_GuardedCorpus(t *testing.T) {
	torchtest.CheckLeaks(t)
	served := 0
	for _, p := range guardedPrograms(t) {
		for i, c := range p.Calls {
			if len(c.Args) != 1 || len(c.Kwargs) > 0 || len(c.Args[0].Tensor) != 2 || c.Args[0].Transposed || slices.Contains(c.Args[0].Tensor, 0) {
				continue // lists and dicts cannot be served, and requests are not empty
			}
			shape := c.Args[0].Tensor
			models, err := loaded(t, fmt.Sprintf(`{"lengths": [%d], "batch_sizes": [%d]}`, shape[1], shape[0]), p.file(t))
			if err != nil { // or the results depend on the batch
				models, err = loaded(t, fmt.Sprintf(`{"batch_sizes": [%d]}`, shape[0]), p.file(t))
			}
			var got []serve.Array
			if err == nil {
				values := make([]float32, shape[0]*shape[1])
				for k := range values {
					values[k] = float32(k%5 - 1)
				}
				got, err = models.Predict(context.Background(), "net", "", serve.Of(values, shape...))
			}
			if err != nil {
				continue
			}
			served++
			if c.Refused { // the batch was cut or padded to a size that PyTorch accepts, where x becomes x+1 or x-1
				added := p.added(t)
				values := must.Get(serve.Elements[float32](got[0]))(t)
				for k, v := range values {
					if want := float32(k%5-1) + added; v != want {
						t.Errorf("%s: call %d, which PyTorch refuses: element %d is %v, want %v", p.Name, i, k, v, want)
					}
				}
				continue
			}
			for k, want := range c.Result {
				values, err := serve.Elements[float32](got[k])
				if err != nil || !slices.Equal(got[k].Shape, want.Shape) {
					t.Fatalf("%s: call %d: result %d is %v (%v), want %v", p.Name, i, k, got[k].Shape, err, want.Shape)
				}
				for j, v := range values {
					if w, err := strconv.ParseFloat(want.Values[j], 64); err != nil || v != float32(w) {
						t.Errorf("%s: call %d: element %d of result %d is %v, want %v", p.Name, i, j, k, v, want.Values[j])
					}
				}
			}
		}
	}
	if served < 40 {
		t.Errorf("%d requests are served, want 40 or more", served)
	}
	t.Logf("%d requests are served", served)
}

// Programs are served with the lengths and batch sizes for which their guards hold. A program
// returns twice its input where it runs.
func TestOpener_Guards(t *testing.T) {
	torchtest.CheckLeaks(t)
	programs := guardedPrograms(t)
	for _, c := range []struct {
		program, settings string
		lengths           []int  // of requests
		fails             string // loading fails with this error
	}{
		{"length", `{"lengths": [4, 5, 6]}`, []int{4, 3, 6, 5, 1}, ""},
		{"length", `{"lengths": [5, 7]}`, nil, "no length and no batch size fits"},
		{"length", `{"lengths": [4]}`, []int{4, 2}, ""},
		{"batch", `{"lengths": [3], "batch_sizes": [1, 2, 4]}`, []int{3, 3, 3}, ""},
		{"batch", `{"lengths": [3], "batch_sizes": [1, 3]}`, nil, "dimension 0 of the input x is"},
		{"length_and_batch", `{"lengths": [3, 12], "batch_sizes": [1, 4]}`, []int{3, 12, 3}, ""},
		{"length_and_batch", `{"lengths": [30, 40]}`, nil, "x.size()"},
	} {
		t.Run(c.program+c.settings, func(t *testing.T) {
			models, err := loaded(t, c.settings, programs[c.program].file(t))
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("the error is %v, want %q", err, c.fails)
				}
				return
			}
			must.Do(t, err)
			for _, length := range c.lengths {
				values := make([]float32, length)
				for i := range values {
					values[i] = float32(i + 1)
				}
				got, err := models.Predict(context.Background(), "net", "", serve.Of(values, 1, int64(length)))
				if err != nil {
					t.Errorf("length %d: %v", length, err)
					continue
				}
				results := must.Get(serve.Elements[float32](got[0]))(t)
				for i, v := range results[:length] {
					if v != 2*values[i] {
						t.Errorf("length %d: element %d is %v, want %v", length, i, v, 2*values[i])
					}
				}
			}
		})
	}
}
