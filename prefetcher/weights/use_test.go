package weights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The end of a Do releases a unit that the program has not released. A unit may be used twice at
// once.
func TestUse_EndOfDoReleases(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		c := newCache(t, scalesStore(t, 3), d, CacheOptions{Slots: 1})
		s := torchtest.NewStream(t, d)
		failure := errors.New("of the program")
		var means []*cgotorch.HostRead
		for i := range 3 {
			err := s.Do(func(x *cgotorch.Exec) error {
				u := c.Use(x, unitName(i))
				v := c.Use(x, unitName(i))
				v.Release(x)
				v.Release(x)
				torchtest.Sleep(x, 10*time.Millisecond)
				means = append(means, x.ReadAsync(x.Mean(u.Module.Forward(x, x.Ones(cgotorch.Float32, 1, width)))))
				return failure
			})
			if !errors.Is(err, failure) {
				t.Error(err)
			}
		}
		checkMeans(t, means)
	})
}

// If all slots are in use, a Use of another Do waits for a slot. If no slot can become free, the
// Use fails.
func TestUse_WaitsForSlot(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		c := newCache(t, scalesStore(t, 3), d, CacheOptions{Slots: 1})
		a, b := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
		has, done := make(chan bool), make(chan error)
		go func() {
			<-has
			done <- b.Do(func(x *cgotorch.Exec) error { apply(t, x, c, 1); return nil })
		}()
		torchtest.DoOn(t, a, func(x *cgotorch.Exec) {
			u := c.Use(x, unitName(0))
			has <- true
			time.Sleep(20 * time.Millisecond)
			u.Release(x)
		})
		must.Check(t, <-done)
		if s := c.Stats(); s.HostWait <= 0 || s.HostWait > 10*time.Second {
			t.Errorf("HostWait is %v", s.HostWait)
		}
		err := a.Do(func(x *cgotorch.Exec) error {
			c.Use(x, unitName(0))
			c.Use(x, unitName(1))
			return nil
		})
		if !errors.Is(err, ErrNoSlot) || !strings.Contains(err.Error(), unitName(1)) {
			t.Errorf("got %v, want ErrNoSlot for %s", err, unitName(1))
		}
	})
}

// Two Dos each use a slot and each need one more. One of them fails, and the other goes on.
func TestUse_Deadlock(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newCache(t, scalesStore(t, 4), cgotorch.CPU, CacheOptions{Slots: 2})
	var both, all sync.WaitGroup
	both.Add(2)
	errs := make([]error, 2)
	for i := range 2 {
		s := torchtest.NewStream(t, cgotorch.CPU)
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = s.Do(func(x *cgotorch.Exec) error {
				c.Use(x, unitName(i))
				both.Done()
				both.Wait()
				c.Use(x, unitName(2+i))
				return nil
			})
		}()
	}
	all.Wait()
	if failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil }); len(failed) != 1 || !errors.Is(failed[0], ErrNoSlot) {
		t.Errorf("got %v, want one ErrNoSlot", failed)
	}
}

func TestUse_Refused(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		c := newCache(t, scalesStore(t, 2), d, CacheOptions{})
		s := torchtest.NewStream(t, d)
		fails := func(want error, text string, fn func(x *cgotorch.Exec)) {
			t.Helper()
			if err := s.Do(func(x *cgotorch.Exec) error { fn(x); return nil }); !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), text) {
				t.Errorf("got %v, want %v with %q", err, want, text)
			}
		}
		fails(ErrUnknownUnit, `"block.7.mlp"`, func(x *cgotorch.Exec) { c.Use(x, unitName(7)) })
		fails(cgotorch.ErrInvalidArgument, "shares the memory of block.1.mlp", func(x *cgotorch.Exec) {
			x.Keep(x.Narrow(c.Use(x, unitName(1)).Module.Weight, 0, 0, 1))
		})
		fails(nil, "", func(x *cgotorch.Exec) { apply(t, x, c, 1) })
		if err := c.Prefetch(context.Background(), "nothing"); !errors.Is(err, ErrUnknownUnit) {
			t.Error(err)
		}
		if !d.IsCUDA() {
			return // on the CPU a graph is a function that is called
		}
		_, err := s.Capture(func(x *cgotorch.Exec) error { c.Use(x, unitName(1)); return nil }, 0)
		if !errors.Is(err, cgotorch.ErrNotCapturable) {
			t.Errorf("in a capture: %v", err)
		}
	})
}

// Two Dos use one side stream. The second Do may leave out its wait for the copy only if the
// first Do has made that stream wait for the copy.
func TestUse_SharedSideStream(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	c := newCache(t, scalesStore(t, 2), cgotorch.CPU, CacheOptions{Slots: 1})
	a, b, side := torchtest.NewStream(t, cgotorch.CPU), torchtest.NewStream(t, cgotorch.CPU), torchtest.NewStream(t, cgotorch.CPU)
	for i := range 3000 {
		prefetch(t, c, i%2)
		var all sync.WaitGroup
		for _, s := range []*cgotorch.Stream{a, b} {
			all.Add(1)
			go func() {
				defer all.Done()
				s.Do(func(x *cgotorch.Exec) error {
					y := x.On(side)
					y.NoGrad()
					u := c.Use(y, unitName(i%2))
					y.Sum(u.Module.Weight)
					u.Release(y)
					e := y.Record()
					x.Wait(e)
					return e.Close()
				})
			}()
		}
		all.Wait()
	}
}

func TestUse_Release_OtherDo(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newCache(t, scalesStore(t, 3), cgotorch.CPU, CacheOptions{Slots: 1})
	a, b := torchtest.NewStream(t, cgotorch.CPU), torchtest.NewStream(t, cgotorch.CPU)
	var u *Use[*nn.Linear]
	has, released, end := make(chan bool), make(chan bool), make(chan bool)
	go func() {
		a.Do(func(x *cgotorch.Exec) error { u = c.Use(x, unitName(0)); has <- true; <-released; return nil })
		close(end)
	}()
	<-has
	err := b.Do(func(x *cgotorch.Exec) error { u.Release(x); return nil })
	released <- true
	<-end
	if err == nil {
		t.Errorf("Release in another Do is accepted; users now %v", c.slots[0].users)
	}
}

func TestUse_Failed_Counts(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newCache(t, scalesStore(t, 3), cgotorch.CPU, CacheOptions{Slots: 1})
	torchtest.NewStream(t, cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		c.Use(x, unitName(0))
		c.Use(x, unitName(1))
		return nil
	})
	if s := c.Stats(); s.Hits+s.Ahead+s.Misses != 1 {
		t.Errorf("%+v: one of the uses was refused and began no copy", s)
	}
}

// A change of a unit waits for readers on other streams, even if they have already released the
// unit.
func TestUse_ReleaseChanged_Readers(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	c := newCache(t, scalesStore(t, 3), cgotorch.CPU, CacheOptions{Slots: 1})
	a, b := torchtest.NewStream(t, cgotorch.CPU), torchtest.NewStream(t, cgotorch.CPU)
	torchtest.DoOn(t, a, func(x *cgotorch.Exec) {
		u := c.Use(x, unitName(0))
		x.NoGrad().Sum(u.Module.Weight)
		u.Release(x)
	})
	torchtest.DoOn(t, b, func(x *cgotorch.Exec) {
		u := c.useToChange(x, unitName(0))
		x.NoGrad().FillInPlace(u.Module.Weight, 3)
		u.releaseChanged(x)
	})
}

// A unit cannot be changed while two Caches use its store.
func TestUse_ReleaseChanged_TwoCaches(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CheckStreams(t)
	st := scalesStore(t, 3)
	c := newCache(t, st, cgotorch.CPU, CacheOptions{Slots: 1})
	n := newCache(t, st, cgotorch.CPU, CacheOptions{Slots: 1})
	prefetch(t, n, 1)
	err := torchtest.NewStream(t, cgotorch.CPU).Do(func(x *cgotorch.Exec) error { c.useToChange(x, unitName(0)); return nil })
	if !errors.Is(err, ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
}

// Do a waits for unit 3. Do c brings unit 3 into a slot and then waits for a slot itself. Do a
// can go on, even before its goroutine runs again. So nobody is stuck, and no Use fails.
func TestUse_FalseDeadlock(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := newCache(t, scalesStore(t, 5), cgotorch.CPU, CacheOptions{Slots: 2})
	a, c := torchtest.NewStream(t, cgotorch.CPU), torchtest.NewStream(t, cgotorch.CPU)
	failed := 0
	for range 200 {
		has, hasC := make(chan bool), make(chan bool)
		var errA, errC error
		var all sync.WaitGroup
		all.Add(2)
		go func() {
			defer all.Done()
			errA = a.Do(func(x *cgotorch.Exec) error {
				m.Use(x, unitName(0))
				close(has)
				<-hasC
				m.Use(x, unitName(3)) // waits, and can go on when Do c has brought unit 3
				return nil
			})
		}()
		go func() {
			defer all.Done()
			errC = c.Do(func(x *cgotorch.Exec) error {
				<-has
				u := m.Use(x, unitName(1))
				close(hasC)
				for waits := false; !waits; {
					m.mu.Lock()
					waits = m.waiting[a] != nil
					m.mu.Unlock()
				}
				u.Release(x)
				m.Use(x, unitName(3)) // the unit that Do a waits for
				m.Use(x, unitName(4)) // gets a slot when Do a has ended
				return nil
			})
		}()
		all.Wait()
		if errA != nil || errC != nil {
			failed++
			if failed == 1 {
				t.Log(errors.Join(errA, errC))
			}
		}
	}
	if failed > 0 {
		t.Errorf("%d of 200 failed with ErrNoSlot, and no one was stuck", failed)
	}
}

// A changed unit has its changes wherever it is read next. Other units are unchanged.
func TestUse_ReleaseChanged(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		store := scalesStore(t, 3)
		c := newCache(t, store, d, CacheOptions{Slots: 1})
		s := torchtest.NewStream(t, d)
		double := func(x *cgotorch.Exec, i int) {
			u := c.useToChange(x, unitName(i))
			y := x.NoGrad()
			y.MulScalarInPlace(u.Module.Weight, 2)
			u.releaseChanged(x)
		}
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			double(x, 0)
			double(x, 0) // while the unit is still in the slot
			double(x, 1)
			double(x, 0) // after the unit was copied from the store again
		})
		must.Do(t, c.Flush(context.Background()))
		for i, want := range []float32{8, 4, 3} {
			if got := floats(t, store, unitName(i), "weight")[0]; got != want {
				t.Errorf("the weight of unit %d is %v, want %v", i, got, want)
			}
		}
		if st := c.Stats(); st.Written != 4*c.o.SlotBytes {
			t.Errorf("%d bytes written", st.Written)
		}
		err := s.Do(func(x *cgotorch.Exec) error {
			c.Use(x, unitName(0))
			c.useToChange(x, unitName(0))
			return nil
		})
		if !errors.Is(err, ErrBusy) {
			t.Errorf("changed while another uses it: %v", err)
		}
		err = s.Do(func(x *cgotorch.Exec) error {
			c.useToChange(x, unitName(0))
			c.Use(x, unitName(0))
			return nil
		})
		if !errors.Is(err, ErrBusy) {
			t.Errorf("used while it is changed: %v", err)
		}
	})
}

// A changed unit comes to another slot while the copy of its changes to the store may still run.
// The unit has its changes there too. Only a slot whose next copy has failed is emptied so early.
func TestUse_ReleaseChanged_ToAnotherSlot(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		store := scalesStore(t, 2)
		c := newCache(t, store, d, CacheOptions{Slots: 2})
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) {
			other := c.Use(x, unitName(1))
			for range 2 {
				u := c.useToChange(x, unitName(0))
				torchtest.Sleep(x, 10*time.Millisecond)
				x.NoGrad().MulScalarInPlace(u.Module.Weight, 2)
				u.releaseChanged(x)
				other.Release(x)
				empty(c)
			}
		})
		must.Do(t, c.Flush(context.Background()))
		if got := floats(t, store, unitName(0), "weight")[0]; got != 4 {
			t.Errorf("the weight is %v, want 4", got)
		}
	})
}

// In a warm-up run, x.On(other) gives a stream of the graph in place of the stream `other`. A Use
// on the graph's stream makes only that stream wait for the copy. It does not replace the event
// of an earlier use on `other`.
func TestUse_InWarmUp(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		s, other := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
		c := newCache(t, scalesStore(t, 2), d, CacheOptions{Slots: 1})
		read := func(x *cgotorch.Exec, i int) {
			u := c.Use(x, unitName(i))
			x.NoGrad().Sum(u.Module.Weight)
			u.Release(x)
		}
		warmUp := func(i int) {
			t.Helper()
			graph := must.Get(s.Capture(func(x *cgotorch.Exec) error {
				if !x.Capturing() {
					y := x.On(other)
					if stands := d.IsCUDA(); stands != (y.Stream() != other) {
						t.Errorf("%v is the stream of x.On(%v)", y.Stream(), other)
					}
					begun := x.Record()
					defer begun.Close()
					y.Wait(begun)
					read(y, i)
					ended := y.Record()
					defer ended.Close()
					x.Wait(ended)
				}
				x.Zeros(cgotorch.Float32, 1)
				return nil
			}, 1))(t)
			graph.Close()
		}
		prefetch(t, c, 0)
		warmUp(0)
		torchtest.DoOn(t, other, func(x *cgotorch.Exec) { read(x, 0) }) // the stream `other` itself waits for the copy
		torchtest.DoOn(t, other, func(x *cgotorch.Exec) {
			u := c.Use(x, unitName(1))
			torchtest.Sleep(x, 10*time.Millisecond)
			x.NoGrad().Sum(u.Module.Weight)
			u.Release(x)
		})
		warmUp(1)
		prefetch(t, c, 0) // copied after the use on the stream `other`
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) { apply(t, x, c, 0) })
	})
}
