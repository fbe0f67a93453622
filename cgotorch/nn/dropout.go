package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Dropout zeroes values in training and scales the others by 1/(1-P). Evaluation passes the input
// on.
type Dropout struct {
	P    float64 // probability of zeroing a value, in [0, 1]
	Eval bool
}

// Forward keeps the shape. It draws from LibTorch's generator.
func (m *Dropout) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	dependsOnMode(x, "nn.Dropout", &m.Eval)
	return x.Dropout(in, m.P, !m.Eval)
}
