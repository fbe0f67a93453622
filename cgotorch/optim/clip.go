package optim

import (
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/gradnorm"
)

// ClipGradNorm scales the gradients of params in place, as torch.nn.utils.clip_grad_norm_ does.
// After the scaling, their common 2-norm is at most maxNorm. ClipGradNorm returns the norm before
// the scaling, a tensor of shape []. Its dtype is float32, or float64 if a gradient is float64. So
// the norm of float16 gradients may be a number that float16 does not hold. ClipGradNorm skips
// parameters without a gradient. If there are no gradients, it returns 0. If the norm is not
// finite, all gradients are NaN afterwards.
//
// ClipGradNorm does not wait, and can be captured. It fails with [cgotorch.ErrInvalidArgument] if
// maxNorm is negative or NaN.
func ClipGradNorm(x *cgotorch.Exec, params []*cgotorch.Tensor, maxNorm float64) *cgotorch.Tensor {
	if !(maxNorm >= 0) {
		x.Fail("optim.ClipGradNorm", errNorm(maxNorm))
	}
	checkParams(x, "optim.ClipGradNorm", params)
	x = x.NoGrad().NoAutocast()
	return x.Tidy(func() *cgotorch.Tensor {
		var norms []*cgotorch.Tensor
		lists := gradients(params)
		if len(lists) == 0 {
			return x.Zeros(cgotorch.Float32)
		}
		for _, grads := range lists {
			norms = append(norms, gradnorm.Norms(x, grads))
		}
		total := x.VectorNorm(x.Cat(norms, 0), 2, nil, cgotorch.SumOptions{})
		gradnorm.Clip(x, lists, total, maxNorm)
		return total
	})
}

// ClipGradValue moves every element of the gradients of `params` into [-limit, limit] in place,
// as torch.nn.utils.clip_grad_value_ does. It skips parameters without a gradient. An element
// that is NaN stays NaN. A limit above the largest number of a gradient's dtype is that number.
// ClipGradValue does not wait, and can be captured. It fails with [cgotorch.ErrInvalidArgument] if
// `limit` is negative or NaN.
func ClipGradValue(x *cgotorch.Exec, params []*cgotorch.Tensor, limit float64) {
	if !(limit >= 0) {
		x.Fail("optim.ClipGradValue", fmt.Errorf("a limit of %v is not a number from 0 up: %w", limit, cgotorch.ErrInvalidArgument))
	}
	checkParams(x, "optim.ClipGradValue", params)
	x = x.NoGrad().NoAutocast()
	for _, grads := range gradients(params) {
		limit := min(limit, largest(grads[0].DType()))
		x.ForeachClampMinInPlace(grads, -limit)
		x.ForeachClampMaxInPlace(grads, limit)
	}
}

// largest returns the largest number of a floating dtype.
func largest(dtype cgotorch.DType) float64 {
	switch dtype {
	case cgotorch.Float16:
		return 65504
	case cgotorch.BFloat16:
		return 0x1.fep127
	case cgotorch.Float32:
		return math.MaxFloat32
	}
	return math.MaxFloat64
}

// checkParams makes the Do fail if a parameter is nil or closed.
func checkParams(x *cgotorch.Exec, op string, params []*cgotorch.Tensor) {
	for i, p := range params {
		if p == nil {
			x.Fail(op, fmt.Errorf("parameter %d is nil: %w", i, cgotorch.ErrInvalidArgument))
		}
		if p.Closed() {
			x.Fail(op, fmt.Errorf("parameter %d: %w", i, cgotorch.ErrClosed))
		}
	}
}

// gradients returns the gradients of params, as one list for each pair of device and dtype.
func gradients(params []*cgotorch.Tensor) (lists [][]*cgotorch.Tensor) {
	for _, p := range params {
		if grad := p.Grad(); grad != nil {
			lists = insert(lists, grad)
		}
	}
	return lists
}

// insert adds t to the list of t's device and dtype. It makes the list if there is none.
func insert(lists [][]*cgotorch.Tensor, t *cgotorch.Tensor) [][]*cgotorch.Tensor {
	for i, list := range lists {
		if list[0].Device() == t.Device() && list[0].DType() == t.DType() {
			lists[i] = append(list, t)
			return lists
		}
	}
	return append(lists, []*cgotorch.Tensor{t})
}

func errNorm(maxNorm float64) error {
	return fmt.Errorf("a largest norm of %v is not a number from 0 up: %w", maxNorm, cgotorch.ErrInvalidArgument)
}
