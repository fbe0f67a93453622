// Package convrelu calls cuDNN's operator for a convolution, a sum and a ReLU. Packages nn and pt2
// use it for fused models.
package convrelu

import (
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Fits reports whether the operator can take the input and the weight of a convolution without
// groups. It ignores autocast, so it does not fit under autocast.
func Fits(x *cgotorch.Exec, in, weight *cgotorch.Tensor) bool {
	dtype := in.DType()
	return in.Device().IsCUDA() && x.AutocastDType() == 0 && in.Dim() == 4 && dtype == weight.DType() &&
		(dtype == cgotorch.Float32 || dtype == cgotorch.Float16 || dtype == cgotorch.BFloat16)
}

// Forward returns max(0, convolution + z), or nil if the operator does not fit. It needs that Fits
// holds, and strides above 0. bias and z may be nil.
//
// The operator cannot broadcast z. It must not be used if the input or the result has more than
// 2^31-1 elements. LibTorch splits other convolutions of that size into parts, but it does not
// split the convolution of this operator.
func Forward(x *cgotorch.Exec, in, weight, bias, z *cgotorch.Tensor, stride, padding, dilation []int64) *cgotorch.Tensor {
	shape := resultShape(in.Shape(), weight.Shape(), stride, padding, dilation)
	elements := int64(1)
	for _, n := range shape {
		elements *= n
	}
	if max(elements, in.Numel()) > math.MaxInt32 {
		return nil
	}
	if z == nil {
		return x.Call1("aten::cudnn_convolution_relu", in, weight, bias, stride, padding, dilation, 1)
	}
	if z.DType() != in.DType() || !slices.Equal(z.Shape(), shape) {
		return nil
	}
	return x.Call1("aten::cudnn_convolution_add_relu", in, weight, z, 1, bias, stride, padding, dilation, 1)
}

func resultShape(in, weight, stride, padding, dilation []int64) []int64 {
	shape := []int64{in[0], weight[0], 0, 0}
	for i := range 2 {
		shape[2+i] = (in[2+i]+2*padding[i]-dilation[i]*(weight[2+i]-1)-1)/stride[i] + 1
	}
	return shape
}
