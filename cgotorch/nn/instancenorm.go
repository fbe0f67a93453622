package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// InstanceNormOptions are the options of [NewInstanceNorm1d], [NewInstanceNorm2d] and
// [NewInstanceNorm3d].
type InstanceNormOptions struct {
	Eps        cgotorch.Opt[float64] // added to the variance; unset means 1e-5
	Momentum   cgotorch.Opt[float64] // weight of a batch in the running statistics; unset means 0.1
	Affine     bool                  // with Weight and Bias
	Statistics bool                  // with running statistics, by which evaluation normalises
}

// InstanceNorm is the part that [InstanceNorm1d], [InstanceNorm2d] and [InstanceNorm3d] share. Its
// NumBatchesTracked stays 0, as in PyTorch.
type InstanceNorm struct{ ChannelNorm }

// InstanceNorm1d normalises each channel of each sequence over its positions.
type InstanceNorm1d struct{ InstanceNorm }

// InstanceNorm2d normalises each channel of each image over its pixels.
type InstanceNorm2d struct{ InstanceNorm }

// InstanceNorm3d normalises each channel of each volume over its points.
type InstanceNorm3d struct{ InstanceNorm }

// NewInstanceNorm1d makes a layer for sequences with the given number of channels, in float32 on
// x's device. Weights begin as 1, biases as 0.
func NewInstanceNorm1d(x *cgotorch.Exec, channels int, o InstanceNormOptions) *InstanceNorm1d {
	return &InstanceNorm1d{newInstanceNorm(x, "nn.NewInstanceNorm1d", channels, o)}
}

// NewInstanceNorm2d is [NewInstanceNorm1d] for images.
func NewInstanceNorm2d(x *cgotorch.Exec, channels int, o InstanceNormOptions) *InstanceNorm2d {
	return &InstanceNorm2d{newInstanceNorm(x, "nn.NewInstanceNorm2d", channels, o)}
}

// NewInstanceNorm3d is [NewInstanceNorm1d] for volumes.
func NewInstanceNorm3d(x *cgotorch.Exec, channels int, o InstanceNormOptions) *InstanceNorm3d {
	return &InstanceNorm3d{newInstanceNorm(x, "nn.NewInstanceNorm3d", channels, o)}
}

func newInstanceNorm(x *cgotorch.Exec, where string, channels int, o InstanceNormOptions) InstanceNorm {
	return InstanceNorm{newChannelNorm(x, where, channels, BatchNormOptions{Eps: o.Eps, Momentum: o.Momentum, NoAffine: !o.Affine, NoStatistics: !o.Statistics})}
}

// Forward maps [N, channels, L] to a tensor of the same shape. With running statistics, training
// changes them and evaluation uses them. Forward fails if it normalises by the input and a channel
// has only one value, because one value has no variance. It does not wait.
func (m *InstanceNorm1d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.forward(x, "nn.InstanceNorm1d", 3, in)
}

// Forward maps [N, channels, H, W] to a tensor of the same shape, as [InstanceNorm1d.Forward] does.
func (m *InstanceNorm2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.forward(x, "nn.InstanceNorm2d", 4, in)
}

// Forward maps [N, channels, D, H, W] to a tensor of the same shape, as [InstanceNorm1d.Forward]
// does.
func (m *InstanceNorm3d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.forward(x, "nn.InstanceNorm3d", 5, in)
}

func (m *InstanceNorm) forward(x *cgotorch.Exec, where string, dims int, in *cgotorch.Tensor) *cgotorch.Tensor {
	if in.Dim() != dims {
		refuse(x, where, "the input is %s, want %d dimensions: [N, %d, ...]", in, dims, m.Channels)
	}
	dependsOnMode(x, where, &m.Eval)
	mean, variance := m.RunningMean, m.RunningVar
	fromInput := !m.Eval || mean == nil
	if shape := in.Shape(); fromInput && in.Numel() == shape[0]*shape[1] && in.Numel() > 0 {
		refuse(x, where, "%s has one spatial value per channel, which has no variance: use a larger input, or running statistics in evaluation", in)
	}
	if fromInput && (x.Recomputing() || reportOf(x) != nil) { // this run must not change the running statistics
		mean, variance = nil, nil
	}
	return x.InstanceNorm(in, m.Weight, m.Bias, mean, variance, cgotorch.InstanceNormOptions{
		UseRunningStatistics: !fromInput, Momentum: m.Momentum, Eps: m.Eps,
	})
}
