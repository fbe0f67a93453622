package nn

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// StochasticDepth sets all values of some samples of a batch to 0 in training. It multiplies the
// other samples by 1/(1-P). At the end of a residual block's body, StochasticDepth leaves the
// body out for some samples. In evaluation it returns its input unchanged. It is torchvision's
// StochasticDepth in mode "row".
type StochasticDepth struct {
	P    float64 // probability that a sample becomes 0, in [0, 1]
	Eval bool
}

// Forward returns a tensor of the shape of `in`, whose first dimension is the batch. In training
// it draws one random number for each sample from LibTorch's generator.
func (m *StochasticDepth) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if !(m.P >= 0 && m.P <= 1) || in.Dim() == 0 {
		refuse(x, "nn.StochasticDepth", "P is %v, want from 0 to 1; the input is %s, want a batch", m.P, in)
	}
	dependsOnMode(x, "nn.StochasticDepth", &m.Eval)
	if m.Eval || m.P == 0 {
		return x.Alias(in)
	}
	return x.Tidy(func() *cgotorch.Tensor {
		shape := slices.Repeat([]int64{1}, in.Dim())
		shape[0] = in.Shape()[0]
		kept := x.BernoulliInPlace(x.Empty(in.DType(), shape...), 1-m.P)
		if m.P < 1 {
			kept = x.DivScalarInPlace(kept, 1-m.P)
		}
		return x.Mul(in, kept)
	})
}
