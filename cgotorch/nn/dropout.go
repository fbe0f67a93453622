package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Dropout sets random values to 0 in training, and multiplies the other values by 1/(1-P). In
// evaluation it returns its input unchanged.
type Dropout struct {
	P    float64 // probability that a value becomes 0, in [0, 1]; 0 drops nothing, and PyTorch's default is 0.5
	Eval bool
}

// Forward returns a tensor of the shape of `in`. In training it draws random numbers from
// LibTorch's generator.
func (m *Dropout) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	dependsOnMode(x, "nn.Dropout", &m.Eval)
	return x.Dropout(in, m.P, !m.Eval)
}

// Dropout1d sets random channels to 0 in training, and multiplies the other channels by 1/(1-P).
type Dropout1d struct {
	P    float64 // probability, in [0, 1]; 0 drops nothing, and PyTorch's default is 0.5
	Eval bool
}

// Forward returns a tensor of the shape of `in`, [N, C, L]. In training it draws random
// numbers from LibTorch's generator.
func (m *Dropout1d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return drop(x, "nn.Dropout1d", "aten::feature_dropout", in, m.P, &m.Eval)
}

// Dropout2d is [Dropout1d] for images.
type Dropout2d struct {
	P    float64 // probability, in [0, 1]; 0 drops nothing, and PyTorch's default is 0.5
	Eval bool
}

// Forward returns a tensor of the shape of `in`, [N, C, H, W]. In training it draws random
// numbers from LibTorch's generator.
func (m *Dropout2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return drop(x, "nn.Dropout2d", "aten::feature_dropout", in, m.P, &m.Eval)
}

// Dropout3d is [Dropout1d] for volumes.
type Dropout3d struct {
	P    float64 // probability, in [0, 1]; 0 drops nothing, and PyTorch's default is 0.5
	Eval bool
}

// Forward returns a tensor of the shape of `in`, [N, C, D, H, W]. In training it draws random
// numbers from LibTorch's generator.
func (m *Dropout3d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return drop(x, "nn.Dropout3d", "aten::feature_dropout", in, m.P, &m.Eval)
}

// AlphaDropout sets random values to the lowest value of a [SELU] in training. It then scales and
// shifts all values, so that mean and variance stay.
type AlphaDropout struct {
	P    float64 // probability, in [0, 1]; 0 drops nothing, and PyTorch's default is 0.5
	Eval bool
}

// Forward returns a tensor of the shape of `in`. In training it draws random
// numbers from LibTorch's generator.
func (m *AlphaDropout) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return drop(x, "nn.AlphaDropout", "aten::alpha_dropout", in, m.P, &m.Eval)
}

// FeatureAlphaDropout is [AlphaDropout] for whole channels.
type FeatureAlphaDropout struct {
	P    float64 // probability, in [0, 1]; 0 drops nothing, and PyTorch's default is 0.5
	Eval bool
}

// Forward returns a tensor of the shape of `in`, [N, C, ...]. In training it draws random
// numbers from LibTorch's generator.
func (m *FeatureAlphaDropout) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return drop(x, "nn.FeatureAlphaDropout", "aten::feature_alpha_dropout", in, m.P, &m.Eval)
}

// drop calls one of LibTorch's dropouts. In evaluation it returns a new handle to `in`.
func drop(x *cgotorch.Exec, where, op string, in *cgotorch.Tensor, p float64, eval *bool) *cgotorch.Tensor {
	dependsOnMode(x, where, eval)
	return x.Call1(op, in, p, !*eval)
}
