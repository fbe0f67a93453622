package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Linear computes in @ Weight.T + Bias.
type Linear struct {
	Weight *cgotorch.Tensor // [out, in]
	Bias   *cgotorch.Tensor // [out], or nil
}

// LinearOptions are the options of [NewLinear].
type LinearOptions struct {
	NoBias bool
}

// NewLinear makes a layer from `in` to `out` features, in float32 on x's device. It draws random
// weights as torch.nn.Linear does.
func NewLinear(x *cgotorch.Exec, in, out int, o LinearOptions) *Linear {
	const where = "nn.NewLinear"
	atLeast(x, where, 1, argument{"in", in}, argument{"out", out})
	m := &Linear{Weight: x.Empty(cgotorch.Float32, int64(out), int64(in))}
	if !o.NoBias {
		m.Bias = x.Empty(cgotorch.Float32, int64(out))
	}
	initLayer(x, m.Weight, m.Bias)
	keepParameters(x, where, m.Weight, m.Bias)
	return m
}

// Forward maps [..., in] to [..., out].
func (m *Linear) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Linear(in, castOf(x, m.Weight), castOf(x, m.Bias))
}
