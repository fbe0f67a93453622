package nn

import (
	"cmp"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// MaxPool2d takes the largest value of each window.
//
// On CUDA a kernel of this library pools, if no gradient is needed. The images must be channels
// last, in float32, float16 or bfloat16. In all other cases LibTorch's kernel pools, and
// [cgotorch.Exec.MaxPool2d] always uses that kernel. Both kernels give equal results. The
// library's kernel takes between a ninth and three quarters of the time of LibTorch's kernel. Its
// first call in a process compiles the kernel, in about 0.1 s.
type MaxPool2d struct {
	Kernel   Size
	Stride   Size // distance between neighbouring windows; 0x0 means Kernel
	Padding  Size // rows and columns of -Inf added on each side, at most half of Kernel
	Dilation Size // distance between the points of a window; 0x0 means 1x1
	CeilMode bool // the last window may end outside the input
}

// Forward maps [N, C, H, W] to [N, C, H', W'].
func (m *MaxPool2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	atLeast(x, "nn.MaxPool2d", 1, argument{"Kernel", m.Kernel.least()})
	return x.Call1("streamtorch::max_pool2d", in, ints(m.Kernel), ints(cmp.Or(m.Stride, m.Kernel)), ints(m.Padding),
		ints(cmp.Or(m.Dilation, Square(1))), m.CeilMode)
}

// AvgPool2d takes the mean of each window. The comment of [MaxPool2d] says when a kernel of this
// library does the work. The results of that kernel equal those of LibTorch's kernel.
type AvgPool2d struct {
	Kernel         Size
	Stride         Size // distance between neighbouring windows; 0x0 means Kernel
	Padding        Size // rows and columns of zeros added on each side, at most half of Kernel
	CeilMode       bool // the last window may end outside the input
	ExcludePadding bool // the mean does not include padding
	Divisor        int  // divides the sum of a window; 0 means the number of points in the window
}

// Forward maps [N, C, H, W] to [N, C, H', W'].
func (m *AvgPool2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	atLeast(x, "nn.AvgPool2d", 1, argument{"Kernel", m.Kernel.least()})
	var divisor any
	if m.Divisor != 0 {
		divisor = m.Divisor
	}
	return x.Call1("streamtorch::avg_pool2d", in, ints(m.Kernel), ints(cmp.Or(m.Stride, m.Kernel)), ints(m.Padding), m.CeilMode,
		!m.ExcludePadding, divisor)
}

// AdaptiveAvgPool2d takes means of windows. The windows are chosen so that the result has the
// size Output.
type AdaptiveAvgPool2d struct {
	Output Size // 0x0 means 1x1: the mean of each channel
}

// Forward maps [N, C, H, W] to [N, C, Output...].
func (m *AdaptiveAvgPool2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	output := cmp.Or(m.Output, Square(1))
	if output == (Size{1, 1}) {
		return x.Call1("streamtorch::global_avg_pool2d", in)
	}
	return x.AdaptiveAvgPool2d(in, ints(output))
}

// fractional does the work of FractionalMaxPool2d and FractionalMaxPool3d. For an output of zeros,
// `ratios` give it.
func fractional(x *cgotorch.Exec, where, op string, in *cgotorch.Tensor, kernel, output []int64, ratios []float64) *cgotorch.Tensor {
	atLeast(x, where, 1, argument{"Kernel", int(slices.Min(kernel))})
	if in.Dim() != len(kernel)+2 {
		refuse(x, where, "the input is %s, want %d dimensions", in, len(kernel)+2)
	}
	shape := in.Shape()
	switch {
	case slices.Max(output) > 0:
		atLeast(x, where, 1, argument{"Output", int(slices.Min(output))})
	case slices.ContainsFunc(ratios, func(ratio float64) bool { return !(ratio > 0 && ratio < 1) }):
		refuse(x, where, "Output is not set, and Ratio is %v; want numbers between 0 and 1", ratios)
	default:
		for i, ratio := range ratios {
			output[i] = int64(float64(shape[i+2]) * ratio)
		}
	}
	samples := x.Rand(in.DType(), shape[0], shape[1], int64(len(kernel)))
	defer samples.Close()
	return largest(x.Call(op, in, kernel, output, samples))
}

// pool calls one of LibTorch's poolings with a checked kernel.
func pool(x *cgotorch.Exec, where, op string, in *cgotorch.Tensor, kernel []int64, more ...any) *cgotorch.Tensor {
	atLeast(x, where, 1, argument{"Kernel", int(slices.Min(kernel))})
	return x.Call1(op, append([]any{in, kernel}, more...)...)
}

// largest closes the indices among the results of a pooling. It returns the values.
func largest(results []any) *cgotorch.Tensor {
	results[1].(*cgotorch.Tensor).Close()
	return results[0].(*cgotorch.Tensor)
}

// powerPool does the work of LPPool1d, LPPool2d and LPPool3d. The mean of a window, times the
// number of its points, is the sum.
func powerPool(x *cgotorch.Exec, where, mean string, in *cgotorch.Tensor, norm float64, kernel, stride []int64, ceil bool) *cgotorch.Tensor {
	if !(norm > 0) {
		refuse(x, where, "Norm is %v, want a number above 0", norm)
	}
	points := int64(1)
	for _, n := range kernel {
		points *= n
	}
	return x.Tidy(func() *cgotorch.Tensor {
		zeros := make([]int64, len(kernel))
		sums := pool(x, where, mean, x.PowScalar(squarable(x, in), norm), kernel, stride, zeros, ceil)
		positive := x.ReLU(x.Abs(sums))
		return x.To(x.PowScalar(x.MulScalar(x.Mul(x.Sign(sums), positive), points), 1/norm), in.DType())
	})
}
