package nn

import (
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// BatchNormOptions are the options of [NewBatchNorm1d], [NewBatchNorm2d] and [NewBatchNorm3d].
type BatchNormOptions struct {
	Eps               cgotorch.Opt[float64] // added to the variance; unset means 1e-5
	Momentum          cgotorch.Opt[float64] // weight of a batch in the running statistics; unset means 0.1
	CumulativeAverage bool                  // the running statistics are means over all batches, and Momentum has no effect
	NoAffine          bool                  // without Weight and Bias
	NoStatistics      bool                  // without running statistics; evaluation then uses the statistics of the batch
}

// ChannelNorm is the part that batch norms and instance norms share.
type ChannelNorm struct {
	Weight            *cgotorch.Tensor // [channels], or nil
	Bias              *cgotorch.Tensor // [channels], or nil
	RunningMean       *cgotorch.Tensor `state:",buffer"` // [channels], or nil
	RunningVar        *cgotorch.Tensor `state:",buffer"` // [channels], or nil; the unbiased variance
	NumBatchesTracked *cgotorch.Tensor `state:",host"`   // int64 of shape [], on the CPU; or nil
	Channels          int
	Eps, Momentum     cgotorch.Opt[float64] // as in [BatchNormOptions]
	Eval              bool                  // normalise by the running statistics
}

func newChannelNorm(x *cgotorch.Exec, where string, channels int, o BatchNormOptions) ChannelNorm {
	atLeast(x, where, 1, argument{"channels", channels})
	m := ChannelNorm{Channels: channels, Eps: o.Eps, Momentum: o.Momentum}
	n := int64(channels)
	if !o.NoAffine {
		m.Weight, m.Bias = x.Ones(cgotorch.Float32, n), x.Zeros(cgotorch.Float32, n)
	}
	if !o.NoStatistics {
		m.RunningMean, m.RunningVar = x.Zeros(cgotorch.Float32, n), x.Ones(cgotorch.Float32, n)
		m.NumBatchesTracked = onHost(x, func(x *cgotorch.Exec) *cgotorch.Tensor { return x.Zeros(cgotorch.Int64) })
	}
	keepParameters(x, where, m.Weight, m.Bias)
	keepBuffers(x, m.RunningMean, m.RunningVar, m.NumBatchesTracked)
	return m
}

// BatchNorm is the part that [BatchNorm1d], [BatchNorm2d] and [BatchNorm3d] share.
type BatchNorm struct {
	ChannelNorm
	CumulativeAverage bool // as in [BatchNormOptions]; if set, training cannot be captured

	ranks Ranks // in training the statistics are those of the batches of all ranks; nil means of this one
}

func newBatchNorm(x *cgotorch.Exec, where string, channels int, o BatchNormOptions) BatchNorm {
	return BatchNorm{ChannelNorm: newChannelNorm(x, where, channels, o), CumulativeAverage: o.CumulativeAverage}
}

// BatchNorm2d normalises each channel over the batch and the image. Training updates the running
// statistics. Evaluation uses them to normalise.
type BatchNorm2d struct {
	BatchNorm
	Unfused bool // use LibTorch's operators only; see [SetFused]
}

// NewBatchNorm2d makes a layer for images with the given number of channels, in float32 on x's
// device. Weights begin as 1, biases as 0, the running mean as 0 and the running variance as 1.
func NewBatchNorm2d(x *cgotorch.Exec, channels int, o BatchNormOptions) *BatchNorm2d {
	return &BatchNorm2d{BatchNorm: newBatchNorm(x, "nn.NewBatchNorm2d", channels, o)}
}

// forward is Forward for sequences, where dims is 1, and for volumes, where it is 3.
func (m *BatchNorm) forward(x *cgotorch.Exec, where string, dims int, in *cgotorch.Tensor) *cgotorch.Tensor {
	switch {
	case dims == 1 && in.Dim() != 2 && in.Dim() != 3:
		refuse(x, where, "the input is %s, want [N, %d] or [N, %d, L]", in, m.Channels, m.Channels)
	case dims == 3 && in.Dim() != 5:
		refuse(x, where, "the input is %s, want [N, %d, D, H, W]", in, m.Channels)
	}
	o, mean, variance := m.begin(x, where, in)
	if m.isOverRanks() {
		return m.overRanks(x, in, mean, variance, o)
	}
	return x.BatchNorm(in, m.Weight, m.Bias, mean, variance, o)
}

// Forward maps [N, channels, H, W] to a tensor of the same shape. Training changes the running
// statistics and counts the batch. In a captured function, each launch changes the statistics and
// counts one batch. In training, Forward fails if a channel has only one value, because one value
// has no variance. Training with CumulativeAverage in a captured function fails with
// [cgotorch.ErrNotCapturable]. On CUDA, [NormReLU]'s kernels do the work, unless Unfused is set.
func (m *BatchNorm2d) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return m.activated(x, in, nil, "none")
}

// begin checks `in` and counts the batch, as [BatchNorm.begin] does.
func (m *BatchNorm2d) begin(x *cgotorch.Exec, in *cgotorch.Tensor) (o cgotorch.BatchNormOptions, mean, variance *cgotorch.Tensor) {
	if in.Dim() != 4 {
		refuse(x, "nn.BatchNorm2d", "the input is %s, want [N, %d, H, W]", in, m.Channels)
	}
	isFused(x, "nn.BatchNorm2d", &m.Unfused)
	return m.BatchNorm.begin(x, "nn.BatchNorm2d", in)
}

// begin counts the batch. It returns the options of the norm. It also returns the running
// statistics. They are nil if the norm neither uses nor changes them.
func (m *BatchNorm) begin(x *cgotorch.Exec, where string, in *cgotorch.Tensor) (o cgotorch.BatchNormOptions, mean, variance *cgotorch.Tensor) {
	if shape := in.Shape(); len(shape) > 1 && shape[1] != int64(m.Channels) {
		refuse(x, where, "the input is %s, with %d channels in dimension 1, want %d", in, shape[1], m.Channels)
	}
	o = cgotorch.BatchNormOptions{Training: m.trains(), Momentum: m.Momentum, Eps: m.Eps}
	if o.Training && in.Numel() == int64(m.Channels) && (m.ranks == nil || m.ranks.World() == 1) {
		refuse(x, where, "%s has one value per channel, which has no variance: use a larger batch or image, or running statistics in evaluation", in)
	}
	dependsOnMode(x, where, &m.Eval)
	mean, variance = m.RunningMean, m.RunningVar
	switch {
	case m.Eval:
	case x.Recomputing() || reportOf(x) != nil: // the first run of this Forward has added the batch to the running statistics, so this run must not
		mean, variance = nil, nil
	case m.NumBatchesTracked != nil:
		if m.CumulativeAverage && x.Capturing() {
			x.Fail(where, &cgotorch.Error{Op: where, Kind: cgotorch.ErrNotCapturable,
				Message: "with CumulativeAverage each step has another momentum: train eagerly, or set Momentum"})
		}
		x.EachLaunch(m.count)
		if m.CumulativeAverage {
			o.Momentum = cgotorch.Set(1 / m.batches(x))
		}
	}
	return o, mean, variance
}

// trains reports whether the norm uses the statistics of its batch.
func (m *BatchNorm) trains() bool { return !m.Eval || m.RunningMean == nil }

// count adds 1 to NumBatchesTracked. The host does the addition, because a kernel for each layer of
// a model took 1 to 2 % of a training step. If the program has moved NumBatchesTracked to a device,
// that device does the addition.
func (m *BatchNorm) count(x *cgotorch.Exec) {
	if m.NumBatchesTracked.Device() != cgotorch.CPU {
		x.NoGrad().AddScalarInPlace(m.NumBatchesTracked, 1).Close()
		return
	}
	atomic.AddInt64(m.counter(x), 1)
}

// batches returns the number of batches so far. If NumBatchesTracked is on a device, it waits for
// the device.
func (m *BatchNorm) batches(x *cgotorch.Exec) float64 {
	if m.NumBatchesTracked.Device() != cgotorch.CPU {
		return x.Item(m.NumBatchesTracked)
	}
	return float64(atomic.LoadInt64(m.counter(x)))
}

// counter returns a pointer to the number in NumBatchesTracked. NumBatchesTracked must be on the
// CPU.
func (m *BatchNorm) counter(x *cgotorch.Exec) *int64 {
	batches, err := cgotorch.HostSlice[int64](m.NumBatchesTracked)
	if err != nil {
		x.Fail("nn.BatchNorm", err)
	}
	return &batches[0]
}

// onHost returns a tensor that `make` makes on the CPU, also if x's device is a CUDA device.
func onHost(x *cgotorch.Exec, make func(x *cgotorch.Exec) *cgotorch.Tensor) *cgotorch.Tensor {
	if x.Device() == cgotorch.CPU {
		return make(x)
	}
	host := x.On(cgotorch.DefaultStream(cgotorch.CPU))
	t := make(host)
	made := host.Record()
	defer made.Close()
	x.Wait(made)
	return t
}
