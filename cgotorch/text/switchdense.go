package text

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Dense is ReLU(in @ WI.T) @ WO.T. It is a dense feed-forward layer, or one expert. The
// arithmetic of an expert is defined only here. A program that keeps experts in its own memory
// makes a Dense whose weights lie in that memory.
type Dense struct {
	WI *nn.Linear // [d_ff, d_model]
	WO *nn.Linear // [d_model, d_ff]
}

// Forward maps `in` [..., d_model] to the same shape.
func (m *Dense) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor {
		return m.WO.Forward(x, x.ReLUInPlace(m.WI.Forward(x, in)))
	})
}

// NewExpert makes an expert on x's device. The values of its weights are undefined until the
// caller replaces the weights by other tensors. If `dtype` is 0, the weights are Float32.
func NewExpert(x *cgotorch.Exec, c SwitchConfig, dtype cgotorch.DType) *Dense {
	if dtype == 0 {
		dtype = cgotorch.Float32
	}
	weight := func(out, in int) *nn.Linear {
		return &nn.Linear{Weight: x.Keep(x.Empty(dtype, int64(out), int64(in)))}
	}
	return &Dense{WI: weight(c.DFF, c.DModel), WO: weight(c.DModel, c.DFF)}
}
