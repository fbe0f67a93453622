package nn

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// RMSNormOptions are the options of [NewRMSNorm].
type RMSNormOptions struct {
	Eps      cgotorch.Opt[float64] // added to the mean of squares; unset means the smallest step of the dtype above 1
	NoAffine bool                  // without Weight
}

// RMSNorm divides by the root of the mean of squares over the last dimensions of its input. Field
// Shape has their sizes.
type RMSNorm struct {
	Weight *cgotorch.Tensor // [shape...], or nil
	Shape  []int64          // sizes of the last dimensions
	Eps    cgotorch.Opt[float64]
}

// NewRMSNorm makes a layer that normalises over the last dimensions. `shape` has the sizes of
// these dimensions. Weight is float32 on x's device, and begins as 1.
func NewRMSNorm(x *cgotorch.Exec, shape []int64, o RMSNormOptions) *RMSNorm {
	const where = "nn.NewRMSNorm"
	checkNormShape(x, where, shape)
	m := &RMSNorm{Shape: slices.Clone(shape), Eps: o.Eps}
	if !o.NoAffine {
		m.Weight = x.Ones(cgotorch.Float32, shape...)
	}
	keepParameters(x, where, m.Weight)
	return m
}

// Forward maps [..., shape...] to a tensor of the same shape. It does not wait.
func (m *RMSNorm) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	var eps any
	if e, ok := m.Eps.Get(); ok {
		eps = e
	}
	return x.Call1("aten::rms_norm", in, m.Shape, m.Weight, eps)
}
