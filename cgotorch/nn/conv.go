package nn

import "github.com/streamtorch/streamtorch/cgotorch"

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
	const where = "nn.NewConv2d"
	o.check(x, where, in, out, kernel)
	groups := max(o.Groups, 1)
	m := &Conv2d{
		Weight:        x.Empty(cgotorch.Float32, int64(out), int64(in/groups), int64(kernel[0]), int64(kernel[1])),
		Conv2dOptions: o,
	}
	if !o.NoBias {
		m.Bias = x.Empty(cgotorch.Float32, int64(out))
	}
	initLayer(x, m.Weight, m.Bias)
	keepParameters(x, where, m.Weight, m.Bias)
	return m
}

func (o Conv2dOptions) check(x *cgotorch.Exec, where string, in, out int, kernel Size) {
	atLeast(x, where, 1, argument{"in", in}, argument{"out", out}, argument{"kernel", kernel.least()},
		argument{"Stride", o.Stride.or(Size{1, 1}).least()}, argument{"Dilation", o.Dilation.or(Size{1, 1}).least()})
	atLeast(x, where, 0, argument{"Padding", o.Padding.least()}, argument{"Groups", o.Groups})
	if groups := max(o.Groups, 1); in%groups != 0 || out%groups != 0 {
		refuse(x, where, "%d groups do not divide %d input and %d output channels", groups, in, out)
	}
	switch o.PaddingMode {
	case "", "reflect", "replicate", "circular":
	default:
		refuse(x, where, "PaddingMode is %q, want reflect, replicate, circular or nothing for zeros", o.PaddingMode)
	}
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
		out := x.Call("streamtorch::image_convolution", padded, castOf(x, m.Weight), padding[0])[0].(*cgotorch.Tensor)
		closeUnless(in, padded)
		return out
	}
	out := x.Conv2d(padded, castOf(x, m.Weight), castOf(x, m.Bias), cgotorch.Conv2dOptions{
		Stride: m.Stride.or(Size{1, 1}).ints(), Padding: padding.ints(), Dilation: m.Dilation.or(Size{1, 1}).ints(), Groups: m.Groups,
	})
	closeUnless(in, padded)
	return out
}

// fitsImages reports whether streamtorch::image_convolution can compute this convolution. `zeros`
// is the size of the border of zeros that the convolution adds.
func (m *Conv2d) fitsImages(zeros Size) bool {
	if m.Stride != Square(2) || zeros != Square(zeros[0]) || m.Dilation.or(Square(1)) != Square(1) || m.Groups > 1 || m.Bias != nil {
		return false
	}
	weight := m.Weight.Shape()
	return len(weight) == 4 && weight[1] <= 4 && weight[2] == weight[3]
}

// The method `pad` adds the border to `in` if PaddingMode is not "". It returns the padded input.
// The result `zeros` is the size of the border of zeros that the convolution itself still has to
// add.
func (m *Conv2d) pad(x *cgotorch.Exec, in *cgotorch.Tensor) (padded *cgotorch.Tensor, zeros Size) {
	if m.PaddingMode == "" || m.Padding == (Size{}) {
		return in, m.Padding
	}
	return x.Pad(in, []int64{int64(m.Padding[1]), int64(m.Padding[1]), int64(m.Padding[0]), int64(m.Padding[0])},
		cgotorch.PadOptions{Mode: m.PaddingMode}), Size{}
}
