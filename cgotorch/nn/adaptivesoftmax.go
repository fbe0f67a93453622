package nn

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// AdaptiveLogSoftmaxWithLoss is a softmax for many classes, of which few are frequent. The classes
// are sorted by frequency and cut into clusters. Head decides among the classes of the first
// cluster and the other clusters. Each other cluster has a smaller pair of layers in Tail.
type AdaptiveLogSoftmaxWithLoss struct {
	Head *Linear
	Tail []*Sequential // two layers for each cluster but the first
	Ends []int         // the first class behind each cluster; the last is the number of classes
}

// AdaptiveLogSoftmaxWithLossOptions are the options of [NewAdaptiveLogSoftmaxWithLoss].
type AdaptiveLogSoftmaxWithLossOptions struct {
	DivValue float64 // the features of the i-th tail are in/DivValue^i; 0 means 4
	HeadBias bool
}

// NewAdaptiveLogSoftmaxWithLoss makes the module for `in` features, in float32 on x's device. Each
// cutoff is the first class of a cluster, except the first cluster, which begins with class 0. The
// cutoffs rise, and lie above 0 and below `classes`. The weights are drawn as by
// torch.nn.AdaptiveLogSoftmaxWithLoss.
//
// Source: Grave et al., 2017, Efficient softmax approximation for GPUs.
func NewAdaptiveLogSoftmaxWithLoss(x *cgotorch.Exec, in, classes int, cutoffs []int, o AdaptiveLogSoftmaxWithLossOptions) *AdaptiveLogSoftmaxWithLoss {
	const where = "nn.NewAdaptiveLogSoftmaxWithLoss"
	atLeast(x, where, 1, argument{"in", in}, argument{"classes", classes})
	if o.DivValue == 0 {
		o.DivValue = 4
	}
	ends := append(append([]int{}, cutoffs...), classes)
	before := 0
	for _, end := range ends {
		if end <= before {
			refuse(x, where, "cutoffs are %v of %d classes, want numbers that rise, above 0 and below %d", cutoffs, classes, classes)
		}
		before = end
	}
	if len(cutoffs) == 0 || !(o.DivValue > 0) {
		refuse(x, where, "%d cutoffs and a DivValue of %v, want at least one cutoff and a number above 0", len(cutoffs), o.DivValue)
	}
	m := &AdaptiveLogSoftmaxWithLoss{Ends: ends}
	widths := make([]int, len(cutoffs))
	for i := range widths {
		if widths[i] = int(math.Floor(float64(in) / math.Pow(o.DivValue, float64(i+1)))); widths[i] < 1 {
			refuse(x, where, "%d features divided by %v^%d leave none for cluster %d: take a smaller DivValue or fewer cutoffs", in, o.DivValue, i+1, i+1)
		}
	}
	m.Head = NewLinear(x, in, ends[0]+len(cutoffs), LinearOptions{NoBias: !o.HeadBias})
	for i, width := range widths {
		m.Tail = append(m.Tail, NewSequential(
			NewLinear(x, in, width, LinearOptions{NoBias: true}),
			NewLinear(x, width, ends[i+1]-ends[i], LinearOptions{NoBias: true})))
	}
	return m
}

// Forward maps [N, in] to the logarithms of the probabilities of all classes, [N, classes]. PyTorch
// calls this log_prob.
func (m *AdaptiveLogSoftmaxWithLoss) Forward(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	m.check(x, "nn.AdaptiveLogSoftmaxWithLoss.Forward", in)
	return x.Tidy(func() *cgotorch.Tensor {
		head, first := x.LogSoftmax(m.Head.Forward(x, in), 1), m.Ends[0]
		parts := []*cgotorch.Tensor{x.Narrow(head, 1, 0, first)}
		for i, tail := range m.Tail {
			parts = append(parts, x.Add(x.LogSoftmax(tail.Forward(x, in), 1), x.Narrow(head, 1, first+i, 1)))
		}
		return x.Cat(parts, 1)
	})
}

// Predict maps [N, in] to the most likely classes, int64 [N].
func (m *AdaptiveLogSoftmaxWithLoss) Predict(x *cgotorch.Exec, in *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		return x.ArgMax(m.Forward(x.NoGrad(), in), 1, cgotorch.ReduceOptions{})
	})
}

// Loss maps [N, in] and the classes, int64 [N], to the logarithms of the probabilities of these
// classes, [N], and to the loss. The loss is minus their mean. A tail computes only the rows of its
// own cluster. Loss waits for the device for each tail, and cannot be captured. It fails with
// [cgotorch.ErrInvalidArgument] for a class that does not exist. PyTorch calls this forward.
func (m *AdaptiveLogSoftmaxWithLoss) Loss(x *cgotorch.Exec, in, target *cgotorch.Tensor) (output, loss *cgotorch.Tensor) {
	const where = "nn.AdaptiveLogSoftmaxWithLoss.Loss"
	m.check(x, where, in)
	if target.Dim() != 1 || target.DType() != cgotorch.Int64 || target.Numel() != in.Shape()[0] {
		refuse(x, where, "the classes are %s for the input %s, want int64 [N]", target, in)
	}
	if x.Capturing() {
		x.Fail(where, fmt.Errorf("the number of rows of each cluster comes from the device: capture Forward: %w", cgotorch.ErrNotCapturable))
	}
	output = x.Tidy(func() *cgotorch.Tensor {
		first := m.Ends[0]
		// In the head, a class of another cluster is the class of this cluster.
		inHead, rows := target, target.Numel()
		tails := x.ZerosLike(x.Narrow(in, 1, 0, 1))
		used := int64(0)
		for i, tail := range m.Tail {
			of := x.LogicalAnd(x.GeScalar(target, m.Ends[i]), x.LtScalar(target, m.Ends[i+1]))
			at := x.Squeeze(x.NonZero(of), 1)
			if at.Numel() == 0 {
				continue
			}
			used += at.Numel()
			inHead = x.Where(of, x.Full(cgotorch.Int64, first+i), inHead)
			local := x.AddScalar(x.IndexSelect(target, 0, at), -m.Ends[i])
			part := x.LogSoftmax(tail.Forward(x, x.IndexSelect(in, 0, at)), 1)
			tails = x.Call1("aten::index_copy", tails, 0, at, x.Gather(part, 1, x.Unsqueeze(local, 1)))
		}
		short := x.Item(x.Sum(x.LogicalAnd(x.GeScalar(target, 0), x.LtScalar(target, first))))
		if used += int64(short); used != rows {
			refuse(x, where, "%d classes are not from 0 to %d", rows-used, m.Ends[len(m.Ends)-1]-1)
		}
		head := x.LogSoftmax(m.Head.Forward(x, in), 1)
		return x.Squeeze(x.Add(tails, x.Gather(head, 1, x.Unsqueeze(inHead, 1))), 1)
	})
	return output, x.Neg(x.Mean(output))
}

func (m *AdaptiveLogSoftmaxWithLoss) check(x *cgotorch.Exec, where string, in *cgotorch.Tensor) {
	if len(m.Ends) != len(m.Tail)+1 {
		x.Fail(where, errors.New("make the module with NewAdaptiveLogSoftmaxWithLoss"))
	}
	if in.Dim() != 2 {
		refuse(x, where, "the input is %s, want [N, in]", in)
	}
}
