package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Dropout sets random values to 0 in training, and multiplies the other values by 1/(1-P). In
// evaluation it returns its input unchanged.
type Dropout struct {
	P    float64 // probability that a value becomes 0, in [0, 1]
	Eval bool
}

// Forward returns a tensor of the shape of `in`. In training it draws random numbers from
// LibTorch's generator.
func (m *Dropout) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	dependsOnMode(x, "nn.Dropout", &m.Eval)
	return x.Dropout(in, m.P, !m.Eval)
}
