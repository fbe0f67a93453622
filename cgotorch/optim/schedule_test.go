package optim

import (
	"math"
	"testing"
)

// The factors before step 0, after the last step, and of schedules without steps are correct.
// Package tests/parity/optim compares the other steps with PyTorch.
func TestSchedule_Edges(t *testing.T) {
	for name, c := range map[string]struct {
		schedule Schedule
		step     int
		want     float64
	}{
		"constant":                     {Constant(), 7, 1},
		"step decay, never":            {StepDecay(0, 0.1), 100, 1},
		"step decay, before the first": {StepDecay(3, 0.1), -5, 1},
		"multistep, none":              {MultiStep(nil, 0.1), 5, 1},
		"cosine, before":               {Cosine(10, 0.1), -1, 1},
		"cosine, afterwards":           {Cosine(10, 0.1), 11, 0.1},
		"cosine of no steps":           {Cosine(0, 0.1), 0, 0.1},
		"warmup of no steps":           {Warmup(0, 0.1, Constant()), 0, 1},
		"warmup of steps below 0":      {Warmup(-3, 0.1, Cosine(10, 0)), 0, 1},
		"warmup, before":               {Warmup(5, 0.1, Constant()), -1, 0.1},
		"one cycle, afterwards":        {OneCycle(10, OneCycleOptions{}), 12, 1 / 25e4},
		"one cycle of one step":        {OneCycle(1, OneCycleOptions{}), 0, 1 / 25e4},
		"one cycle of no steps":        {OneCycle(0, OneCycleOptions{}), 0, 1 / 25e4},
		"one cycle, before":            {OneCycle(10, OneCycleOptions{}), -1, 1.0 / 25},
	} {
		if got := c.schedule(c.step); !(math.Abs(got-c.want) < 1e-15) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestMultiStep_KeepsItsMilestones(t *testing.T) {
	milestones := []int{5, 2}
	s := MultiStep(milestones, 0.5)
	milestones[0] = 0
	if got := s(3); got != 0.5 || milestones[1] != 2 {
		t.Errorf("factor %v, want 0.5; milestones %v", got, milestones)
	}
}
