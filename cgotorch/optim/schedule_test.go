package optim

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
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
		"step decay, before the first": {StepDecay(3, 0.1), -5, 1},
		"multistep, none":              {MultiStep(nil, 0.1), 5, 1},
		"cosine, before":               {Cosine(10, 0.1), -1, 1},
		"cosine, afterwards":           {Cosine(10, 0.1), 11, 0.1},
		"cosine of no steps":           {Cosine(0, 0.1), 0, 0.1},
		"warmup of no steps":           {Warmup(0, 0.1, Constant()), 0, 1},
		"restarts, far away":           {CosineRestarts(4, 1, 0), 1 << 40, 1},
		"restarts, growing far away":   {CosineRestarts(1<<62, 4, 1), math.MaxInt, 1},
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

// A function that makes a Schedule panics with an error that names the argument and the line. All
// others are in range.
func TestSchedule_Refuses(t *testing.T) {
	nan := math.NaN()
	for want, build := range map[string]func(){
		"StepDecay: every is 0":              func() { StepDecay(0, 0.1) },
		"StepDecay: gamma is NaN":            func() { StepDecay(1, nan) },
		"MultiStep: gamma is -1":             func() { MultiStep(nil, -1) },
		"Cosine: steps is -1":                func() { Cosine(-1, 0) },
		"Cosine: floor is NaN":               func() { Cosine(1, nan) },
		"Warmup: steps is -3":                func() { Warmup(-3, 0, Constant()) },
		"Warmup: start is +Inf":              func() { Warmup(3, math.Inf(1), Constant()) },
		"Warmup: schedule 0 is nil":          func() { Warmup(3, 0, nil) },
		"Linear: to is -0.1":                 func() { Linear(3, 1, -0.1) },
		"Polynomial: power is NaN":           func() { Polynomial(3, nan) },
		"CosineRestarts: steps is 0":         func() { CosineRestarts(0, 1, 0) },
		"CosineRestarts: growth is 0":        func() { CosineRestarts(1, 0, 0) },
		"Cyclic: Up is -1":                   func() { Cyclic(CyclicOptions{Up: -1}) },
		"Cyclic: Gamma is NaN":               func() { Cyclic(CyclicOptions{Gamma: nan}) },
		"Sequential: there are 0 milestones": func() { Sequential(nil, Constant(), Constant()) },
		"Sequential: the milestones [5 3]":   func() { Sequential([]int{5, 3}, Constant(), Constant(), Constant()) },
		"Sequential: schedule 1 is nil":      func() { Sequential([]int{5}, Constant(), nil) },
		"Product: schedule 0 is nil":         func() { Product(nil) },
		"OneCycle: steps is -1":              func() { OneCycle(-1, OneCycleOptions{}) },
		"OneCycle: Rise is 1;":               func() { OneCycle(10, OneCycleOptions{Rise: 1}) },
		"OneCycle: DivFactor is -2":          func() { OneCycle(10, OneCycleOptions{DivFactor: -2}) },
	} {
		func() {
			defer func() {
				e, ok := recover().(*cgotorch.Error)
				function, argument, _ := strings.Cut(want, ": ")
				if !ok || !errors.Is(e, cgotorch.ErrInvalidArgument) || e.Op != "optim."+function || !strings.Contains(e.Message, argument) || !strings.Contains(e.Caller, "schedule_test.go:") {
					t.Errorf("panic with %v, want %q", e, want)
				}
			}()
			build()
		}()
	}
}
