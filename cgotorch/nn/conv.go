package nn

import (
	"cmp"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Conv2dOptions set the window and the border of a [Conv2d]. The zero value means stride 1 and no
// padding.
type Conv2dOptions struct {
	Stride   Size // distance between neighbouring windows; 0x0 means 1x1
	Padding  Size // rows and columns added on each side
	Dilation Size // distance between the points of the kernel; 0x0 means 1x1
	Groups   int  // number of groups of channels; a group reads only its own channels; 0 means 1
	// PaddingMode says which values the padding has, with PyTorch's names. "reflect" mirrors the
	// image at the border pixel, "replicate" repeats the border pixel, and "circular" takes the
	// pixels of the opposite side. "" means zeros.
	PaddingMode string
	Same        bool // the border keeps the size of the input, as PyTorch's padding="same"; Stride is then 1
	NoBias      bool
}

// Conv2d is a two-dimensional convolution (cross-correlation).
type Conv2d struct {
	Weight *cgotorch.Tensor // [out, in/Groups, height, width]
	Bias   *cgotorch.Tensor // [out], or nil
	Conv2dOptions
	Unfused bool // use LibTorch's operators only; see [SetFused]
}

// NewConv2d makes a convolution from `in` to `out` channels, in float32 on x's device. It draws
// random weights as torch.nn.Conv2d does.
func NewConv2d(x *cgotorch.Exec, in, out int, kernel Size, o Conv2dOptions) *Conv2d {
	m := &Conv2d{Conv2dOptions: o}
	m.Weight, m.Bias = o.window().weights(x, "nn.NewConv2d", in, out, ints(kernel), false, o.NoBias)
	return m
}

func (o Conv2dOptions) window() window {
	return window{stride: ints(cmp.Or(o.Stride, Square(1))), padding: ints(o.Padding), dilation: ints(cmp.Or(o.Dilation, Square(1))), groups: o.Groups, mode: o.PaddingMode, same: o.Same}
}

// Forward maps [N, in, H, W] to [N, out, H', W']. H' is (H + 2*padding - dilation*(height-1) -
// 1)/stride + 1, and W' likewise.
//
// The first layer of a net has a faster way on CUDA, in float16 and bfloat16. It needs a square
// kernel up to 11x11, stride 2x2, no bias, and at most 4 channels of an `in` without a gradient.
// `in` or Weight must be channels last. A second derivative then fails, unless Unfused is set. A
// pixel that is infinite or NaN may then reach results whose window ends beside it.
func (m *Conv2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	padded, padding := m.pad(x, in)
	if m.fitsImages(padding) && isFused(x, "nn.Conv2d", &m.Unfused) {
		out := x.Call1("streamtorch::image_convolution", padded, castOf(x, m.Weight), padding[0])
		closeUnless(in, padded)
		return out
	}
	w := m.window()
	w.padding = ints(padding)
	out := w.convolvePadded(x, padded, m.Weight, m.Bias)
	closeUnless(in, padded)
	return out
}

// fitsImages reports whether streamtorch::image_convolution can compute this convolution. `zeros`
// is the size of the border of zeros that the convolution adds.
func (m *Conv2d) fitsImages(zeros Size) bool {
	if m.Stride != Square(2) || zeros != Square(zeros[0]) || cmp.Or(m.Dilation, Square(1)) != Square(1) || m.Groups > 1 || m.Bias != nil {
		return false
	}
	weight := m.Weight.Shape()
	return len(weight) == 4 && weight[1] <= 4 && weight[2] == weight[3]
}

// pad adds the border to `in` if PaddingMode is not "". It returns the padded input. The result
// `zeros` is the size of the border of zeros that the convolution itself still has to add.
func (m *Conv2d) pad(x *cgotorch.Exec, in *cgotorch.Tensor) (padded *cgotorch.Tensor, zeros Size) {
	padded, w := m.window().pad(x, in, m.Weight)
	return padded, Size{int(w.padding[0]), int(w.padding[1])}
}
