package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Softmax scales exp(in) so that the sums along dimension Dim are 1. A Dim of 1 over images is
// PyTorch's Softmax2d.
type Softmax struct {
	Dim cgotorch.Opt[int] // the dimension of the classes; unset means -1, the last
}

// Forward returns a tensor of the shape of `in`.
func (m *Softmax) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Softmax(in, m.Dim.Or(-1))
}

// LogSoftmax is the logarithm of [Softmax], without overflow.
type LogSoftmax struct {
	Dim cgotorch.Opt[int] // as in [Softmax]
}

// Forward returns a tensor of the shape of `in`.
func (m *LogSoftmax) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.LogSoftmax(in, m.Dim.Or(-1))
}

// Softmin is [Softmax] of -in.
type Softmin struct {
	Dim cgotorch.Opt[int] // as in [Softmax]
}

// Forward returns a tensor of the shape of `in`.
func (m *Softmin) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor { return x.Softmax(x.Neg(in), m.Dim.Or(-1)) })
}
