package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// BatchNorm2dOptions choose how [NewBatchNorm2d] scales and shifts, and which statistics it keeps.
type BatchNorm2dOptions struct {
	Eps               cgotorch.Opt[float64] // added to the variance; unset means 1e-5
	Momentum          cgotorch.Opt[float64] // weight of a batch in the running statistics; unset means 0.1
	CumulativeAverage bool                  // the running statistics are the mean over all batches, whatever Momentum is
	NoAffine          bool                  // no Weight and no Bias
	NoStatistics      bool                  // no running statistics: evaluation normalises by the batch too
}

// BatchNorm2d normalises each channel over the batch and the image. Evaluation normalises by
// running statistics, which training updates.
type BatchNorm2d struct {
	Weight            *cgotorch.Tensor // [channels], or nil
	Bias              *cgotorch.Tensor // [channels], or nil
	RunningMean       *cgotorch.Tensor `state:",buffer"` // [channels], or nil
	RunningVar        *cgotorch.Tensor `state:",buffer"` // [channels], or nil; unbiased
	NumBatchesTracked *cgotorch.Tensor `state:",buffer"` // int64, a scalar, or nil
	Channels          int
	Eps, Momentum     cgotorch.Opt[float64] // as in [BatchNorm2dOptions]
	CumulativeAverage bool                  // as in [BatchNorm2dOptions]; each training step then waits for the device
	Eval              bool                  // normalise by the running statistics
}

// NewBatchNorm2d makes a layer for images of the given channels, in float32 on x's device. Weights
// begin as 1, biases as 0, the running mean as 0 and the running variance as 1.
func NewBatchNorm2d(x *cgotorch.Exec, channels int, o BatchNorm2dOptions) *BatchNorm2d {
	const where = "nn.NewBatchNorm2d"
	atLeast(x, where, 1, argument{"channels", channels})
	m := &BatchNorm2d{Channels: channels, Eps: o.Eps, Momentum: o.Momentum, CumulativeAverage: o.CumulativeAverage}
	n := int64(channels)
	if !o.NoAffine {
		m.Weight, m.Bias = x.Ones(cgotorch.Float32, n), x.Zeros(cgotorch.Float32, n)
	}
	if !o.NoStatistics {
		m.RunningMean, m.RunningVar = x.Zeros(cgotorch.Float32, n), x.Ones(cgotorch.Float32, n)
		m.NumBatchesTracked = x.Zeros(cgotorch.Int64)
	}
	keepParameters(x, where, m.Weight, m.Bias)
	keepBuffers(x, m.RunningMean, m.RunningVar, m.NumBatchesTracked)
	return m
}

// Forward maps [N, channels, H, W] to the same shape. Training changes the running statistics. With
// CumulativeAverage, training waits for the device. Forward fails in training where a channel has a
// single value, since its variance is not defined.
func (m *BatchNorm2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	if in.Dim() != 4 {
		refuse(x, "nn.BatchNorm2d", "the input is %v, want [N, %d, H, W]", in, m.Channels)
	}
	o := cgotorch.BatchNormOptions{Training: !m.Eval || m.RunningMean == nil, Momentum: m.Momentum, Eps: m.Eps}
	if o.Training && in.Numel() == int64(m.Channels) {
		refuse(x, "nn.BatchNorm2d", "%v has one value per channel, which has no variance: use a larger batch or image, or running statistics in evaluation", in)
	}
	dependsOnMode(x, "nn.BatchNorm2d", &m.Eval)
	mean, variance := m.RunningMean, m.RunningVar
	switch {
	case m.Eval:
	case x.Recomputing(): // the running statistics hold this batch already
		mean, variance = nil, nil
	case m.NumBatchesTracked != nil:
		x.CountLater(m.NumBatchesTracked)
		if m.CumulativeAverage {
			o.Momentum = cgotorch.Set(1 / x.Item(m.NumBatchesTracked))
		}
	}
	return x.BatchNorm(in, m.Weight, m.Bias, mean, variance, o)
}
