package optim

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestClipGradNorm(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p, none := param(x, 0, 0), x.Zeros(cgotorch.Float32, 2)
		half := x.To(param(x, 0), cgotorch.BFloat16) // so the common norm spans two dtypes
		for _, c := range []struct {
			grad, half float64
			norm, max  float64
			want       float64 // an element of p's gradient after the clipping
		}{
			{1, 1, math.Sqrt(3), 10, 1},
			{2, 1, 3, 1.5, 1},
			{2, 1, 3, 0, 0},
			{0, 0, 0, 1, 0},
			{math.Inf(1), 1, math.Inf(1), 1, math.NaN()},
		} {
			setGrad(x, p, c.grad)
			setGrad(x, half, c.half)
			norm := ClipGradNorm(x, []*cgotorch.Tensor{p, none, half}, c.max)
			if got := x.Item(norm); math.Abs(got-c.norm) > 1e-6 && got != c.norm {
				t.Errorf("gradients %v, %v: norm %v, want %v", c.grad, c.half, got, c.norm)
			}
			for _, got := range values(x, p.Grad()) {
				if math.Abs(float64(got)-c.want) > 1e-5 || math.IsNaN(c.want) != math.IsNaN(float64(got)) {
					t.Errorf("gradients %v, %v: clipped to %v, want %v", c.grad, c.half, got, c.want)
				}
			}
		}
		if got := x.Item(ClipGradNorm(x, []*cgotorch.Tensor{none}, 1)); got != 0 {
			t.Errorf("norm of no gradients is %v", got)
		}
		return nil
	})
}

func TestClipGradNorm_Refuses(t *testing.T) {
	for _, limit := range []float64{-1, math.NaN()} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			ClipGradNorm(x, []*cgotorch.Tensor{param(x, 1)}, limit)
			return nil
		})
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "a largest norm of") {
			t.Errorf("largest norm %v: %v", limit, err)
		}
	}
}

// A parameter that is nil or closed is no parameter without a gradient.
func TestClip_RefusesParameters(t *testing.T) {
	for name, clip := range map[string]func(x *cgotorch.Exec, params []*cgotorch.Tensor){
		"ClipGradNorm":  func(x *cgotorch.Exec, params []*cgotorch.Tensor) { ClipGradNorm(x, params, 1) },
		"ClipGradValue": func(x *cgotorch.Exec, params []*cgotorch.Tensor) { ClipGradValue(x, params, 1) },
	} {
		closed := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			p := param(x, 1)
			p.Close()
			clip(x, []*cgotorch.Tensor{param(x, 1), p})
			return nil
		})
		none := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error { clip(x, []*cgotorch.Tensor{nil}); return nil })
		if !errors.Is(closed, cgotorch.ErrClosed) || !strings.Contains(closed.Error(), name) || !strings.Contains(closed.Error(), "parameter 1") {
			t.Errorf("closed: %v", closed)
		}
		if !errors.Is(none, cgotorch.ErrInvalidArgument) || !strings.Contains(none.Error(), "parameter 0 is nil") {
			t.Errorf("nil: %v", none)
		}
	}
}

func TestClipGradValue(t *testing.T) {
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
		p, half, none := param(x, 1, 1, 1), x.To(param(x, 1), cgotorch.BFloat16), x.Zeros(cgotorch.Float32)
		if err := p.SetGrad(cgotorch.FromSlice(x, []float32{-3, 0.5, 2})); err != nil {
			return err
		}
		setGrad(x, half, -2)
		ClipGradValue(x, []*cgotorch.Tensor{p, none, half}, 0.75)
		if got := append(values(x, p.Grad()), values(x, half.Grad())...); !slices.Equal(got, []float32{-0.75, 0.5, 0.75, -0.75}) {
			t.Errorf("clipped to %v", got)
		}
		return nil
	})
	for _, limit := range []float64{-1, math.NaN()} {
		err := torchtest.TryDo(t, cgotorch.CPU, func(x *cgotorch.Exec) error {
			ClipGradValue(x, []*cgotorch.Tensor{param(x, 1)}, limit)
			return nil
		})
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "a limit of") {
			t.Errorf("limit %v: %v", limit, err)
		}
	}
}
