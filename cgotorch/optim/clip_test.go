package optim

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
)

func TestClipGradNorm(t *testing.T) {
	do(t, func(x *cgotorch.Exec) error {
		p, none := param(x, 0, 0), x.Zeros(cgotorch.Float32, 2)
		half := x.To(param(x, 0), cgotorch.BFloat16) // makes the common norm one over two dtypes
		for _, c := range []struct {
			grad, half float64
			norm, max  float64
			want       float64 // of p's gradient
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
		err := try(t, func(x *cgotorch.Exec) error {
			ClipGradNorm(x, []*cgotorch.Tensor{param(x, 1)}, limit)
			return nil
		})
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "a largest norm of") {
			t.Errorf("largest norm %v: %v", limit, err)
		}
	}
}
