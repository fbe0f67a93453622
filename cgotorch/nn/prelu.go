package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// PReLUOptions are the options of [NewPReLU].
type PReLUOptions struct {
	Channels int                   // number of weights: 1, or one for each channel; 0 means 1
	Initial  cgotorch.Opt[float64] // the weights begin with this number; unset means 0.25
}

// PReLU keeps values above 0 and multiplies the other values by Weight, which it learns.
type PReLU struct {
	Weight *cgotorch.Tensor // [1], or [channels]
}

// NewPReLU makes a layer with weights in float32 on x's device.
func NewPReLU(x *cgotorch.Exec, o PReLUOptions) *PReLU {
	const where = "nn.NewPReLU"
	atLeast(x, where, 0, argument{"Channels", o.Channels})
	m := &PReLU{Weight: x.Full(cgotorch.Float32, o.Initial.Or(0.25), int64(max(o.Channels, 1)))}
	keepParameters(x, where, m.Weight)
	return m
}

// Forward maps [N, channels, ...] to a tensor of the same shape. It does not wait.
func (m *PReLU) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Call1("aten::prelu", in, m.Weight)
}
