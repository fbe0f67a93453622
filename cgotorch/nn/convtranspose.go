package nn

import (
	"cmp"

	"github.com/streamtorch/streamtorch/cgotorch"
)

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
	m := &ConvTranspose2d{ConvTranspose2dOptions: o}
	m.Weight, m.Bias = o.window().weights(x, "nn.NewConvTranspose2d", in, out, ints(kernel), true, o.NoBias)
	return m
}

func (o ConvTranspose2dOptions) window() window {
	return window{stride: ints(cmp.Or(o.Stride, Square(1))), padding: ints(o.Padding), outputPadding: ints(o.OutputPadding), dilation: ints(cmp.Or(o.Dilation, Square(1))), groups: o.Groups}
}

// Forward maps [N, in, H, W] to [N, out, H', W']. H' is (H-1)*stride - 2*padding +
// dilation*(height-1) + output padding + 1, and W' likewise.
func (m *ConvTranspose2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.window().transpose(x, in, m.Weight, m.Bias)
}
