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

// Exponential begins with 1 and multiplies the factor by gamma after each step. It is PyTorch's
// ExponentialLR.
func Exponential(gamma float64) Schedule {
	return func(step int) float64 { return math.Pow(gamma, float64(max(step, 0))) }
}

// Linear goes from `from` at step 0 to `to` at step number `steps`, and stays there. It is
// PyTorch's LinearLR.
func Linear(steps int, from, to float64) Schedule {
	return func(step int) float64 { return from + (to-from)*progress(step, 0, float64(steps)) }
}

// Polynomial falls from 1 at step 0 to 0 at step number `steps`, and stays there. It is the power
// of the fraction of the steps that are left. It is PyTorch's PolynomialLR.
func Polynomial(steps int, power float64) Schedule {
	return func(step int) float64 { return math.Pow(1-progress(step, 0, float64(steps)), power) }
}

// CosineRestarts falls from 1 to `floor` along half a period of a cosine, and begins again. The
// first period has `steps` steps, and each other one `growth` times as many as the one before. It
// is PyTorch's CosineAnnealingWarmRestarts. Numbers below 1 count as 1.
func CosineRestarts(steps, growth int, floor float64) Schedule {
	return func(step int) float64 {
		at, period := max(step, 0), max(steps, 1)
		for ; at >= period; period *= max(growth, 1) {
			at -= period
		}
		return cosine(1, floor, float64(at)/float64(period))
	}
}

// CyclicOptions set the shape of [Cyclic].
type CyclicOptions struct {
	Floor float64 // the smallest factor
	Up    int     // number of steps in which the factor climbs; 0 means 2000
	Down  int     // number of steps in which it falls; 0 means Up
	Halve bool    // each cycle has half of the height of the one before
	Gamma float64 // the height at a step is multiplied by Gamma to the power of the step; 0 means 1
}

// Cyclic climbs from Floor to 1 and falls back, again and again. It is PyTorch's CyclicLR with
// max_lr=lr, base_lr=Floor*lr and cycle_momentum=False.
func Cyclic(o CyclicOptions) Schedule {
	up := float64(o.Up)
	if o.Up < 1 {
		up = 2000
	}
	down := float64(o.Down)
	if o.Down < 1 {
		down = up
	}
	return func(step int) float64 {
		at := float64(max(step, 0))
		cycle := math.Floor(1 + at/(up+down))
		part := 1 + at/(up+down) - cycle // of the cycle
		height := part / (up / (up + down))
		if rise := up / (up + down); part > rise {
			height = (part - 1) / (rise - 1)
		}
		if o.Halve {
			height /= math.Pow(2, cycle-1)
		}
		if o.Gamma != 0 {
			height *= math.Pow(o.Gamma, at)
		}
		return o.Floor + (1-o.Floor)*height
	}
}

// Sequential uses one Schedule after another. Each milestone is the step at which the next Schedule
// begins, with its step 0. The milestones rise. It is PyTorch's SequentialLR. Without schedules,
// the factor is 1. Schedules behind the last milestone but one are not used.
func Sequential(milestones []int, schedules ...Schedule) Schedule {
	milestones = append([]int(nil), milestones...)
	return func(step int) float64 {
		part := sort.SearchInts(milestones, step+1)
		if part = min(part, len(schedules)-1); part < 0 {
			return 1
		}
		if part > 0 {
			step -= milestones[part-1]
		}
		return schedules[part](step)
	}
}

// Product multiplies the factors of several schedules. It is PyTorch's ChainedScheduler.
func Product(schedules ...Schedule) Schedule {
	return func(step int) float64 {
		factor := 1.0
		for _, s := range schedules {
			factor *= s(step)
		}
		return factor
	}
}

// OneCycleOptions set the shape of [OneCycle]. The defaults are PyTorch's.
type OneCycleOptions struct {
	Rise           float64 // fraction of the steps in which the factor climbs, in (0, 1); 0 means 0.3
	DivFactor      float64 // 1 divided by the factor at step 0; 0 means 25
	FinalDivFactor float64 // factor at step 0 divided by the factor at the last step; 0 means 10,000
	Linear         bool    // straight lines instead of cosines
	// ThreePhases falls from 1 to 1/DivFactor in as many steps as the climb takes, and then to the end.
	ThreePhases bool
}

// OneCycle climbs from 1/DivFactor to 1, and falls to 1/(DivFactor*FinalDivFactor) at step
// steps-1. After that step the factor stays the same. It is PyTorch's OneCycleLR with max_lr=lr and
// cycle_momentum=False.
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
		if second := 2 * top; o.ThreePhases {
			if float64(step) <= second {
				return between(1, first, progress(step, top, second))
			}
			return between(first, first/o.FinalDivFactor, progress(step, second, end))
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
