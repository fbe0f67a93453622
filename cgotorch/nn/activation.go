package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// ReLU is max(in, 0).
type ReLU struct {
	InPlace bool // overwrite the input, which saves its memory
}

// Forward keeps the shape.
func (m *ReLU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if m.InPlace {
		return x.ReLUInPlace(in)
	}
	return x.ReLU(in)
}

// ReLU6 is in limited to [0, 6].
type ReLU6 struct {
	InPlace bool // overwrite the input, which saves its memory
}

// Forward keeps the shape.
func (m *ReLU6) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if m.InPlace {
		return x.ReLU6InPlace(in)
	}
	return x.ReLU6(in)
}

// LeakyReLU is in where it is above 0 and NegativeSlope*in elsewhere.
type LeakyReLU struct {
	NegativeSlope cgotorch.Scalar // nil means 0.01
}

// Forward keeps the shape.
func (m *LeakyReLU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.LeakyReLU(in, m.NegativeSlope)
}

// Sigmoid is 1/(1+exp(-in)).
type Sigmoid struct{}

// Forward keeps the shape.
func (*Sigmoid) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.Sigmoid(in) }

// Tanh is the hyperbolic tangent.
type Tanh struct{}

// Forward keeps the shape.
func (*Tanh) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor { return x.Tanh(in) }

// GELU is in times the normal distribution function of in.
type GELU struct {
	Tanh bool // the approximation by tanh
}

// Forward keeps the shape.
func (m *GELU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if m.Tanh {
		return x.GELUTanh(in)
	}
	return x.GELU(in)
}

// HardSwish is in*ReLU6(in+3)/6.
type HardSwish struct{}

// Forward keeps the shape.
func (*HardSwish) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.HardSwish(in)
}
