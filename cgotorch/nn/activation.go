package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// ReLU computes max(in, 0).
type ReLU struct {
	InPlace bool // overwrites the input, which saves memory
}

// Forward returns a tensor of the shape of `in`.
func (m *ReLU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if m.InPlace {
		return x.ReLUInPlace(in)
	}
	return x.ReLU(in)
}

// ReLU6 limits values to [0, 6].
type ReLU6 struct {
	InPlace bool // overwrites the input, which saves memory
}

// Forward returns a tensor of the shape of `in`.
func (m *ReLU6) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if m.InPlace {
		return x.ReLU6InPlace(in)
	}
	return x.ReLU6(in)
}

// LeakyReLU keeps values above 0 and multiplies the other values by NegativeSlope.
type LeakyReLU struct {
	NegativeSlope cgotorch.Scalar // nil means 0.01
}

// Forward returns a tensor of the shape of `in`.
func (m *LeakyReLU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.LeakyReLU(in, m.NegativeSlope)
}

// Sigmoid computes 1/(1+exp(-in)).
type Sigmoid struct{}

// Forward returns a tensor of the shape of `in`.
func (*Sigmoid) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.Sigmoid(in) }

// Tanh computes the hyperbolic tangent.
type Tanh struct{}

// Forward returns a tensor of the shape of `in`.
func (*Tanh) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.Tanh(in) }

// GELU multiplies each value by the probability that a standard normal number is below that
// value.
type GELU struct {
	Tanh bool // use the approximation with tanh
}

// Forward returns a tensor of the shape of `in`.
func (m *GELU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if m.Tanh {
		return x.GELUTanh(in)
	}
	return x.GELU(in)
}

// SiLU computes in*sigmoid(in). It is also called swish.
type SiLU struct{}

// Forward returns a tensor of the shape of `in`.
func (*SiLU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.SiLU(in) }

// HardSwish computes in*ReLU6(in+3)/6.
type HardSwish struct{}

// Forward returns a tensor of the shape of `in`.
func (*HardSwish) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.HardSwish(in)
}
