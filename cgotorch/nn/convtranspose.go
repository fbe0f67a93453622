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
	m := &ConvTranspose2d{ConvTranspose2dOptions: o}
	m.Weight, m.Bias = o.window().weights(x, "nn.NewConvTranspose2d", in, out, kernel.ints(), true, o.NoBias)
	return m
}

func (o ConvTranspose2dOptions) window() window {
	return window{stride: o.Stride.or(Square(1)).ints(), padding: o.Padding.ints(), outputPadding: o.OutputPadding.ints(), dilation: o.Dilation.or(Square(1)).ints(), groups: o.Groups}
}

// Forward maps [N, in, H, W] to [N, out, H', W']. H' is (H-1)*stride - 2*padding +
// dilation*(height-1) + output padding + 1, and W' likewise.
func (m *ConvTranspose2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.window().transpose(x, in, m.Weight, m.Bias)
}

// ConvTranspose1dOptions set the window and the size of the result of a [ConvTranspose1d]. The
// fields have the meaning that they have in [ConvTranspose2dOptions].
type ConvTranspose1dOptions struct {
	Stride        int // 0 means 1
	Padding       int
	OutputPadding int
	Dilation      int // 0 means 1
	Groups        int // 0 means 1
	NoBias        bool
}

// ConvTranspose1d enlarges sequences by a transposed convolution, as [ConvTranspose2d] enlarges
// images.
type ConvTranspose1d struct {
	Weight *cgotorch.Tensor // [in, out/Groups, length]
	Bias   *cgotorch.Tensor // [out], or nil
	ConvTranspose1dOptions
}

// NewConvTranspose1d makes a layer from `in` to `out` channels, in float32 on x's device. It
// draws random weights as torch.nn.ConvTranspose1d does.
func NewConvTranspose1d(x *cgotorch.Exec, in, out int, kernel int, o ConvTranspose1dOptions) *ConvTranspose1d {
	m := &ConvTranspose1d{ConvTranspose1dOptions: o}
	m.Weight, m.Bias = o.window().weights(x, "nn.NewConvTranspose1d", in, out, []int64{int64(kernel)}, true, o.NoBias)
	return m
}

func (o ConvTranspose1dOptions) window() window {
	return window{stride: length(o.Stride, 1), padding: length(o.Padding, 0), outputPadding: length(o.OutputPadding, 0), dilation: length(o.Dilation, 1), groups: o.Groups}
}

// Forward maps [N, in, L] to [N, out, L']. The sizes follow the formula of
// [ConvTranspose2d.Forward]. It does not wait.
func (m *ConvTranspose1d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.window().transpose(x, in, m.Weight, m.Bias)
}

// ConvTranspose3dOptions set the window and the size of the result of a [ConvTranspose3d]. The
// fields have the meaning that they have in [ConvTranspose2dOptions].
type ConvTranspose3dOptions struct {
	Stride        Volume // 0x0x0 means 1x1x1
	Padding       Volume
	OutputPadding Volume
	Dilation      Volume // 0x0x0 means 1x1x1
	Groups        int    // 0 means 1
	NoBias        bool
}

// ConvTranspose3d enlarges volumes by a transposed convolution, as [ConvTranspose2d] enlarges
// images.
type ConvTranspose3d struct {
	Weight *cgotorch.Tensor // [in, out/Groups, depth, height, width]
	Bias   *cgotorch.Tensor // [out], or nil
	ConvTranspose3dOptions
}

// NewConvTranspose3d makes a layer from `in` to `out` channels, in float32 on x's device. It
// draws random weights as torch.nn.ConvTranspose3d does.
func NewConvTranspose3d(x *cgotorch.Exec, in, out int, kernel Volume, o ConvTranspose3dOptions) *ConvTranspose3d {
	m := &ConvTranspose3d{ConvTranspose3dOptions: o}
	m.Weight, m.Bias = o.window().weights(x, "nn.NewConvTranspose3d", in, out, kernel.ints(), true, o.NoBias)
	return m
}

func (o ConvTranspose3dOptions) window() window {
	return window{stride: o.Stride.or(Cube(1)).ints(), padding: o.Padding.ints(), outputPadding: o.OutputPadding.ints(), dilation: o.Dilation.or(Cube(1)).ints(), groups: o.Groups}
}

// Forward maps [N, in, D, H, W] to [N, out, D', H', W']. The sizes follow the formula of
// [ConvTranspose2d.Forward]. It does not wait.
func (m *ConvTranspose3d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.window().transpose(x, in, m.Weight, m.Bias)
}
