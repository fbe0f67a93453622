package nn

import "github.com/streamtorch/streamtorch/cgotorch"

// Ranks sums a tensor over the processes that train one model. A distributed.Group is one.
type Ranks interface {
	World() int // the number of ranks
	// SumOverRanks returns the sum of t over all ranks. Its gradient is the sum of the gradients.
	SumOverRanks(x *cgotorch.Exec, t *cgotorch.Tensor) *cgotorch.Tensor
	// RankedNorm calls `norm`, which runs norms of the inputs in training as one collective. The
	// backward makes one more. `group` is the argument of that name of streamtorch::batch_norm_act.
	RankedNorm(x *cgotorch.Exec, in []*cgotorch.Tensor, norm func(group int64) *cgotorch.Tensor) *cgotorch.Tensor
}

// SetRanks makes the batch norms of m, a module or a tree of modules, use the statistics of the
// batches of all ranks in training, as torch.nn.SyncBatchNorm does. nil makes them use those of
// their own batch again. The names and values of the state stay as they are. See SyncBatchNorm of
// package distributed.
func SetRanks(m any, r Ranks) {
	Apply(m, func(m any) {
		switch m := m.(type) {
		case *BatchNorm1d:
			m.ranks = r
		case *BatchNorm2d:
			m.ranks = r
		case *BatchNorm3d:
			m.ranks = r
		}
	})
}

func (m *BatchNorm) isOverRanks() bool { return m.ranks != nil && m.trains() }

// ranked says whether the fused kernels take the norm of `in` over ranks. Then they reduce between
// the statistics and their use. All ranks must get the same answer. So a rank that alone has too
// many values or streams goes on, and its norm fails.
func (m *BatchNorm2d) ranked(x *cgotorch.Exec, in, addend *cgotorch.Tensor) bool {
	if m.Unfused || !in.Device().IsCUDA() {
		return false
	}
	way := m.way(x, in, addend, m.kernels())
	return way <= twoKernels || way == tooManyValues || way == tooManyStreams
}

// run calls norm with the number of the group, if the norm is over ranks. Otherwise with 0. The
// inputs are those of all norms that it runs.
func (m *BatchNorm2d) run(x *cgotorch.Exec, norm func(group int64) *cgotorch.Tensor, in ...*cgotorch.Tensor) *cgotorch.Tensor {
	if m.isOverRanks() {
		return m.ranks.RankedNorm(x, in, norm)
	}
	return norm(0)
}

// overRanks is the norm of `in` by the statistics of all ranks. It changes the running statistics,
// unless they are nil. It computes in float32, or in float64 for an input of float64.
//
// The forward and the backward make two collectives each, because the variance needs the mean
// first. With the sum of the squares instead, one would do, and float32 would lose digits.
//
// The device alone knows how many values the ranks have together. No value leaves the running
// statistics as they are. One value has no variance, and leaves the running variance as it is.
func (m *BatchNorm) overRanks(x *cgotorch.Exec, in, mean, variance *cgotorch.Tensor, o cgotorch.BatchNormOptions) *cgotorch.Tensor {
	x = x.NoAutocast()
	dtype := cgotorch.Float32
	if in.DType() == cgotorch.Float64 {
		dtype = cgotorch.Float64
	}
	wide := x.To(in, dtype)
	dims, broadcast := []int64{0}, []int64{1, int64(m.Channels)}
	for i := 2; i < in.Dim(); i++ {
		dims, broadcast = append(dims, int64(i)), append(broadcast, 1)
	}
	values := in.Numel() / int64(m.Channels)
	perChannel := func(t *cgotorch.Tensor) *cgotorch.Tensor { return x.View(t, broadcast...) }
	sum := func(t *cgotorch.Tensor) *cgotorch.Tensor { return x.SumDim(t, dims, cgotorch.SumOptions{}) }

	// The number of values goes with the sums, since the last batch of a rank may be smaller.
	all := m.ranks.SumOverRanks(x, x.Cat([]*cgotorch.Tensor{sum(wide), x.Full(dtype, values, 1)}, 0))
	count := x.Detach(x.Narrow(all, 0, m.Channels, 1))
	divisor := x.Clamp(count, 1, nil)
	average := x.Div(x.Narrow(all, 0, 0, m.Channels), divisor)
	centred := x.Sub(wide, perChannel(average))
	spread := x.Div(m.ranks.SumOverRanks(x, sum(x.Square(centred))), divisor)

	if mean != nil {
		y := x.NoGrad()
		weight := o.Momentum.Or(0.1)
		y.LerpInPlace(mean, y.Where(y.GtScalar(count, 0), y.To(average, mean.DType()), mean), weight)
		unbiased := y.Mul(spread, y.Div(count, y.AddScalar(count, -1)))
		y.LerpInPlace(variance, y.Where(y.GtScalar(count, 1), y.To(unbiased, variance.DType()), variance), weight)
	}
	out := x.Mul(centred, perChannel(x.Rsqrt(x.AddScalar(spread, o.Eps.Or(1e-5)))))
	if m.Weight != nil {
		out = x.Mul(out, perChannel(x.To(m.Weight, dtype)))
	}
	if m.Bias != nil {
		out = x.Add(out, perChannel(x.To(m.Bias, dtype)))
	}
	return x.To(out, in.DType())
}

// activate returns activation(out + addend): see BatchNorm2d.activated.
func activate(x *cgotorch.Exec, out, addend *cgotorch.Tensor, activation string) *cgotorch.Tensor {
	if addend != nil {
		out = x.Add(out, addend)
	}
	switch activation {
	case "relu":
		return x.ReLU(out)
	case "relu6":
		return x.ReLU6(out)
	case "silu":
		return x.SiLU(out)
	case "hardswish":
		return x.HardSwish(out)
	case "gelu":
		return x.GELU(out)
	}
	return out
}
