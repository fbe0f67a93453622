package nn

import (
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
	return x.Call1("streamtorch::max_pool2d", in, m.Kernel.ints(), m.Stride.or(m.Kernel).ints(), m.Padding.ints(),
		m.Dilation.or(Size{1, 1}).ints(), m.CeilMode)
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
	return x.Call1("streamtorch::avg_pool2d", in, m.Kernel.ints(), m.Stride.or(m.Kernel).ints(), m.Padding.ints(), m.CeilMode,
		!m.ExcludePadding, divisor)
}

// AdaptiveAvgPool2d takes means of windows. The windows are chosen so that the result has the
// size Output.
type AdaptiveAvgPool2d struct {
	Output Size // 0x0 means 1x1: the mean of each channel
}

// Forward maps [N, C, H, W] to [N, C, Output...].
func (m *AdaptiveAvgPool2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	output := m.Output.or(Size{1, 1})
	if output == (Size{1, 1}) {
		return x.Call1("streamtorch::global_avg_pool2d", in)
	}
	return x.AdaptiveAvgPool2d(in, output.ints())
}

// MaxPool1d takes the largest value of each window of sequences. LibTorch's kernel does the work.
type MaxPool1d struct {
	Kernel   int
	Stride   int  // distance between neighbouring windows; 0 means Kernel
	Padding  int  // points of -Inf added on each side, at most half of Kernel
	Dilation int  // distance between the points of a window; 0 means 1
	CeilMode bool // the last window may end outside the input
}

// Forward maps [N, C, L] to [N, C, L'].
func (m *MaxPool1d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return pool(x, "nn.MaxPool1d", "aten::max_pool1d", in, length(m.Kernel, 0), length(m.Stride, m.Kernel), length(m.Padding, 0), length(m.Dilation, 1), m.CeilMode)
}

// AvgPool1d takes the mean of each window of sequences. LibTorch's kernel does the work.
type AvgPool1d struct {
	Kernel         int
	Stride         int  // distance between neighbouring windows; 0 means Kernel
	Padding        int  // points of zeros added on each side, at most half of Kernel
	CeilMode       bool // the last window may end outside the input
	ExcludePadding bool // the mean does not include padding
}

// Forward maps [N, C, L] to [N, C, L'].
func (m *AvgPool1d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return pool(x, "nn.AvgPool1d", "aten::avg_pool1d", in, length(m.Kernel, 0), length(m.Stride, m.Kernel), length(m.Padding, 0), m.CeilMode, !m.ExcludePadding)
}

// AdaptiveAvgPool1d takes means of windows of sequences. The windows are chosen so that the
// result has the size Output.
type AdaptiveAvgPool1d struct {
	Output int // 0 means 1: the mean of each channel
}

// Forward maps [N, C, L] to [N, C, Output...].
func (m *AdaptiveAvgPool1d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::adaptive_avg_pool1d", in, length(m.Output, 1))
}

// MaxPool3d takes the largest value of each window of volumes. LibTorch's kernel does the work.
type MaxPool3d struct {
	Kernel   Volume
	Stride   Volume // distance between neighbouring windows; 0x0x0 means Kernel
	Padding  Volume // points of -Inf added on each side, at most half of Kernel
	Dilation Volume // distance between the points of a window; 0x0x0 means 1
	CeilMode bool   // the last window may end outside the input
}

// Forward maps [N, C, D, H, W] to [N, C, D', H', W'].
func (m *MaxPool3d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return pool(x, "nn.MaxPool3d", "aten::max_pool3d", in, m.Kernel.ints(), m.Stride.or(m.Kernel).ints(), m.Padding.ints(), m.Dilation.or(Cube(1)).ints(), m.CeilMode)
}

// AvgPool3d takes the mean of each window of volumes. LibTorch's kernel does the work.
type AvgPool3d struct {
	Kernel         Volume
	Stride         Volume // distance between neighbouring windows; 0x0x0 means Kernel
	Padding        Volume // points of zeros added on each side, at most half of Kernel
	CeilMode       bool   // the last window may end outside the input
	ExcludePadding bool   // the mean does not include padding
}

// Forward maps [N, C, D, H, W] to [N, C, D', H', W'].
func (m *AvgPool3d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return pool(x, "nn.AvgPool3d", "aten::avg_pool3d", in, m.Kernel.ints(), m.Stride.or(m.Kernel).ints(), m.Padding.ints(), m.CeilMode, !m.ExcludePadding)
}

// AdaptiveAvgPool3d takes means of windows of volumes. The windows are chosen so that the
// result has the size Output.
type AdaptiveAvgPool3d struct {
	Output Volume // 0x0x0 means 1: the mean of each channel
}

// Forward maps [N, C, D, H, W] to [N, C, Output...].
func (m *AdaptiveAvgPool3d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::adaptive_avg_pool3d", in, m.Output.or(Cube(1)).ints())
}

// AdaptiveMaxPool1d is [AdaptiveAvgPool1d] with the largest value of each window.
type AdaptiveMaxPool1d struct {
	Output int // 0 means 1: the largest value of each channel
}

// Forward maps [N, C, L] to [N, C, Output...].
func (m *AdaptiveMaxPool1d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return largest(x, "aten::adaptive_max_pool1d", in, length(m.Output, 1))
}

// AdaptiveMaxPool2d is [AdaptiveAvgPool2d] with the largest value of each window.
type AdaptiveMaxPool2d struct {
	Output Size // 0x0 means 1: the largest value of each channel
}

// Forward maps [N, C, H, W] to [N, C, Output...].
func (m *AdaptiveMaxPool2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return largest(x, "aten::adaptive_max_pool2d", in, m.Output.or(Square(1)).ints())
}

// AdaptiveMaxPool3d is [AdaptiveAvgPool3d] with the largest value of each window.
type AdaptiveMaxPool3d struct {
	Output Volume // 0x0x0 means 1: the largest value of each channel
}

// Forward maps [N, C, D, H, W] to [N, C, Output...].
func (m *AdaptiveMaxPool3d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return largest(x, "aten::adaptive_max_pool3d", in, m.Output.or(Cube(1)).ints())
}

// LPPool1d takes the root of order Norm of the sum of powers of order Norm, in each window of
// sequences.
type LPPool1d struct {
	Norm     float64 // above 0; 1 gives sums
	Kernel   int
	Stride   int  // distance between neighbouring windows; 0 means Kernel
	CeilMode bool // the last window may end outside the input
}

// Forward maps [N, C, L] to [N, C, L'].
func (m *LPPool1d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return powerPool(x, "nn.LPPool1d", "aten::avg_pool1d", in, m.Norm, length(m.Kernel, 0), length(m.Stride, m.Kernel), m.CeilMode)
}

// LPPool2d is [LPPool1d] for images.
type LPPool2d struct {
	Norm     float64 // above 0; 1 gives sums
	Kernel   Size
	Stride   Size // distance between neighbouring windows; 0x0 means Kernel
	CeilMode bool // the last window may end outside the input
}

// Forward maps [N, C, H, W] to [N, C, H', W'].
func (m *LPPool2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return powerPool(x, "nn.LPPool2d", "aten::avg_pool2d", in, m.Norm, m.Kernel.ints(), m.Stride.or(m.Kernel).ints(), m.CeilMode)
}

// LPPool3d is [LPPool1d] for volumes.
type LPPool3d struct {
	Norm     float64 // above 0; 1 gives sums
	Kernel   Volume
	Stride   Volume // distance between neighbouring windows; 0x0x0 means Kernel
	CeilMode bool   // the last window may end outside the input
}

// Forward maps [N, C, D, H, W] to [N, C, D', H', W'].
func (m *LPPool3d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return powerPool(x, "nn.LPPool3d", "aten::avg_pool3d", in, m.Norm, m.Kernel.ints(), m.Stride.or(m.Kernel).ints(), m.CeilMode)
}

// FractionalMaxPool2d takes the largest value of each window. The places of the windows are random,
// so that the result can have any size below that of the input.
type FractionalMaxPool2d struct {
	Kernel Size
	Output Size       // size of the result; 0x0 means Ratio
	Ratio  [2]float64 // size of the result as a fraction of the input's, in (0, 1)
}

// Forward maps [N, C, H, W] to [N, C, Output...]. It draws random numbers from LibTorch's
// generator, also in evaluation.
func (m *FractionalMaxPool2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	output := m.Output.ints()
	if m.Output == (Size{}) {
		output = nil
	}
	return fractional(x, "nn.FractionalMaxPool2d", "aten::fractional_max_pool2d", in, m.Kernel.ints(), output, m.Ratio[:])
}

// FractionalMaxPool3d is [FractionalMaxPool2d] for volumes.
type FractionalMaxPool3d struct {
	Kernel Volume
	Output Volume     // size of the result; 0x0x0 means Ratio
	Ratio  [3]float64 // size of the result as a fraction of the input's, in (0, 1)
}

// Forward maps [N, C, D, H, W] to [N, C, Output...]. It draws random numbers from LibTorch's
// generator, also in evaluation.
func (m *FractionalMaxPool3d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	output := m.Output.ints()
	if m.Output == (Volume{}) {
		output = nil
	}
	return fractional(x, "nn.FractionalMaxPool3d", "aten::fractional_max_pool3d", in, m.Kernel.ints(), output, m.Ratio[:])
}

// fractional does the work of FractionalMaxPool2d and FractionalMaxPool3d. Without an output,
// `ratios` give it.
func fractional(x *cgotorch.Exec, where, op string, in *cgotorch.Tensor, kernel, output []int64, ratios []float64) *cgotorch.Tensor {
	atLeast(x, where, 1, argument{"Kernel", int(slices.Min(kernel))})
	if in.Dim() != len(kernel)+2 {
		refuse(x, where, "the input is %s, want %d dimensions", in, len(kernel)+2)
	}
	shape := in.Shape()
	switch {
	case output != nil:
		atLeast(x, where, 1, argument{"Output", int(slices.Min(output))})
	case slices.ContainsFunc(ratios, func(ratio float64) bool { return !(ratio > 0 && ratio < 1) }):
		refuse(x, where, "Output is not set, and Ratio is %v; want numbers between 0 and 1", ratios)
	default:
		for i, ratio := range ratios {
			output = append(output, int64(float64(shape[i+2])*ratio))
		}
	}
	samples := x.Rand(in.DType(), shape[0], shape[1], int64(len(kernel)))
	defer samples.Close()
	results := x.Call(op, in, kernel, output, samples)
	results[1].(*cgotorch.Tensor).Close()
	return results[0].(*cgotorch.Tensor)
}

// pool calls one of LibTorch's poolings with a checked kernel.
func pool(x *cgotorch.Exec, where, op string, in *cgotorch.Tensor, kernel []int64, more ...any) *cgotorch.Tensor {
	atLeast(x, where, 1, argument{"Kernel", int(slices.Min(kernel))})
	return x.Call1(op, append([]any{in, kernel}, more...)...)
}

// largest calls one of LibTorch's poolings that return values and indices. It returns the values.
func largest(x *cgotorch.Exec, op string, in *cgotorch.Tensor, output []int64) *cgotorch.Tensor {
	results := x.Call(op, in, output)
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
