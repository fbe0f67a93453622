package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Unfold makes columns of windows: each window of an image becomes a vector.
type Unfold struct {
	Kernel   Size
	Stride   Size // distance between neighbouring windows; 0x0 means 1x1
	Padding  Size // rows and columns of zeros added on each side
	Dilation Size // distance between the points of a window; 0x0 means 1x1
}

// Forward maps [N, C, H, W] to [N, C*height*width, windows].
func (m *Unfold) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	atLeast(x, "nn.Unfold", 1, argument{"Kernel", m.Kernel.least()})
	return x.Call1("aten::im2col", in, m.Kernel.ints(), m.Dilation.or(Square(1)).ints(), m.Padding.ints(), m.Stride.or(Square(1)).ints())
}

// Fold makes images of columns, the reverse of [Unfold]. Where windows overlap, it adds.
type Fold struct {
	Output   Size // size of the images
	Kernel   Size
	Stride   Size // as in [Unfold]
	Padding  Size // as in [Unfold]
	Dilation Size // as in [Unfold]
}

// Forward maps [N, C*height*width, windows] to [N, C, Output...].
func (m *Fold) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	atLeast(x, "nn.Fold", 1, argument{"Kernel", m.Kernel.least()}, argument{"Output", m.Output.least()})
	return x.Call1("aten::col2im", in, m.Output.ints(), m.Kernel.ints(), m.Dilation.or(Square(1)).ints(), m.Padding.ints(), m.Stride.or(Square(1)).ints())
}
