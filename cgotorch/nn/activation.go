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

// HardSigmoid computes ReLU6(in+3)/6.
type HardSigmoid struct{}

// Forward returns a tensor of the shape of `in`.
func (*HardSigmoid) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.HardSigmoid(in)
}

// HardTanh limits values to [Min, Max].
type HardTanh struct {
	Min cgotorch.Scalar // nil means -1
	Max cgotorch.Scalar // nil means 1
}

// Forward returns a tensor of the shape of `in`.
func (m *HardTanh) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.HardTanh(in, m.Min, m.Max)
}

// LogSigmoid computes log(sigmoid(in)), without overflow.
type LogSigmoid struct{}

// Forward returns a tensor of the shape of `in`.
func (*LogSigmoid) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.LogSigmoid(in)
}

// Mish computes in*tanh(log(1+exp(in))).
type Mish struct{}

// Forward returns a tensor of the shape of `in`.
func (*Mish) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::mish", in)
}

// ELU keeps values above 0 and maps the other values to Alpha*(exp(in)-1).
type ELU struct {
	Alpha cgotorch.Scalar // nil means 1
}

// Forward returns a tensor of the shape of `in`.
func (m *ELU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.ELU(in, m.Alpha)
}

// CELU keeps values above 0 and maps the other values to Alpha*(exp(in/Alpha)-1).
type CELU struct {
	Alpha cgotorch.Opt[float64] // unset means 1
}

// Forward returns a tensor of the shape of `in`.
func (m *CELU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::celu", in, m.Alpha.Or(1))
}

// SELU is 1.0507 times an [ELU] with an Alpha of 1.6733. A deep net of SELUs keeps mean and
// variance.
type SELU struct{}

// Forward returns a tensor of the shape of `in`.
func (*SELU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::selu", in)
}

// Softplus computes log(1+exp(Beta*in))/Beta. Where Beta*in is above Threshold, the result is the
// input itself.
type Softplus struct {
	Beta      cgotorch.Scalar // nil means 1
	Threshold cgotorch.Scalar // nil means 20
}

// Forward returns a tensor of the shape of `in`.
func (m *Softplus) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Softplus(in, cgotorch.SoftplusOptions{Beta: m.Beta, Threshold: m.Threshold})
}

// Softsign computes in/(1+|in|).
type Softsign struct{}

// Forward returns a tensor of the shape of `in`.
func (*Softsign) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor { return x.Div(in, x.AddScalar(x.Abs(in), 1)) })
}

// TanhShrink computes in - tanh(in).
type TanhShrink struct{}

// Forward returns a tensor of the shape of `in`.
func (*TanhShrink) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor { return x.Sub(in, x.Tanh(in)) })
}

// HardShrink sets values in [-Lambda, Lambda] to 0.
type HardShrink struct {
	Lambda cgotorch.Opt[float64] // unset means 0.5
}

// Forward returns a tensor of the shape of `in`.
func (m *HardShrink) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::hardshrink", in, m.Lambda.Or(0.5))
}

// SoftShrink moves values towards 0 by Lambda. Values in [-Lambda, Lambda] become 0.
type SoftShrink struct {
	Lambda cgotorch.Opt[float64] // at least 0; unset means 0.5
}

// Forward returns a tensor of the shape of `in`.
func (m *SoftShrink) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::softshrink", in, m.Lambda.Or(0.5))
}

// Threshold keeps values above Threshold and replaces the other values by Value.
type Threshold struct {
	Threshold, Value float64
}

// Forward returns a tensor of the shape of `in`.
func (m *Threshold) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::threshold", in, m.Threshold, m.Value)
}

// RReLU keeps values above 0. In training it multiplies each other value by a random number
// between Lower and Upper. In evaluation it multiplies them by the mean of the two.
type RReLU struct {
	Lower cgotorch.Opt[float64] // unset means 1/8
	Upper cgotorch.Opt[float64] // unset means 1/3
	Eval  bool
}

// Forward returns a tensor of the shape of `in`. In training it draws random numbers from
// LibTorch's generator.
func (m *RReLU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	dependsOnMode(x, "nn.RReLU", &m.Eval)
	return x.Call1("aten::rrelu", in, m.Lower.Or(1.0/8), m.Upper.Or(1.0/3), !m.Eval)
}
