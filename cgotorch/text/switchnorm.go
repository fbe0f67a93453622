package text

import "github.com/streamtorch/streamtorch/cgotorch"

// rmsNorm is T5's layer norm. It divides by the root of the mean square. It does not subtract the
// mean, and it has no bias.
type rmsNorm struct {
	Weight *cgotorch.Tensor // [width]
	Eps    float64          // added to the mean square
}

// Forward maps `in` [..., width] to the same shape. It computes in float32 and rounds once.
// Hugging Face's transformers rounds twice in bfloat16.
func (m *rmsNorm) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return call(plain(x), "aten::rms_norm", in, m.Weight.Shape(), m.Weight, m.Eps)
}
