// Package models_test compares models, layers and losses with those of PyTorch. make.py writes
// the fixtures.
package models_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) {
	cgotorch.CPU.Memory() // this call starts the counter of memory
	torchtest.Main(m)
}

func readFixture(t *testing.T, name string, into any) {
	t.Helper()
	data := must.Get(os.ReadFile(filepath.Join("testdata", name+".json")))(t)
	must.Do(t, json.Unmarshal(data, into))
}

// ramp returns numbers from -0.5 to 0.5 that look random. make.py uses the same numbers.
func ramp(x *cgotorch.Exec, shape ...int64) *cgotorch.Tensor { return rampFrom(x, 0, shape...) }

func rampFrom(x *cgotorch.Exec, start int, shape ...int64) *cgotorch.Tensor {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(float64(uint32(start+i)*2654435761)/(1<<32) - 0.5)
	}
	return cgotorch.FromSlice(x, numbers, shape...)
}

// digest holds two sums over the elements of a tensor. make.py computes the same sums. The first
// sum changes if two elements are exchanged. The second sum adds up the magnitudes of the
// elements.
type digest [2]float64

func digestOf(x *cgotorch.Exec, t *cgotorch.Tensor) digest {
	x = x.NoGrad()
	numbers := x.To(t, cgotorch.Float64)
	weights := x.To(ramp(x, t.Shape()...), cgotorch.Float64)
	return digest{x.Item(x.Sum(x.Mul(numbers, weights))), x.Item(x.Sum(x.Abs(numbers)))}
}

// near reports whether d equals `want`. Each sum may differ by `tolerance` times the sum of the
// magnitudes.
func (d digest) near(want digest, tolerance float64) bool {
	scale := want[1] + 1e-6
	return math.Abs(d[0]-want[0]) <= tolerance*scale && math.Abs(d[1]-want[1]) <= tolerance*scale
}

// distance returns the largest difference between `got` and `want`, divided by the largest
// magnitude in `want`. It is infinite if the lengths differ or a number is NaN.
func distance(got, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	var scale, worst float64
	for i, w := range want {
		d := math.Abs(got[i] - w)
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		scale, worst = max(scale, math.Abs(w)), max(worst, d)
	}
	return worst / max(scale, 1e-30)
}

// stateEntry is a list in the fixture: name, shape and the two numbers of the digest.
type stateEntry struct {
	Name   string
	Shape  []int64
	Digest digest
}

func (e *stateEntry) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&e.Name, &e.Shape, &e.Digest[0], &e.Digest[1]})
}

// shaped is a list in the fixture: shape and the two numbers of the digest.
type shaped struct {
	Shape  []int64
	Digest digest
}

func (s *shaped) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&s.Shape, &s.Digest[0], &s.Digest[1]})
}
