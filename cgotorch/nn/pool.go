package nn

import "github.com/streamtorch/streamtorch/cgotorch"

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
	return x.Call("streamtorch::max_pool2d", in, m.Kernel.ints(), m.Stride.or(m.Kernel).ints(), m.Padding.ints(),
		m.Dilation.or(Size{1, 1}).ints(), m.CeilMode)[0].(*cgotorch.Tensor)
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
	return x.Call("streamtorch::avg_pool2d", in, m.Kernel.ints(), m.Stride.or(m.Kernel).ints(), m.Padding.ints(), m.CeilMode,
		!m.ExcludePadding, divisor)[0].(*cgotorch.Tensor)
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
		return x.Call("streamtorch::global_avg_pool2d", in)[0].(*cgotorch.Tensor)
	}
	return x.AdaptiveAvgPool2d(in, output.ints())
}
