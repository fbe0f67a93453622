package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func leaf(t testing.TB, x *Exec, values ...float32) *Tensor {
	p := FromSlice(x, values)
	must.Do(t, p.SetRequiresGrad(true))
	return p
}

func TestBackward(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		a, b := leaf(t, x, 1, 2), FromSlice(x, []float32{3, 4})
		x.Backward(x.Sum(x.Mul(x.Mul(a, a), b)))
		torchtest.Equal(t, x, a.Grad(), []float32{6, 16})
		if b.Grad() != nil {
			t.Error("a tensor that does not require a gradient has one")
		}
	})
}

func TestBackward_FromSeveralRoots(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		a := leaf(t, x, 1, 2)
		x.BackwardWith(BackwardOptions{Grads: []*Tensor{FromSlice(x, []float32{10, 100}), nil}}, x.Mul(a, a), x.Sum(a))
		torchtest.Equal(t, x, a.Grad(), []float32{21, 401})
	})
}

func TestBackward_Twice(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		err := torchtest.TryDo(t, d, func(x *Exec) {
			a := leaf(t, x, 1, 2)
			loss := x.Sum(x.Mul(a, a))
			x.BackwardWith(BackwardOptions{RetainGraph: true}, loss)
			x.Backward(loss)
			torchtest.Equal(t, x, a.Grad(), []float32{4, 8})
			x.Backward(loss)
		})
		wantError(t, err, ErrInvalidArgument, "Exec.Backward(float32[]", "a second time", "autograd_test.go")
	})
}

func TestBackward_Refused(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for text, fail := range map[string]func(x *Exec){
			"does not require grad": func(x *Exec) { x.Backward(x.Ones(Float32)) },
			"scalar outputs":        func(x *Exec) { x.Backward(x.Neg(leaf(t, x, 1, 2))) },
			"the tensor is nil":     func(x *Exec) { x.Backward(nil) },
			"there must be a gradient, or nil, for each root": func(x *Exec) {
				x.BackwardWith(BackwardOptions{Grads: []*Tensor{nil, nil}}, x.Sum(leaf(t, x, 1)))
			},
		} {
			wantError(t, torchtest.TryDo(t, d, fail), ErrInvalidArgument, "Exec.Backward", text, "autograd_test.go")
		}
		wantError(t, torchtest.TryDo(t, d, func(x *Exec) {
			a := leaf(t, x, 1)
			x.Backward(x.Sum(x.NoGrad().Mul(a, a)))
		}), ErrInvalidArgument, "does not require grad")
	})
}

func TestBackward_SeesAWriteSinceForward(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		for name, write := range map[string]func(x *Exec, b *Tensor){
			"in place":    func(x *Exec, b *Tensor) { x.FillInPlace(b, 1.0) },
			"CopyFrom":    func(x *Exec, b *Tensor) { CopyFrom(x, b, []float32{1, 1}) },
			"BumpVersion": func(x *Exec, b *Tensor) { b.BumpVersion() },
		} {
			t.Run(name, func(t *testing.T) {
				err := torchtest.TryDo(t, d, func(x *Exec) {
					a, b := leaf(t, x, 1, 2), FromSlice(x, []float32{3, 4})
					loss := x.Sum(x.Mul(a, b))
					write(x, b)
					x.Backward(loss)
				})
				wantError(t, err, ErrInvalidArgument, "modified by an inplace operation")
			})
		}
	})
}

func TestBackward_OfAutocast(t *testing.T) {
	torchtest.DoOnEachDevice(t, func(t *testing.T, x *Exec) {
		w := x.Ones(Float32, 2, 2)
		w.SetRequiresGrad(true)
		y := x.Autocast(BFloat16)
		y.Backward(y.Sum(y.MM(w, w)))
		if got := w.Grad().DType(); got != Float32 {
			t.Errorf("the gradient of a float32 weight is %v", got)
		}
		torchtest.Equal(t, x, w.Grad(), []float32{4, 4, 4, 4}, 2, 2)
	})
}

func TestGradients(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.Do(t, d, func(x *Exec) {
			a, b, unused := leaf(t, x, 2, 3), leaf(t, x, 5, 7), leaf(t, x, 1)
			root := x.Sum(x.Mul(x.Mul(a, a), b))
			got := x.Gradients([]*Tensor{root}, []*Tensor{a, b, unused}, GradientOptions{CreateGraph: true, AllowUnused: true})
			torchtest.Equal(t, x, got[0], []float32{20, 42})
			torchtest.Equal(t, x, got[1], []float32{4, 9})
			if got[2] != nil || a.Grad() != nil {
				t.Error("an unused input has a gradient, or gradients were accumulated")
			}
			second := x.Gradients([]*Tensor{got[0]}, []*Tensor{a}, GradientOptions{Grads: []*Tensor{FromSlice(x, []float32{1, 1})}})
			torchtest.Equal(t, x, second[0], []float32{10, 14})
		})
		err := torchtest.TryDo(t, d, func(x *Exec) {
			a, unused := leaf(t, x, 1), leaf(t, x, 1)
			x.Gradients([]*Tensor{x.Sum(a)}, []*Tensor{unused}, GradientOptions{})
		})
		wantError(t, err, ErrInvalidArgument, "Exec.Gradients", "not have been used")
	})
}
