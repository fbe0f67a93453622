package metric

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Correct returns the number of samples whose label is among the k largest logits, Int64 of shape
// []. The logits are [N, C]. The labels are int64 class numbers [N]. A label below 0 never counts,
// so ignored samples count as wrong. With k 1 this is top-1. The Do owns the result.
//
// Correct fails with [cgotorch.ErrInvalidArgument] if a shape or dtype does not fit, or if k is not
// from 1 to C. On the CPU it fails too for a logit that is NaN, and for a label of C or above. On a
// CUDA device, for which it does not wait, such samples count as wrong.
func Correct(x *cgotorch.Exec, logits, labels *cgotorch.Tensor, k int) *cgotorch.Tensor {
	x = check(x, "metric.Correct", logits, labels, k)
	return x.Tidy(func() *cgotorch.Tensor { return x.Sum(hits(x, "metric.Correct", logits, labels, k)) })
}

// Accuracy returns the fraction of samples whose label is among the k largest logits. It is Float32
// of shape []. Samples with a label below 0 do not count. If no sample counts, it is NaN. All else
// is as with [Correct].
func Accuracy(x *cgotorch.Exec, logits, labels *cgotorch.Tensor, k int) *cgotorch.Tensor {
	x = check(x, "metric.Accuracy", logits, labels, k)
	return x.Tidy(func() *cgotorch.Tensor {
		right := x.To(x.Sum(hits(x, "metric.Accuracy", logits, labels, k)), cgotorch.Float32)
		return x.Div(right, x.To(x.Sum(x.GeScalar(labels, 0)), cgotorch.Float32))
	})
}

// hits returns which samples are right, Bool [N].
func hits(x *cgotorch.Exec, where string, logits, labels *cgotorch.Tensor, k int) *cgotorch.Tensor {
	unknown := x.AnyDim(x.IsNaN(logits), 1, cgotorch.ReduceOptions{})
	refuseAny(x, where, unknown, "a logit is NaN")
	refuseAny(x, where, x.GeScalar(labels, logits.Shape()[1]), "a label is of none of the %d classes", logits.Shape()[1])
	_, best := x.TopK(logits, k, 1, cgotorch.TopKOptions{})
	right := x.AnyDim(x.Eq(best, x.Unsqueeze(labels, 1)), 1, cgotorch.ReduceOptions{})
	return x.LogicalAnd(right, x.LogicalNot(unknown))
}

// refuseAny makes the Do fail with ErrInvalidArgument if a flag is set. It looks only on the CPU,
// where nothing waits.
func refuseAny(x *cgotorch.Exec, where string, flags *cgotorch.Tensor, format string, args ...any) {
	if !flags.Device().IsCUDA() && x.Item(x.Any(flags)) != 0 {
		refuse(x, where, format, args...)
	}
}

// check returns x without gradients. It fails for logits and labels that do not fit.
func check(x *cgotorch.Exec, where string, logits, labels *cgotorch.Tensor, k int) *cgotorch.Exec {
	if logits.Dim() != 2 || labels.Dim() != 1 || labels.Shape()[0] != logits.Shape()[0] || labels.DType() != cgotorch.Int64 ||
		k < 1 || int64(k) > logits.Shape()[1] {
		refuse(x, where, "the logits are %s, the labels %s and k is %d; want [N, C], int64 [N] and a k from 1 to C", logits, labels, k)
	}
	return x.NoGrad().NoAutocast()
}

// refuse makes the Do fail with ErrInvalidArgument.
func refuse(x *cgotorch.Exec, where, format string, args ...any) {
	x.Fail(where, fmt.Errorf(format+": %w", append(args, cgotorch.ErrInvalidArgument)...))
}
