package optim

import (
	"math"
	"sort"
)

// Schedule returns the factor of the learning rate for a step. Give the factor to
// [Optimizer.SetScale]. Steps are counted from 0. The caller decides whether a step is a batch or
// an epoch. A Schedule has no state, so a resumed training calls it with the next step.
type Schedule func(step int) float64

// Constant returns the Schedule that is 1 at every step.
func Constant() Schedule { return func(int) float64 { return 1 } }

// StepDecay begins with 1 and multiplies the factor by gamma each time `every` steps are done. It
// is PyTorch's StepLR. If `every` is below 1, the factor stays 1.
func StepDecay(every int, gamma float64) Schedule {
	return func(step int) float64 {
		if every < 1 || step < every {
			return 1
		}
		return math.Pow(gamma, float64(step/every))
	}
}

// MultiStep begins with 1 and multiplies the factor by gamma at each step that is in milestones.
// It is PyTorch's MultiStepLR.
func MultiStep(milestones []int, gamma float64) Schedule {
	sorted := append([]int(nil), milestones...)
	sort.Ints(sorted)
	return func(step int) float64 {
		return math.Pow(gamma, float64(sort.SearchInts(sorted, step+1)))
	}
}

// Cosine falls from 1 to `floor` along half a period of a cosine. It is 1 at step 0, and `floor`
// at step number `steps` and later. It is PyTorch's CosineAnnealingLR with T_max=steps and
// eta_min=floor*lr. But PyTorch's factor rises again after T_max.
func Cosine(steps int, floor float64) Schedule {
	return func(step int) float64 {
		return cosine(1, floor, progress(step, 0, float64(steps)))
	}
}

// Warmup climbs linearly from `start` at step 0 to 1 at step number `steps`. From that step on,
// the factor is then(step - steps). It is PyTorch's LinearLR, with a second schedule after it, in
// a SequentialLR.
func Warmup(steps int, start float64, then Schedule) Schedule {
	return func(step int) float64 {
		if step < steps {
			return start + (1-start)*float64(max(step, 0))/float64(steps)
		}
		return then(step - max(steps, 0))
	}
}

// OneCycleOptions set the shape of [OneCycle]. The defaults are PyTorch's.
type OneCycleOptions struct {
	Rise           float64 // fraction of the steps in which the factor climbs, in (0, 1); 0 means 0.3
	DivFactor      float64 // 1 divided by the factor at step 0; 0 means 25
	FinalDivFactor float64 // factor at step 0 divided by the factor at the last step; 0 means 10,000
	Linear         bool    // straight lines instead of cosines
}

// OneCycle climbs from 1/DivFactor to 1, and falls to 1/(DivFactor*FinalDivFactor) at step
// steps-1. After that step the factor stays the same. It is PyTorch's OneCycleLR with max_lr=lr,
// two phases and cycle_momentum=False.
func OneCycle(steps int, o OneCycleOptions) Schedule {
	if o.Rise == 0 {
		o.Rise = 0.3
	}
	if o.DivFactor == 0 {
		o.DivFactor = 25
	}
	if o.FinalDivFactor == 0 {
		o.FinalDivFactor = 1e4
	}
	between := cosine
	if o.Linear {
		between = func(from, to, progress float64) float64 { return from + (to-from)*progress }
	}
	first := 1 / o.DivFactor
	top, end := o.Rise*float64(steps)-1, float64(steps-1)
	return func(step int) float64 {
		if float64(step) <= top {
			return between(first, 1, progress(step, 0, top))
		}
		return between(1, first/o.FinalDivFactor, progress(step, top, end))
	}
}

// The function `progress` returns 0 up to the step `from` and 1 from the step `to` on. Between
// the two it grows linearly. If `from` equals `to`, it is 1 at that step.
func progress(step int, from, to float64) float64 {
	switch at := float64(step); {
	case at >= to:
		return 1
	case at <= from:
		return 0
	default:
		return (at - from) / (to - from)
	}
}

// The function `cosine` goes from `from` to `to` along half a period of a cosine, while
// `progress` goes from 0 to 1.
func cosine(from, to, progress float64) float64 {
	return to + (from-to)/2*(math.Cos(math.Pi*progress)+1)
}
