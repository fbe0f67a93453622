package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestTensor_Metadata(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		d := x.Device()
		a := x.Zeros(Float16, 2, 3, 4)
		view := x.Transpose(a, 0, 2)
		scalar := x.Full(Int64, 7)
		empty := x.Zeros(Float64, 3, 0)
		at := ""
		if d.IsCUDA() {
			at = "@cuda:0"
		}
		for _, c := range []struct {
			got            *Tensor
			shape, strides []int64
			dtype          DType
			numel          int64
			text           string
		}{
			{a, []int64{2, 3, 4}, []int64{12, 4, 1}, Float16, 24, "float16[2 3 4]" + at},
			{view, []int64{4, 3, 2}, []int64{1, 4, 12}, Float16, 24, "float16[4 3 2]" + at},
			{scalar, []int64{}, []int64{}, Int64, 1, "int64[]" + at},
			{empty, []int64{3, 0}, []int64{1, 1}, Float64, 0, "float64[3 0]" + at},
		} {
			g := c.got
			if !slices.Equal(g.Shape(), c.shape) || !slices.Equal(g.Strides(), c.strides) || g.Dim() != len(c.shape) ||
				g.Numel() != c.numel || g.DType() != c.dtype || g.Device() != d || g.String() != c.text {
				t.Errorf("got %v %v %d %d %v %v %q, want %+v", g.Shape(), g.Strides(), g.Dim(), g.Numel(), g.DType(), g.Device(), g, c)
			}
		}
		if StorageBytes(a) < 48 || StorageBytes(view) != StorageBytes(a) {
			t.Errorf("storages of %d and %d bytes, want 48 or a little more for both", StorageBytes(a), StorageBytes(view))
		}
		if !a.SharesMemory(view) || a.SharesMemory(scalar) {
			t.Error("SharesMemory is wrong")
		}
	})
}

func TestTensor_Dense(t *testing.T) {
	torchtest.Do(t, CPU, func(x *Exec) {
		a := x.Zeros(Float32, 4, 10)
		for _, c := range []struct {
			t    *Tensor
			want bool
		}{
			{a, true}, {x.Transpose(a, 0, 1), true}, {x.Narrow(a, 0, 1, 2), true}, {x.Narrow(a, 1, 0, 1), false}, {x.Narrow(a, 1, 0, 3), false},
			{x.Narrow(a, 1, 0, 0), true}, {x.Expand(x.Zeros(Float32, 1, 3), 2, 3), false}, {x.Zeros(Float32), true},
			{x.Contiguous(x.Zeros(Float32, 2, 3, 4, 5), ChannelsLast), true},
		} {
			if got := inside.Dense(c.t); got != c.want {
				t.Errorf("%v with strides %v: %v", c.t, c.t.Strides(), got)
			}
		}
	})
}

func TestTensor_Closed(t *testing.T) {
	torchtest.Do(t, CPU, func(x *Exec) {
		a, open := x.Ones(Float32, 2), x.Ones(Float32, 2)
		for range 2 {
			must.Do(t, a.Close())
		}
		if !a.Closed() || a.Shape() != nil || a.Strides() != nil || a.Dim() != 0 || a.Numel() != 0 || a.RequiresGrad() ||
			StorageBytes(a) != 0 || Version(a) != 0 || a.Grad() != nil || a.SharesMemory(a) || a.SharesMemory(open) ||
			open.SharesMemory(a) || a.String() != "closed" {
			t.Error("a closed tensor has metadata")
		}
		a.BumpVersion()
		wantError(t, a.SetRequiresGrad(true), ErrClosed, "Tensor.SetRequiresGrad", "tensor_test.go")
		wantError(t, a.SetGrad(open), ErrClosed, "Tensor.SetGrad", "tensor_test.go")
		wantError(t, a.SetGrad(nil), ErrClosed, "Tensor.SetGrad")
		open.SetGrad(open)
		wantError(t, open.SetGrad(a), ErrClosed, "Tensor.SetGrad")
		if open.Grad() == nil {
			t.Error("a closed gradient removed the old one")
		}
		open.SetGrad(nil) // without this call the tensor would hold itself, because it is its own gradient
		var none *Tensor
		if none.Close() != nil || none.String() != "nil" {
			t.Error("a nil tensor cannot be closed or printed")
		}
		if !none.Closed() || none.Shape() != nil || none.Strides() != nil || none.Dim() != 0 || none.Numel() != 0 || none.Device() != CPU ||
			StorageBytes(none) != 0 || open.SharesMemory(none) {
			t.Error("a nil tensor has metadata")
		}
	})
}

// HostSlice takes a dense tensor of its own dtype alone.
func TestHostSlice_Refused(t *testing.T) {
	torchtest.Do(t, CPU, func(x *Exec) {
		_, err := HostSlice[float64](x.Ones(Float32, 2))
		torchtest.WantError(t, err, ErrInvalidArgument, "want a dense tensor of float64 on the CPU")
	})
}

// Each call that uses a closed tensor fails, and the error names the call.
func TestTensor_UsedAfterClose(t *testing.T) {
	torchtest.CheckLeaks(t)
	for op, use := range map[string]func(x *Exec, a *Tensor){
		"aten::neg":      func(x *Exec, a *Tensor) { x.Neg(a) },
		"aten::cat":      func(x *Exec, a *Tensor) { x.Cat([]*Tensor{x.Ones(Float32, 1), a}, 0) },
		"aten::relu":     func(x *Exec, a *Tensor) { x.Call("aten::relu", a) },
		"aten::linear":   func(x *Exec, a *Tensor) { x.Linear(x.Ones(Float32, 1, 1), x.Ones(Float32, 1, 1), a) },
		"ToSlice":        func(x *Exec, a *Tensor) { ToSlice[float32](x, a) },
		"CopyFrom":       func(x *Exec, a *Tensor) { CopyFrom(x, a, []float32{1}) },
		"Exec.Item":      func(x *Exec, a *Tensor) { x.Item(a) },
		"Exec.Keep":      func(x *Exec, a *Tensor) { x.Keep(a) },
		"Exec.Lend":      func(x *Exec, a *Tensor) { x.Lend(a, "") },
		"Exec.Alias":     func(x *Exec, a *Tensor) { x.Alias(a) },
		"Exec.Backward":  func(x *Exec, a *Tensor) { x.Backward(a) },
		"Exec.Gradients": func(x *Exec, a *Tensor) { x.Gradients([]*Tensor{x.Ones(Float32)}, []*Tensor{a}, GradientOptions{}) },
		"Exec.Gradients ": func(x *Exec, a *Tensor) {
			x.Gradients([]*Tensor{x.Ones(Float32)}, nil, GradientOptions{Grads: []*Tensor{a}})
		},
	} {
		err := torchtest.TryDo(t, CPU, func(x *Exec) {
			a := x.Ones(Float32, 1)
			a.Close()
			use(x, a)
			t.Errorf("%s took a closed tensor", op)
		})
		if op == "Exec.Gradients " {
			op = "Exec.Gradients"
		}
		wantError(t, err, ErrClosed, op, "closed", "tensor_test.go")
	}
}

func TestTensor_Version(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		a := x.Ones(Float32, 2)
		before := Version(a)
		view := x.View(a, 2, 1)
		x.FillInPlace(view, 2.0)
		a.BumpVersion()
		if got := Version(a) - before; got != 2 {
			t.Errorf("%d writes were counted, want 2", got)
		}
	})
}

func TestTensor_SetRequiresGrad(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		a := x.Ones(Float32, 2)
		for _, on := range []bool{true, false, true} {
			if err := a.SetRequiresGrad(on); err != nil || a.RequiresGrad() != on {
				t.Errorf("SetRequiresGrad(%v): %v, %v", on, err, a.RequiresGrad())
			}
		}
		wantError(t, x.Ones(Int64, 1).SetRequiresGrad(true), ErrInvalidArgument, "Tensor.SetRequiresGrad", "floating point")
		wantError(t, x.Add(a, a).SetRequiresGrad(false), ErrInvalidArgument, "Tensor.SetRequiresGrad", "leaf")
	})
}

func TestTensor_Grad(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		var p *Tensor
		step := func(factor float64) {
			t.Helper()
			torchtest.DoOn(t, s, func(x *Exec) { x.Backward(x.Sum(x.MulScalar(p, factor))) })
		}
		check := func(want float32) {
			t.Helper()
			torchtest.DoOn(t, s, func(x *Exec) { torchtest.Equal(t, x, p.Grad(), []float32{want, want}) })
		}
		torchtest.DoOn(t, s, func(x *Exec) error { p = x.Keep(x.Ones(Float32, 2)); return p.SetRequiresGrad(true) })
		if p.Grad() != nil {
			t.Error("a gradient before the first backward")
		}
		step(3)
		first := p.Grad()
		if first == nil || p.Grad() != first {
			t.Fatal("Grad returns another handle at each call")
		}
		step(4)
		if p.Grad() != first {
			t.Error("accumulation changed the handle")
		}
		check(7)
		torchtest.DoOn(t, s, func(x *Exec) { x.ZeroInPlace(p.Grad()) })
		step(5)
		check(5)
		must.Do(t, p.SetGrad(nil))
		if p.Grad() != nil || !first.Closed() {
			t.Error("SetGrad(nil) leaves a gradient or its handle")
		}
		step(2)
		if p.Grad() == first {
			t.Error("a new gradient has the old one's handle")
		}
		check(2)
		torchtest.DoOn(t, s, func(x *Exec) error {
			mine := x.Full(Float32, 9.0, 2)
			return p.SetGrad(mine)
		})
		check(9)
		if got := liveTensors(); got != 2 {
			t.Errorf("%d tensors live, want p and its gradient", got)
		}
		p.Close()
		if got := liveTensors(); got != 0 {
			t.Errorf("%d tensors live after Close", got)
		}
	})
}

func TestTensor_GradInsideADo(t *testing.T) {
	torchtest.Do(t, CPU, func(x *Exec) {
		p := x.Ones(Float32, 2)
		p.SetRequiresGrad(true)
		x.Backward(x.Sum(p))
		g := p.Grad()
		result := x.Tidy(func() *Tensor { return x.Neg(g) })
		if g.Closed() {
			t.Error("Tidy closed a gradient, which belongs to its parameter")
		}
		torchtest.Equal(t, x, result, []float32{-1, -1})
	})
}

func TestTensor_SetGrad_Refused(t *testing.T) {
	torchtest.Do(t, CPU, func(x *Exec) {
		p := x.Ones(Float32, 2)
		wantError(t, p.SetGrad(x.Ones(Float32, 3)), ErrInvalidArgument, "Tensor.SetGrad",
			"must have the shape, dtype and device of its tensor, [2] of Float on cpu; got [3] of Float on cpu")
		wantError(t, p.SetGrad(x.Ones(Float64, 2)), ErrInvalidArgument, "Tensor.SetGrad", "got [2] of Double")
	})
}
