package text

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// Dense is ReLU(in @ WI.T) @ WO.T. It is a dense feed-forward layer, or one expert. The
// arithmetic of an expert is defined only here.
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
