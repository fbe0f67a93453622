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

func newInstanceNorm(x *cgotorch.Exec, where string, channels int, o InstanceNormOptions) InstanceNorm {
	return InstanceNorm{newChannelNorm(x, where, channels, BatchNormOptions{Eps: o.Eps, Momentum: o.Momentum, NoAffine: !o.Affine, NoStatistics: !o.Statistics})}
}

func (m *InstanceNorm) forward(x *cgotorch.Exec, where string, dims int, in *cgotorch.Tensor) *cgotorch.Tensor {
	if in.Dim() != 2+dims {
		refuse(x, where, "the input is %s, want %d dimensions: [N, %d, ...]", in, 2+dims, m.Channels)
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
