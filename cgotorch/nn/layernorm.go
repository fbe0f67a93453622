package nn

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// LayerNormOptions are the options of [NewLayerNorm].
type LayerNormOptions struct {
	Eps      cgotorch.Opt[float64] // added to the variance; unset means 1e-5
	NoAffine bool                  // without Weight and Bias
	NoBias   bool
}

// LayerNorm normalises over the last dimensions of its input. Field Shape has their sizes.
type LayerNorm struct {
	Weight *cgotorch.Tensor // [shape...], or nil
	Bias   *cgotorch.Tensor // [shape...], or nil
	Shape  []int64          // sizes of the last dimensions
	Eps    cgotorch.Opt[float64]
}

// NewLayerNorm makes a layer that normalises over the last dimensions. `shape` has the sizes of
// these dimensions. The tensors of the layer are float32 on x's device. Weights begin as 1,
// biases as 0.
func NewLayerNorm(x *cgotorch.Exec, shape []int64, o LayerNormOptions) *LayerNorm {
	const where = "nn.NewLayerNorm"
	if len(shape) == 0 || slices.Min(shape) < 1 {
		refuse(x, where, "shape is %v, want one size or more, each at least 1", shape)
	}
	m := &LayerNorm{Shape: slices.Clone(shape), Eps: o.Eps}
	if !o.NoAffine {
		m.Weight = x.Ones(cgotorch.Float32, shape...)
		if !o.NoBias {
			m.Bias = x.Zeros(cgotorch.Float32, shape...)
		}
	}
	keepParameters(x, where, m.Weight, m.Bias)
	return m
}

// Forward maps [..., shape...] to a tensor of the same shape.
func (m *LayerNorm) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.LayerNorm(in, m.Shape, m.Weight, m.Bias, cgotorch.LayerNormOptions{Eps: m.Eps})
}
