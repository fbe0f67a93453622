// Package models_test compares the models, layers and losses with those of PyTorch. make.py writes
// the fixtures.
package models_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) {
	cgotorch.CPU.Memory() // counting begins
	torchtest.Main(m)
}

func readFixture(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

// ramp makes make.py's numbers in [-0.5, 0.5) that look random.
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

// digest is make.py's digest: a sum that changes when elements change places, and the sum of the
// magnitudes.
type digest [2]float64

func digestOf(x *cgotorch.Exec, t *cgotorch.Tensor) digest {
	x = x.NoGrad()
	numbers := x.To(t, cgotorch.Float64)
	weights := x.To(ramp(x, t.Shape()...), cgotorch.Float64)
	return digest{x.Item(x.Sum(x.Mul(numbers, weights))), x.Item(x.Sum(x.Abs(numbers)))}
}

// near compares within a part of the sum of magnitudes.
func (d digest) near(want digest, tolerance float64) bool {
	scale := want[1] + 1e-6
	return math.Abs(d[0]-want[0]) <= tolerance*scale && math.Abs(d[1]-want[1]) <= tolerance*scale
}

// distance is the largest difference, as a part of want's largest magnitude. It is infinite for
// other lengths and for NaN.
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

// stateEntry is a line [name, shape, digest...].
type stateEntry struct {
	Name   string
	Shape  []int64
	Digest digest
}

func (e *stateEntry) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&e.Name, &e.Shape, &e.Digest[0], &e.Digest[1]})
}

// shaped is [shape, digest...].
type shaped struct {
	Shape  []int64
	Digest digest
}

func (s *shaped) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&s.Shape, &s.Digest[0], &s.Digest[1]})
}
