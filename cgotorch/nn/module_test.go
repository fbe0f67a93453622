package nn_test

import (
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func addOne(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.AddScalar(in, 1) }

// Sequential closes each intermediate result when the next module has run. It does not close its
// input and its result.
func TestSequential_Forward_ClosesIntermediates(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		in := x.Zeros(cgotorch.Float32, 1)
		var seen []*cgotorch.Tensor
		watch := nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
			seen = append(seen, in)
			return addOne(x, in)
		})
		pass := nn.Func(func(_ *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return in }) // breaks the contract: returns its argument
		out := nn.NewSequential(pass, watch, nil, &nn.Identity{}, watch, pass, watch).Forward(x, in)
		if got := values(x, out); !slices.Equal(got, []float32{3}) {
			t.Errorf("the result is %v, want 3", got)
		}
		if in.Closed() || seen[0] != in {
			t.Error("the input was closed or not handed on")
		}
		for i, s := range seen[1:] {
			if !s.Closed() {
				t.Errorf("intermediate %d is open", i+1)
			}
		}
	})
}

func TestSequential_Forward_Empty(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		in := x.Zeros(cgotorch.Float32, 1)
		for _, m := range []nn.Module{nn.NewSequential(), nn.NewSequential(nil), &nn.Sequential{}, nn.NewSequential(&nn.Identity{})} {
			out := m.Forward(x, in)
			if out == in {
				t.Error("the result is the input's handle")
			}
			out.Close()
			if in.Closed() {
				t.Error("closing the result closed the input")
			}
		}
	})
}

func TestResidual_Forward(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		double := nn.Func(func(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.MulScalar(in, 2) })
		for name, c := range map[string]struct {
			module *nn.Residual
			want   []float32
		}{
			"plain":      {&nn.Residual{Body: double}, []float32{-3, 6}},
			"shortcut":   {&nn.Residual{Body: double, Shortcut: nn.Func(addOne)}, []float32{-2, 7}},
			"activation": {&nn.Residual{Body: double, Activation: &nn.ReLU{}}, []float32{0, 6}},
			"in place":   {&nn.Residual{Body: double, Activation: &nn.ReLU{InPlace: true}, InPlace: true}, []float32{0, 6}},
			"identity":   {&nn.Residual{Body: &nn.Identity{}, Shortcut: &nn.Identity{}}, []float32{-2, 4}},
		} {
			in := cgotorch.FromSlice(x, []float32{-1, 2})
			before := cgotorch.LiveHandles()["tensor"]
			out := c.module.Forward(x, in)
			if got, want := cgotorch.LiveHandles()["tensor"]-before, 1; got != want {
				t.Errorf("%s: %d handles after Forward, want %d", name, got, want)
			}
			if got := values(x, out); !slices.Equal(got, c.want) {
				t.Errorf("%s: got %v, want %v", name, got, c.want)
			}
			if got := values(x, in); !slices.Equal(got, []float32{-1, 2}) {
				t.Errorf("%s: the input is now %v", name, got)
			}
		}
	})
}

// If the body's backward needs the body's result, Backward fails with InPlace. Without InPlace it
// works.
func TestResidual_Backward(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		in := cgotorch.FromSlice(x, []float32{0})
		must.Do(t, in.SetRequiresGrad(true))
		x.Backward((&nn.Residual{Body: &nn.Sigmoid{}}).Forward(x, in))
		if got := values(x, in.Grad()); got[0] != 1.25 {
			t.Errorf("the gradient is %v, want 1.25", got)
		}
	})
	err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		in := cgotorch.FromSlice(x, []float32{0})
		must.Do(t, in.SetRequiresGrad(true))
		x.Backward((&nn.Residual{Body: &nn.Sigmoid{}, InPlace: true}).Forward(x, in))
	})
	if err == nil {
		t.Error("no error from Backward through a Sigmoid that was overwritten")
	}
}

func TestActivations_InPlace(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		for name, c := range map[string]struct {
			module  nn.Module
			inPlace bool
			want    []float32
		}{
			"relu":           {&nn.ReLU{}, false, []float32{0, 3, 7}},
			"relu in place":  {&nn.ReLU{InPlace: true}, true, []float32{0, 3, 7}},
			"relu6":          {&nn.ReLU6{}, false, []float32{0, 3, 6}},
			"relu6 in place": {&nn.ReLU6{InPlace: true}, true, []float32{0, 3, 6}},
		} {
			in := cgotorch.FromSlice(x, []float32{-2, 3, 7})
			out := c.module.Forward(x, in)
			if got := values(x, out); !slices.Equal(got, c.want) {
				t.Errorf("%s: got %v, want %v", name, got, c.want)
			}
			if out == in || out.SharesMemory(in) != c.inPlace {
				t.Errorf("%s: the result is the input's handle, or shares its memory: %v", name, out.SharesMemory(in))
			}
		}
	})
}

func TestBatchNorm2d_CountsBatches(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := nn.NewBatchNorm2d(x, 1, nn.BatchNormOptions{CumulativeAverage: true})
		defer nn.Close(m)
		for _, v := range []float32{2, 4, 9} {
			m.Forward(x, cgotorch.FromSlice(x, []float32{v - 1, v + 1}, 2, 1, 1, 1))
		}
		nn.SetTraining(m, false)
		m.Forward(x, x.Zeros(cgotorch.Float32, 1, 1, 1, 1))
		if got := x.Item(m.NumBatchesTracked); got != 3 {
			t.Errorf("%v batches, want 3", got)
		}
		if got := x.Item(m.RunningMean); got < 4.999 || got > 5.001 {
			t.Errorf("the mean of the batches is %v, want 5", got)
		}
	})
}
