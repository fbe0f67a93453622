package nn

import (
	"math"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// These are the options of the losses below. Each zero value is PyTorch's default.
type (
	L1Options       = cgotorch.LossOptions
	SmoothL1Options = cgotorch.SmoothL1LossOptions
)

// SmoothL1 is the mean of the differences of predictions and targets of equal shapes. A difference
// d counts d*d/(2*Beta) if its magnitude is below Beta. A larger difference counts |d| - Beta/2.
// With a Beta of 0 it is [L1].
func SmoothL1(x *cgotorch.Exec, predictions, targets *cgotorch.Tensor, o SmoothL1Options) *cgotorch.Tensor {
	checkOpen(x, "nn.SmoothL1", "predictions", predictions, "targets", targets)
	checkShapes(x, "nn.SmoothL1", predictions, targets)
	if o.Beta.Or(1) == 0 {
		return x.L1Loss(predictions, targets, L1Options{Reduction: o.Reduction})
	}
	return x.SmoothL1Loss(predictions, targets, o)
}

// GaussianNLLOptions are the options of [GaussianNLL].
type GaussianNLLOptions struct {
	Reduction cgotorch.Reduction
	Full      bool                  // adds the constant log(2*pi)/2
	Eps       cgotorch.Opt[float64] // least variance; unset means 1e-6
}

// GaussianNLL is the negative log likelihood of targets under normal distributions with the given
// means and variances. All have equal shapes, but `variances` may be 1 in one dimension, or lack
// the last one. A variance below 0 counts as Eps, where PyTorch fails: the test would wait for the
// device.
func GaussianNLL(x *cgotorch.Exec, means, targets, variances *cgotorch.Tensor, o GaussianNLLOptions) *cgotorch.Tensor {
	const where = "nn.GaussianNLL"
	checkOpen(x, where, "means", means, "targets", targets)
	checkOpen(x, where, "means", means, "variances", variances)
	checkShapes(x, where, means, targets)
	have, want := variances.Shape(), means.Shape()
	lacksLast := len(want) > 0 && slices.Equal(have, want[:len(want)-1])
	if !lacksLast && !equalButOne(have, want) {
		refuse(x, where, "the variances are %s, the means %s; want one shape, or variances of 1 in one dimension or without the last one", variances, means)
	}
	return x.Tidy(func() *cgotorch.Tensor {
		variance := x.Clone(variances)
		if lacksLast {
			variance = x.Unsqueeze(variance, -1)
		}
		x.NoGrad().ClampInPlace(variance, o.Eps.Or(1e-6), nil)
		loss := x.MulScalar(x.Add(x.Log(variance), x.Div(x.Square(x.Sub(means, targets)), variance)), 0.5)
		if o.Full {
			loss = x.AddScalar(loss, 0.5*math.Log(2*math.Pi))
		}
		return reduce(x, where, loss, o.Reduction)
	})
}

// equalButOne reports whether two shapes are equal, or `have` is 1 in the only dimension in which
// they differ.
func equalButOne(have, want []int64) bool {
	if len(have) != len(want) {
		return false
	}
	differ := 0
	for i, n := range have {
		if n != want[i] && n != 1 {
			return false
		}
		if n != want[i] {
			differ++
		}
	}
	return differ <= 1
}

// KLDivOptions are the options of [KLDiv].
type KLDivOptions struct {
	Reduction cgotorch.Reduction
	// BatchMean divides the sum by the size of the first dimension. This is the divergence as
	// mathematics defines it. Reduction must then be its zero value.
	BatchMean bool
	LogTarget bool // the targets are logarithms of probabilities
}

// KLDiv is the Kullback-Leibler divergence of `targets`, which are probabilities, from
// distributions. The argument `logProbabilities` has the logarithms of these. Both have equal
// shapes.
func KLDiv(x *cgotorch.Exec, logProbabilities, targets *cgotorch.Tensor, o KLDivOptions) *cgotorch.Tensor {
	const where = "nn.KLDiv"
	checkOpen(x, where, "log probabilities", logProbabilities, "targets", targets)
	checkShapes(x, where, logProbabilities, targets)
	how := cgotorch.KLDivOptions{Reduction: o.Reduction, LogTarget: o.LogTarget}
	if !o.BatchMean {
		return x.KLDiv(logProbabilities, targets, how)
	}
	if o.Reduction != cgotorch.ReductionMean || logProbabilities.Dim() == 0 {
		refuse(x, where, "BatchMean of %s with a Reduction of %v, want a batch without Reduction", logProbabilities, o.Reduction)
	}
	how.Reduction = cgotorch.ReductionSum
	return x.Tidy(func() *cgotorch.Tensor {
		return x.DivScalar(x.KLDiv(logProbabilities, targets, how), logProbabilities.Shape()[0])
	})
}

// reduce returns the losses, their mean or their sum.
func reduce(x *cgotorch.Exec, where string, losses *cgotorch.Tensor, how cgotorch.Reduction) *cgotorch.Tensor {
	switch how {
	case cgotorch.ReductionMean:
		return x.Mean(losses)
	case cgotorch.ReductionSum:
		return x.Sum(losses)
	case cgotorch.ReductionNone:
		return losses
	}
	refuse(x, where, "Reduction is %v, want mean, sum or none", how)
	return nil
}
