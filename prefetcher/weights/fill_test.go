package weights

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// If the copy of a unit cannot be enqueued, the Use of that unit fails. Other units can be used.
func TestFill_Fails(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		c := newCache(t, scalesStore(t, 3), d, CacheOptions{Slots: 2})
		bad := c.units[unitName(1)].storeUnit
		whole := bad.whole
		bad.whole = whole[:8]
		prefetch(t, c, 1, 0)
		s := torchtest.NewStream(t, d)
		err := s.Do(func(x *cgotorch.Exec) error { c.Use(x, unitName(1)); return nil })
		if !errors.Is(err, cgotorch.ErrInvalidArgument) || !strings.Contains(err.Error(), "copying unit "+unitName(1)+" to the device") {
			t.Errorf("got %v", err)
		}
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) { apply(t, x, c, 0); apply(t, x, c, 2) })
		prefetch(t, c, 1, 0, 2) // the copy of unit 1 fails, so unit 2 gets the slot of unit 1
		c.Stats()
		c.mu.Lock()
		if len(c.queue) > 0 || c.units[unitName(2)].slot == nil {
			t.Error("a prefetch waits for a slot, and one is empty")
		}
		c.mu.Unlock()
		bad.whole = whole
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) { apply(t, x, c, 1) })
		if st := c.Stats(); st.Prefetched != 3 || st.Ahead != 1 || st.Misses != 2 {
			t.Errorf("%+v; want 3 prefetched, 1 of them used, and 2 misses", st)
		}
	})
}

func TestFill_LateBackward(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newCache(t, scalesStore(t, 3), cgotorch.CPU, CacheOptions{Slots: 1})
	for what, evict := range map[string]func(x *cgotorch.Exec){
		"a Use":      func(x *cgotorch.Exec) { c.Use(x, unitName(1)).Release(x) },
		"a Prefetch": func(*cgotorch.Exec) { prefetch(t, c, 1) }, // its copy is enqueued later, but counts as a write at once
	} {
		for range 100 {
			err := torchtest.NewStream(t, cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
				in := x.Ones(cgotorch.Float32, 1, width)
				in.SetRequiresGrad(true)
				u := c.Use(x, unitName(0))
				out := x.Sum(u.Module.Forward(x, in))
				u.Release(x)
				evict(x)
				x.Backward(out)
				return nil
			})
			if err == nil {
				t.Fatalf("backward read the unit that %s has brought", what)
			}
		}
	}
}

// hold keeps a Do on the copy stream, so that no copy is enqueued, until the test calls the
// function `release`.
func hold[M any](t *testing.T, c *Cache[M]) (release func()) {
	t.Helper()
	held, over, ended := make(chan bool), make(chan bool), make(chan error, 1)
	go func() {
		ended <- c.copies.Do(func(*cgotorch.Exec) error { close(held); <-over; return nil })
	}()
	<-held
	return func() {
		close(over)
		must.Check(t, <-ended)
	}
}

// Prefetch does not enqueue copies. The enqueuer enqueues them, in the order of the prefetches.
// Flush, Stats, Use and Close wait for the enqueuer.
func TestFill_Handed(t *testing.T) {
	for what, await := range map[string]func(t *testing.T, c *Cache[*nn.Linear]){
		"Flush": func(t *testing.T, c *Cache[*nn.Linear]) {
			must.Check(t, c.Flush(t.Context()))
		},
		"Stats": func(t *testing.T, c *Cache[*nn.Linear]) { c.Stats() },
		"Use": func(t *testing.T, c *Cache[*nn.Linear]) {
			torchtest.DoOn(t, torchtest.NewStream(t, c.device), func(x *cgotorch.Exec) { apply(t, x, c, 1) }) // the copy of unit 1 is the last to be enqueued
		},
		"Close": func(t *testing.T, c *Cache[*nn.Linear]) {
			must.Check(t, c.Close())
		},
	} {
		t.Run(what, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.CheckStreams(t)
				c := newCache(t, scalesStore(t, 4), d, CacheOptions{Slots: 4})
				release := hold(t, c)
				order := []int{2, 0, 3, 1}
				prefetch(t, c, order...)
				fills := slices.Clone(c.pending)
				if len(fills) != len(order) {
					t.Fatalf("%d copies are pending, want %d", len(fills), len(order))
				}
				for i, f := range fills {
					if f.unit.name != unitName(order[i]) {
						t.Errorf("copy %d is of %s, want %s", i, f.unit.name, unitName(order[i]))
					}
					select {
					case <-f.enqueued:
						t.Errorf("copy %d was enqueued on a stream that is held", i)
					default:
					}
				}
				go func() {
					time.Sleep(10 * time.Millisecond)
					release()
				}()
				await(t, c)
				for i, f := range fills {
					select {
					case <-f.enqueued:
					default:
						t.Errorf("copy %d has not been enqueued", i)
					}
				}
			})
		})
	}
}
