package optim

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// ClipGradNorm scales the gradients of params in place, as torch.nn.utils.clip_grad_norm_ does.
// After the scaling, their common 2-norm is at most maxNorm. ClipGradNorm returns the norm before
// the scaling, a tensor of shape []. It skips parameters without a gradient. If there are no
// gradients, it returns 0. If the norm is not finite, the gradients are not finite afterwards.
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
			norms = append(norms, x.ForeachNorm(grads, 2)...)
		}
		total := x.VectorNorm(x.Stack(norms, 0), 2, nil, cgotorch.SumOptions{})
		factor := x.Clamp(x.MulScalar(x.Reciprocal(x.AddScalar(total, 1e-6)), maxNorm), nil, 1.0)
		for _, grads := range lists {
			x.ForeachMulTensorInPlace(grads, factor)
		}
		return total
	})
}

// ClipGradValue moves every element of the gradients of `params` into [-limit, limit] in place,
// as torch.nn.utils.clip_grad_value_ does. It skips parameters without a gradient. An element
// that is NaN stays NaN. ClipGradValue does not wait, and can be captured. It fails with
// [cgotorch.ErrInvalidArgument] if `limit` is negative or NaN.
func ClipGradValue(x *cgotorch.Exec, params []*cgotorch.Tensor, limit float64) {
	if !(limit >= 0) {
		x.Fail("optim.ClipGradValue", fmt.Errorf("a limit of %v is not a number from 0 up: %w", limit, cgotorch.ErrInvalidArgument))
	}
	checkParams(x, "optim.ClipGradValue", params)
	x = x.NoGrad().NoAutocast()
	for _, grads := range gradients(params) {
		x.ForeachClampMinInPlace(grads, -limit)
		x.ForeachClampMaxInPlace(grads, limit)
	}
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

// The function `gradients` returns the gradients of params, as one list for each pair of device
// and dtype.
func gradients(params []*cgotorch.Tensor) (lists [][]*cgotorch.Tensor) {
	for _, p := range params {
		if grad := p.Grad(); grad != nil {
			lists = insert(lists, grad)
		}
	}
	return lists
}

// The function `insert` adds t to the list of t's device and dtype. It makes the list if there is
// none.
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
