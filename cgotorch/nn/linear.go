package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Linear computes in @ Weight.T + Bias.
type Linear struct {
	Weight *cgotorch.Tensor // [out, in]
	Bias   *cgotorch.Tensor // [out], or nil
	// Unfused makes the layer, and a GELU behind it in a [Sequential], use LibTorch's operators only;
	// see [SetFused].
	Unfused bool
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

// Forward maps [..., in] to [..., out]. On CUDA, kernels of this library compute the gradient of
// Bias, unless Unfused is set.
func (m *Linear) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if fused := isFused(x, "nn.Linear", &m.Unfused); m.Bias == nil || !fused || !in.Device().IsCUDA() {
		return x.Linear(in, castOf(x, m.Weight), castOf(x, m.Bias))
	}
	return x.Call1("streamtorch::linear", in, castOf(x, m.Weight), castOf(x, m.Bias))
}

// activated returns gelu(m(in)). One kernel of backward computes the gradients of m's result and
// of Bias.
func (m *Linear) activated(x *cgotorch.Exec, in *cgotorch.Tensor, gelu *GELU) *cgotorch.Tensor {
	approximate := "none"
	if gelu.Tanh {
		approximate = "tanh"
	}
	return x.Call1("streamtorch::linear_gelu", in, castOf(x, m.Weight), castOf(x, m.Bias), approximate, isFused(x, "nn.Linear", &m.Unfused))
}
