package optim

import (
	"fmt"
	"math"
	"sort"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// Schedule returns the factor of the learning rate for a step. Give the factor to
// [Optimizer.SetScale]. Steps are counted from 0. The caller decides whether a step is a batch or
// an epoch. A Schedule has no state, so a resumed training calls it with the next step.
//
// The functions that make a Schedule have no error to return. For arguments that are out of range,
// such as a negative number of steps or NaN, they panic with a [*cgotorch.Error] that names the
// argument and the line of the program.
type Schedule func(step int) float64

// limit is an argument of a function that makes a Schedule, with the smallest legal value.
type limit struct {
	name         string
	value, least float64
}

// demand panics if an argument is below its least value, infinite or NaN.
func demand(where string, limits ...limit) {
	for _, l := range limits {
		if !(l.value >= l.least) || math.IsInf(l.value, 0) {
			refuseSchedule(where, "%s is %v; it must be a number from %v up", l.name, l.value, l.least)
		}
	}
}

// demandSchedules panics if a schedule is nil.
func demandSchedules(where string, schedules ...Schedule) {
	for i, s := range schedules {
		if s == nil {
			refuseSchedule(where, "schedule %d is nil; use optim.Constant for a factor of 1", i)
		}
	}
}

func refuseSchedule(where, format string, args ...any) {
	panic(&cgotorch.Error{Op: where, Kind: cgotorch.ErrInvalidArgument, Caller: inside.Core.Caller(), Message: fmt.Sprintf(format, args...)})
}

// Constant returns the Schedule that is 1 at every step.
func Constant() Schedule { return func(int) float64 { return 1 } }

// StepDecay begins with 1 and multiplies the factor by gamma each time `every` steps are done. It
// is PyTorch's StepLR, and its ExponentialLR if `every` is 1. `every` is 1 or more.
func StepDecay(every int, gamma float64) Schedule {
	demand("optim.StepDecay", limit{"every", float64(every), 1}, limit{"gamma", gamma, 0})
	return func(step int) float64 {
		if step < every {
			return 1
		}
		return math.Pow(gamma, float64(step/every))
	}
}

// MultiStep begins with 1 and multiplies the factor by gamma at each step that is in milestones.
// It is PyTorch's MultiStepLR.
func MultiStep(milestones []int, gamma float64) Schedule {
	demand("optim.MultiStep", limit{"gamma", gamma, 0})
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
	demand("optim.Cosine", limit{"steps", float64(steps), 0}, limit{"floor", floor, 0})
	return func(step int) float64 {
		return cosine(1, floor, progress(step, 0, float64(steps)))
	}
}

// Warmup climbs linearly from `start` at step 0 to 1 at step number `steps`. From that step on,
// the factor is then(step - steps). It is PyTorch's LinearLR, with a second schedule after it, in
// a SequentialLR.
func Warmup(steps int, start float64, then Schedule) Schedule {
	demand("optim.Warmup", limit{"steps", float64(steps), 0}, limit{"start", start, 0})
	demandSchedules("optim.Warmup", then)
	return func(step int) float64 {
		if step < steps {
			return start + (1-start)*float64(max(step, 0))/float64(steps)
		}
		return then(step - steps)
	}
}

// Linear goes from `from` at step 0 to `to` at step number `steps`, and stays there. It is
// PyTorch's LinearLR.
func Linear(steps int, from, to float64) Schedule {
	demand("optim.Linear", limit{"steps", float64(steps), 0}, limit{"from", from, 0}, limit{"to", to, 0})
	return func(step int) float64 { return from + (to-from)*progress(step, 0, float64(steps)) }
}

// Polynomial falls from 1 at step 0 to 0 at step number `steps`, and stays there. It is the power
// of the fraction of the steps that are left. It is PyTorch's PolynomialLR.
func Polynomial(steps int, power float64) Schedule {
	demand("optim.Polynomial", limit{"steps", float64(steps), 0}, limit{"power", power, 0})
	return func(step int) float64 { return math.Pow(1-progress(step, 0, float64(steps)), power) }
}

// CosineRestarts falls from 1 to `floor` along half a period of a cosine, and begins again. The
// first period has `steps` steps, and each other one `growth` times as many as the one before. It
// is PyTorch's CosineAnnealingWarmRestarts. Both numbers are 1 or more.
func CosineRestarts(steps, growth int, floor float64) Schedule {
	demand("optim.CosineRestarts", limit{"steps", float64(steps), 1}, limit{"growth", float64(growth), 1}, limit{"floor", floor, 0})
	return func(step int) float64 {
		at, period := max(step, 0), steps
		if growth == 1 {
			at %= period
		}
		for at >= period {
			at -= period
			if period > math.MaxInt/growth {
				break // no later step is an int
			}
			period *= growth
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
	demand("optim.Cyclic", limit{"Floor", o.Floor, 0}, limit{"Up", float64(o.Up), 0}, limit{"Down", float64(o.Down), 0}, limit{"Gamma", o.Gamma, 0})
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
// the factor is 1. There is a milestone less than schedules.
func Sequential(milestones []int, schedules ...Schedule) Schedule {
	const where = "optim.Sequential"
	demandSchedules(where, schedules...)
	if len(milestones) != max(len(schedules)-1, 0) {
		refuseSchedule(where, "there are %d milestones and %d schedules; each schedule but the first begins at a milestone", len(milestones), len(schedules))
	}
	for i, m := range milestones {
		if m < 0 || i > 0 && m < milestones[i-1] {
			refuseSchedule(where, "the milestones %v do not rise from 0", milestones)
		}
	}
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
	demandSchedules("optim.Product", schedules...)
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
	// ThreePhases falls from 1 to 1/DivFactor in as many steps as the climb takes, and then to the
	// end.
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
	demand("optim.OneCycle", limit{"steps", float64(steps), 0}, limit{"Rise", o.Rise, 0}, limit{"DivFactor", o.DivFactor, 0}, limit{"FinalDivFactor", o.FinalDivFactor, 0})
	if o.Rise >= 1 {
		refuseSchedule("optim.OneCycle", "Rise is %v; it is a fraction of the steps, below 1", o.Rise)
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

// progress returns 0 up to the step `from` and 1 from the step `to` on. Between the two it grows
// linearly. If `from` equals `to`, it is 1 at that step.
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

// cosine goes from `from` to `to` along half a period of a cosine, while `progress` goes from 0 to
// 1.
func cosine(from, to, progress float64) float64 {
	return to + (from-to)/2*(math.Cos(math.Pi*progress)+1)
}
