// Package gradnorm measures and scales gradients. Packages optim and distributed share it.
package gradnorm

import "github.com/streamtorch/streamtorch/cgotorch"

// Norms returns the 2-norms of gradients of one dtype and device, a tensor of shape [len(grads)].
// Its dtype is float32, and float64 for gradients of float64. Dtypes of 16 bits cannot hold a norm:
// the largest float16 is 65504.
func Norms(x *cgotorch.Exec, grads []*cgotorch.Tensor) *cgotorch.Tensor {
	wide := cgotorch.Float32
	if grads[0].DType() == cgotorch.Float64 {
		wide = cgotorch.Float64
	}
	return x.Stack(x.Call("aten::_foreach_norm.Scalar", grads, 2, wide)[0].([]*cgotorch.Tensor), 0)
}

// Clip multiplies gradients by maxNorm/total, and by at most 1. Each list has one dtype and device.
// `total` is the norm of all gradients, of shape []. If it is not finite, all gradients become NaN.
func Clip(x *cgotorch.Exec, lists [][]*cgotorch.Tensor, total *cgotorch.Tensor, maxNorm float64) {
	factor := x.Clamp(x.MulScalar(x.Reciprocal(x.AddScalar(total, 1e-6)), maxNorm), nil, 1.0)
	factor = x.Add(factor, x.MulScalar(total, 0)) // adds NaN if total is infinite or NaN
	for _, grads := range lists {
		if dtype := grads[0].DType(); dtype != cgotorch.Float16 {
			x.ForeachMulTensorInPlace(grads, x.To(factor, dtype))
			continue
		}
		// float16 would make a small factor 0. This operator takes a factor of float32. It also looks
		// for values that are not finite, which nobody asks for here.
		x.AMPForeachNonFiniteCheckAndUnscaleInPlace(grads, x.Zeros(cgotorch.Float32), x.To(factor, cgotorch.Float32))
	}
}
