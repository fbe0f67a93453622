package metric

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// AUC returns the area under the ROC curve, Float64 of shape []. The area is the probability that a
// positive sample has a higher score than a negative one. Equal scores count one half. The scores
// are [N], of a floating dtype. The labels are [N]: Bool, or numbers of which 0 is negative. If all
// samples have the same label, the area is NaN. The Do owns the result.
//
// AUC fails with [cgotorch.ErrInvalidArgument] if a shape or dtype does not fit. On the CPU it
// fails too for a score or a label that is NaN. On a CUDA device, for which it does not wait, the
// area is then NaN.
func AUC(x *cgotorch.Exec, scores, labels *cgotorch.Tensor) *cgotorch.Tensor {
	const where = "metric.AUC"
	if scores.Dim() != 1 || labels.Dim() != 1 || scores.Shape()[0] != labels.Shape()[0] || !scores.DType().IsFloat() {
		refuse(x, where, "the scores are %s and the labels %s, want [N] of both, and scores of a floating dtype", scores, labels)
	}
	x = x.NoGrad().NoAutocast()
	return x.Tidy(func() *cgotorch.Tensor {
		exact := x.To(scores, cgotorch.Float64)
		unknown := x.LogicalOr(x.IsNaN(exact), x.IsNaN(labels))
		refuseAny(x, where, unknown, "a score or a label is NaN")
		sorted, _ := x.Sort(exact, 0, cgotorch.SortOptions{})
		below := x.Call1("aten::searchsorted.Tensor", sorted, exact, false, false)
		notAbove := x.Call1("aten::searchsorted.Tensor", sorted, exact, false, true)
		// The mean rank of a score, from 1, is that of the first and the last equal score.
		ranks := x.MulScalar(x.To(x.AddScalar(x.Add(below, notAbove), 1), cgotorch.Float64), 0.5)
		positive := x.To(x.NeScalar(labels, 0), cgotorch.Float64)
		n := x.Sum(positive)
		least := x.MulScalar(x.Mul(n, x.AddScalar(n, 1)), 0.5)
		pairs := x.Mul(n, x.ScalarSub(n, float64(scores.Shape()[0])))
		area := x.Div(x.Sub(x.Sum(x.Mul(ranks, positive)), least), pairs)
		return x.MaskedFill(area, x.Any(unknown), math.NaN())
	})
}
