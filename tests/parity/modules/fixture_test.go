// Package modules_test compares modules, losses, optimizers and schedules with those of PyTorch,
// in 20 steps of training. make.py writes the fixtures.
package modules_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

const (
	seed      = 20 // SEED in make.py
	steps     = 20
	rate      = 0.1
	tolerance = 1e-9 // in float64
	roughly   = 1e-5 // in float32
)

func read(t *testing.T, name string, into any) {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name + ".json")
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	must.Do(t, err)
}

// weights is the file with the tensors that make.py has written.
type weights struct{ *safetensors.File }

func openWeights(t *testing.T) weights {
	t.Helper()
	f := must.Get(safetensors.Open("testdata/weights.safetensors"))(t)
	t.Cleanup(func() { f.Close() })
	return weights{f}
}

// tensor returns the tensor of a name.
func (w weights) tensor(x *cgotorch.Exec, name string) *cgotorch.Tensor {
	info, ok := w.Lookup(name)
	data, err := w.Read(name)
	if err != nil || !ok {
		x.Fail(name, err)
	}
	elements := len(data) / map[string]int{"F32": 4, "F64": 8, "I64": 8}[info.DType]
	shape := info.Shape
	if shape == nil {
		shape = []int64{}
	}
	if info.DType == "F32" {
		values := make([]float32, elements)
		for i := range values {
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
		return x.Reshape(cgotorch.FromSlice(x, values), shape...)
	}
	if info.DType == "I64" {
		values := make([]int64, elements)
		for i := range values {
			values[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
		}
		return x.Reshape(cgotorch.FromSlice(x, values), shape...)
	}
	values := make([]float64, elements)
	for i := range values {
		values[i] = math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
	}
	return x.Reshape(cgotorch.FromSlice(x, values), shape...)
}

// ramp returns numbers from -0.5 to 0.5 that look random. make.py uses the same numbers.
func ramp(x *cgotorch.Exec, start int, shape ...int64) *cgotorch.Tensor {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(float64(uint32(start+i)*2654435761)/(1<<32) - 0.5)
	}
	return x.Reshape(cgotorch.FromSlice(x, numbers), shape...)
}

// more returns the ramp in the dtype of `like`.
func more(x *cgotorch.Exec, like *cgotorch.Tensor, start int, shape ...int64) *cgotorch.Tensor {
	return x.To(ramp(x, start, shape...), like.DType())
}

// leaf returns a tensor that can be trained.
func leaf(t *testing.T, x *cgotorch.Exec, dtype cgotorch.DType, start int, shape ...int64) *cgotorch.Tensor {
	t.Helper()
	in := x.Clone(x.To(x.MulScalar(ramp(x, start, shape...), 2), dtype))
	must.Do(t, in.SetRequiresGrad(true))
	return in
}

func values(x *cgotorch.Exec, t *cgotorch.Tensor) []float64 {
	return cgotorch.ToSlice[float64](x, x.To(x.Detach(t), cgotorch.Float64))
}

// worst is the largest relative difference that a test has seen.
type worst struct {
	difference float64
	where      string
}

// compare fails the test if a number of `got` differs from that of `want` by more than `limit`
// times the largest magnitude of `want`.
func (w *worst) compare(t *testing.T, where string, got, want []float64, limit float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", where, len(got), len(want))
	}
	var scale float64
	for _, v := range want {
		scale = max(scale, math.Abs(v))
	}
	for i, v := range want {
		if got[i] == v {
			continue
		}
		d := math.Abs(got[i]-v) / max(scale, 1e-30)
		if d > w.difference {
			w.difference, w.where = d, where
		}
		if !(d <= limit) {
			t.Fatalf("%s: number %d is %v, want %v: off by %.2g", where, i, got[i], v, d)
		}
	}
}

// train does the steps of gradient descent on the tensors `trained`. It returns the losses.
func train(t *testing.T, x *cgotorch.Exec, trained []*cgotorch.Tensor, loss func() *cgotorch.Tensor) []float64 {
	t.Helper()
	must.Do(t, cgotorch.Seed(seed+1))
	var losses []float64
	for range steps {
		for _, p := range trained {
			must.Do(t, p.SetGrad(nil))
		}
		l := loss()
		x.Backward(l)
		for _, p := range trained {
			if g := p.Grad(); g != nil {
				x.NoGrad().AddScaledInPlace(p, g, -rate)
			}
		}
		losses = append(losses, x.Item(l))
	}
	return losses
}
