package text

import "github.com/streamtorch/streamtorch/cgotorch"

// rmsNorm divides by the root of the mean square: T5's layer norm, without mean or bias.
type rmsNorm struct {
	Weight *cgotorch.Tensor // [width]
	Eps    float64          // added to the mean square
}

// Forward maps [..., width] to the same shape. It computes in float32 and rounds once. In bfloat16
// transformers rounds twice.
func (m *rmsNorm) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return call(plain(x), "aten::rms_norm", in, m.Weight.Shape(), m.Weight, m.Eps)
}
