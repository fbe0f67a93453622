// Package models_test compares the models, layers and losses with PyTorch's, from the fixtures that make.py writes.
package models_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/leaktest"
)

// make.py runs on one thread, and how sums are rounded depends on their number.
func TestMain(m *testing.M) {
	cgotorch.CPU.Memory() // counting begins
	if err := cgotorch.SetThreads(1); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
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

// devices are the CPU and, where there is one, the first CUDA device, which computes in float32 as the CPU does.
func devices(t *testing.T, run func(t *testing.T, d cgotorch.Device)) {
	t.Run("cpu", func(t *testing.T) { run(t, cgotorch.CPU) })
	t.Run("cuda", func(t *testing.T) {
		if n, err := cgotorch.CUDACount(); n == 0 {
			t.Skipf("no CUDA device: %v", err)
		}
		if err := cgotorch.SetTF32(false); err != nil {
			t.Fatal(err)
		}
		run(t, cgotorch.CUDA(0))
	})
}

// do runs fn in a Do of the device's default stream.
func do(t *testing.T, d cgotorch.Device, fn func(x *cgotorch.Exec)) {
	t.Helper()
	if err := cgotorch.DefaultStream(d).Do(func(x *cgotorch.Exec) error { fn(x); return nil }); err != nil {
		t.Fatal(err)
	}
}

// checkHandles fails the test if it ends with more handles than it began with.
func checkHandles(t *testing.T, d cgotorch.Device) {
	t.Helper()
	for _, d := range []cgotorch.Device{cgotorch.CPU, d} {
		do(t, d, func(*cgotorch.Exec) {}) // makes the default stream's handle
	}
	leaktest.Check(t, cgotorch.LiveHandles)
}

// ramp are make.py's numbers in [-0.5, 0.5) that look random.
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

// digest is make.py's: a sum that changes when elements change places, and that of the magnitudes.
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

// distance is the largest difference, as a part of want's largest magnitude; infinite for other lengths and for NaN.
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
