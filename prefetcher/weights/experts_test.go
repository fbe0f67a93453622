package weights

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// routeAndRun runs a layer of experts. Expert ids[i] maps row i of the tokens.
func routeAndRun[M nn.Module](x *cgotorch.Exec, e *Experts[M], layer int, tokens, ids *cgotorch.Tensor) *cgotorch.Tensor {
	e.Route(x, layer, ids)
	return e.Run(x, layer, tokens)
}

// A router writes its next choice into the memory of its last choice. Each layer still runs the
// expert of its own choice.
func TestExperts_Route_SameMemory(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		s := torchtest.NewStream(t, d)
		e := must.Get(NewExperts(newCache(t, scalesStore(t, 4), d, CacheOptions{}), [][]string{{unitName(0), unitName(1), unitName(2), unitName(3)}}, ExpertsOptions{}))(t)
		defer e.Close()
		var sums []*cgotorch.HostRead
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			ids, in := x.Zeros(cgotorch.Int64, 1), x.Ones(cgotorch.Float32, 1, width)
			for i := range 12 {
				x.FillInPlace(ids, i%4)
				sums = append(sums, x.ReadAsync(x.Mean(routeAndRun(x, e, 0, in, ids))))
			}
		})
		for i, r := range sums {
			if got, err := r.Item(); err != nil || got != float64(2*(i%4)+1) {
				t.Errorf("choice %d gave %v (%v), want %d", i, got, err, 2*(i%4)+1)
			}
			r.Close()
		}
	})
}

func TestExperts_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, cgotorch.CPU)
	cache := newCache(t, scalesStore(t, 4), cgotorch.CPU, CacheOptions{})
	if _, err := NewExperts(cache, [][]string{{unitName(1), "none"}}, ExpertsOptions{}); !errors.Is(err, ErrUnknownUnit) {
		t.Errorf("an unknown expert: %v", err)
	}
	e, err := NewExperts(cache, [][]string{{unitName(0), unitName(1)}, {unitName(2), unitName(3)}}, ExpertsOptions{})
	must.Do(t, err)
	defer e.Close()
	ids := func(x *cgotorch.Exec, ids ...int64) *cgotorch.Tensor { return cgotorch.FromSlice(x, ids) }
	tokens := func(x *cgotorch.Exec, n int64) *cgotorch.Tensor { return x.Ones(cgotorch.Float32, n, width) }
	for text, fn := range map[string]func(x *cgotorch.Exec){
		"layer 2 of 2":        func(x *cgotorch.Exec) { e.Route(x, 2, ids(x, 1)) },
		"layer -1 of 2":       func(x *cgotorch.Exec) { e.Predict(x, -1, ids(x, 1)) },
		"routed to number 2":  func(x *cgotorch.Exec) { routeAndRun(x, e, 0, tokens(x, 2), ids(x, 1, 2)) },
		"has not been routed": func(x *cgotorch.Exec) { e.Run(x, 1, tokens(x, 1)) },
		"has not been run":    func(x *cgotorch.Exec) { e.Route(x, 1, ids(x, 1)); e.Route(x, 1, ids(x, 1)) },
		"want Int64":          func(x *cgotorch.Exec) { e.Route(x, 0, x.Zeros(cgotorch.Float32, 1)) },
		"there are 3 ids":     func(x *cgotorch.Exec) { routeAndRun(x, e, 0, tokens(x, 2), ids(x, 1, 0, 1)) },
		"one id for each":     func(x *cgotorch.Exec) { e.Route(x, 0, x.Zeros(cgotorch.Int64, 2, 2)) },
	} {
		err := s.Do(func(x *cgotorch.Exec) error { fn(x); return nil })
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want ErrInvalidArgument with %q", err, text)
		}
	}
	// After all these failures a right call works, and no slot is lost.
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		got := cgotorch.ToSlice[float32](x, routeAndRun(x, e, 1, tokens(x, 3), ids(x, 1, 0, 1)))
		if got[0] != 7 || got[width] != 5 || got[2*width] != 7 {
			t.Errorf("got %v, %v, %v", got[0], got[width], got[2*width])
		}
	})
	e.Close()
	err = s.Do(func(x *cgotorch.Exec) error { e.Route(x, 0, ids(x, 1)); return nil })
	if !errors.Is(err, cgotorch.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestExperts_FailedRun(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, bad := range []bool{false, true} {
		c := newCache(t, scalesStore(t, 12), cgotorch.CPU, CacheOptions{Slots: 2})
		e, err := NewExperts(c, [][]string{{unitName(0), unitName(1), unitName(2)}}, ExpertsOptions{})
		must.Do(t, err)
		s := torchtest.NewStream(t, cgotorch.CPU)
		err = s.Do(func(x *cgotorch.Exec) error {
			ids := []int64{0, 1, 2}
			if bad {
				ids = []int64{0, 1, 7}
			}
			e.Route(x, 0, cgotorch.FromSlice(x, ids))
			rows := int64(width)
			if !bad {
				rows = 5
			}
			e.Run(x, 0, x.Ones(cgotorch.Float32, 3, rows)) // fails
			return nil
		})
		t.Log(err)
		c.mu.Lock()
		wanted := 0
		for _, s := range c.slots {
			if s.wanted {
				wanted++
			}
		}
		queued := len(c.queue)
		c.mu.Unlock()
		if wanted+queued > 0 {
			t.Errorf("bad=%v: after the Do has failed %d slots are kept for it and %d prefetches wait", bad, wanted, queued)
		}
		if bad {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			for i := 3; i < 12; i++ {
				if err := c.Prefetch(ctx, unitName(i)); err != nil {
					t.Errorf("no later prefetch gets a slot: %d: %v", i, err)
				}
			}
			cancel()
		}
		e.Close()
	}
}

func TestExperts_Predict_Grows(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newCache(t, scalesStore(t, 3), cgotorch.CPU, CacheOptions{Slots: 2})
	e := must.Get(NewExperts(c, [][]string{{unitName(0), unitName(1), unitName(2)}}, ExpertsOptions{}))(t)
	defer e.Close()
	s := torchtest.NewStream(t, cgotorch.CPU)
	for range 300 {
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) { e.Predict(x, 0, cgotorch.FromSlice(x, []int64{1})) })
	}
	time.Sleep(50 * time.Millisecond)
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.guessed[place{s, 0}]); n > 3 {
		t.Errorf("%d guesses are remembered at a layer of 3 experts", n)
	}
}

// The guesses of a Do that fails do not keep slots: see also TestExperts_FailedRun.
func TestExperts_GuessOfFailedDo(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newCache(t, scalesStore(t, 12), cgotorch.CPU, CacheOptions{Slots: 2})
	e := must.Get(NewExperts(c, [][]string{{unitName(0), unitName(1), unitName(2)}}, ExpertsOptions{}))(t)
	defer e.Close()
	torchtest.NewStream(t, cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		e.Predict(x, 0, cgotorch.FromSlice(x, []int64{0, 1}))
		return errors.New("of the program")
	})
	time.Sleep(20 * time.Millisecond)
	if c.slots[0].wanted || c.slots[1].wanted {
		t.Error("guesses of a Do that has failed keep all slots")
	}
}

// Layers run in two branches while a third branch uses a unit. The copies of the ids, on the side
// stream, cause no race.
func TestExperts_InBranches(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	c := newCache(t, scalesStore(t, 4), cgotorch.CPU, CacheOptions{Slots: 2})
	e := must.Get(NewExperts(c, [][]string{{unitName(0), unitName(1)}, {unitName(2), unitName(3)}}, ExpertsOptions{}))(t)
	defer e.Close()
	s := torchtest.NewStream(t, cgotorch.CPU)
	for range 20 {
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			x = x.NoGrad()
			in := x.Ones(cgotorch.Float32, 4, width)
			x.Parallel(cgotorch.ParallelOptions{},
				func(x *cgotorch.Exec) *cgotorch.Tensor {
					return routeAndRun(x, e, 0, in, cgotorch.FromSlice(x, []int64{0, 1, 0, 1}))
				},
				func(x *cgotorch.Exec) *cgotorch.Tensor {
					return routeAndRun(x, e, 1, in, cgotorch.FromSlice(x, []int64{0, 1, 0, 1}))
				},
				func(x *cgotorch.Exec) *cgotorch.Tensor { // released only by the end of the Do
					return x.Sum(c.Use(x, unitName(0)).Module.Weight)
				},
			)
		})
	}
}

// If a Do ends after Route and without Run, a later Do can route the same layer again.
func TestExperts_SameLayerTwice(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newCache(t, scalesStore(t, 4), cgotorch.CPU, CacheOptions{Slots: 2})
	e, _ := NewExperts(c, [][]string{{unitName(0), unitName(1)}}, ExpertsOptions{})
	defer e.Close()
	s := torchtest.NewStream(t, cgotorch.CPU)
	for range 3 {
		must.Check(t, s.Do(func(x *cgotorch.Exec) error { e.Route(x, 0, cgotorch.FromSlice(x, []int64{0})); return nil }))
	}
	if len(e.open) > 0 {
		t.Error(e.open)
	}
}
