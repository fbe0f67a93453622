package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// LocalResponseNorm divides each value by a power of the squares in neighbouring channels, as
// AlexNet does.
type LocalResponseNorm struct {
	Neighbours int                   // number of channels whose squares count; PyTorch's size; at least 1
	Alpha      cgotorch.Opt[float64] // factor of the mean of squares; unset means 0.0001
	Beta       cgotorch.Opt[float64] // the power; unset means 0.75
	K          cgotorch.Opt[float64] // added to the factor times the mean; unset means 1
}

// Forward maps [N, C, ...], of at least 3 dimensions, to a tensor of the same shape.
func (m *LocalResponseNorm) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	const where = "nn.LocalResponseNorm"
	atLeast(x, where, 1, argument{"Neighbours", m.Neighbours})
	if in.Dim() < 3 {
		refuse(x, where, "the input is %s, want [N, C, ...] of at least 3 dimensions", in)
	}
	if in.Numel() == 0 {
		return x.Clone(in)
	}
	return x.Tidy(func() *cgotorch.Tensor {
		dtype := in.DType()
		in := squarable(x, in)
		shape, n := in.Shape(), int64(m.Neighbours)
		squares := x.Reshape(x.Square(in), shape[0], 1, shape[1], -1)
		squares = x.Pad(squares, []int64{0, 0, n / 2, (n - 1) / 2}, cgotorch.PadOptions{})
		means := x.AvgPool2d(squares, []int64{n, 1}, cgotorch.AvgPool2dOptions{Stride: []int64{1, 1}})
		divisor := x.PowScalar(x.AddScalar(x.MulScalar(means, m.Alpha.Or(1e-4)), m.K.Or(1)), m.Beta.Or(0.75))
		return x.To(x.Div(in, x.Reshape(divisor, shape...)), dtype)
	})
}

// squarable returns a tensor of float16 in float32, and every other tensor as it is. float16 does
// not hold the squares of numbers above 255, so a norm of float16 would be infinite.
func squarable(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if in.DType() == cgotorch.Float16 {
		return x.To(in, cgotorch.Float32)
	}
	return in
}
