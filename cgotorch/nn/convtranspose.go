package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// ConvTranspose2dOptions set the window and the size of the result of a [ConvTranspose2d].
type ConvTranspose2dOptions struct {
	Stride  Size // distance between neighbouring windows in the result; 0x0 means 1x1
	Padding Size // rows and columns removed from each side of the result
	// OutputPadding adds rows and columns at the bottom and right of the result. Their number must be
	// below Stride or below Dilation.
	OutputPadding Size
	Dilation      Size // distance between the points of the kernel; 0x0 means 1x1
	Groups        int  // number of groups of channels; a group reads only its own channels; 0 means 1
	NoBias        bool
}

// ConvTranspose2d enlarges images by a transposed convolution. The backward of a convolution does
// the same computation: it turns the gradient of the result into the gradient of the input.
type ConvTranspose2d struct {
	Weight *cgotorch.Tensor // [in, out/Groups, height, width]
	Bias   *cgotorch.Tensor // [out], or nil
	ConvTranspose2dOptions
}

// NewConvTranspose2d makes a layer from `in` to `out` channels, in float32 on x's device. It
// draws random weights as torch.nn.ConvTranspose2d does.
func NewConvTranspose2d(x *cgotorch.Exec, in, out int, kernel Size, o ConvTranspose2dOptions) *ConvTranspose2d {
	const where = "nn.NewConvTranspose2d"
	Conv2dOptions{Stride: o.Stride, Padding: o.Padding, Dilation: o.Dilation, Groups: o.Groups}.check(x, where, in, out, kernel)
	atLeast(x, where, 0, argument{"OutputPadding", o.OutputPadding.least()})
	m := &ConvTranspose2d{
		Weight:                 x.Empty(cgotorch.Float32, int64(in), int64(out/max(o.Groups, 1)), int64(kernel[0]), int64(kernel[1])),
		ConvTranspose2dOptions: o,
	}
	if !o.NoBias {
		m.Bias = x.Empty(cgotorch.Float32, int64(out))
	}
	initLayer(x, m.Weight, m.Bias)
	keepParameters(x, where, m.Weight, m.Bias)
	return m
}

// Forward maps [N, in, H, W] to [N, out, H', W']. H' is (H-1)*stride - 2*padding +
// dilation*(height-1) + output padding + 1, and W' likewise.
func (m *ConvTranspose2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.ConvTranspose2d(in, castOf(x, m.Weight), castOf(x, m.Bias), cgotorch.ConvTranspose2dOptions{
		Stride: m.Stride.or(Size{1, 1}).ints(), Padding: m.Padding.ints(), OutputPadding: m.OutputPadding.ints(),
		Dilation: m.Dilation.or(Size{1, 1}).ints(), Groups: m.Groups,
	})
}
