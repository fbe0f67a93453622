package weights

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/torchtest"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Prefetched units can be used in any order. None gives up its slot before its Use.
func TestCache_Prefetch(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		c := newCache(t, scalesStore(t, 6), d, CacheOptions{Slots: 3})
		prefetch(t, c, 2, 1, 0)
		prefetch(t, c, 4, 5) // both wait for slots
		torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) {
			for _, i := range []int{0, 2, 1, 5, 4} {
				apply(t, x, c, i)
			}
		})
		if s := c.Stats(); s.Ahead != 5 || s.Prefetched != 5 || s.Unused != 0 {
			t.Errorf("%+v; want 5 prefetched and used", s)
		}
	})
}

func TestCache_Prefetch_BackPressure(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		c := newCache(t, scalesStore(t, 6), d, CacheOptions{Slots: 1, InFlight: 2})
		s := torchtest.NewStream(t, d)
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
			u := c.Use(x, unitName(0))
			prefetch(t, c, 1, 2)
			ctx := context.Background()
			if err := c.Prefetch(ctx, unitName(3)); !errors.Is(err, ErrNoSlot) {
				t.Errorf("more than InFlight: %v", err)
			}
			if err := c.Prefetch(ctx, unitName(1)); err != nil {
				t.Errorf("one that is asked for already waits: %v", err)
			}
			u.Release(x)
			for _, i := range []int{1, 2} {
				apply(t, x, c, i)
			}
			prefetch(t, c, 3)
			apply(t, x, c, 3)
		})
	})
}

// A Prefetch waits while the device has not begun earlier copies. It ends when ctx ends.
func TestCache_Prefetch_Cancelled(t *testing.T) {
	if len(torchtest.Devices()) < 2 {
		t.Skip("on the CPU no copy is pending")
	}
	torchtest.CheckLeaks(t)
	d := cgotorch.CUDA(0)
	c := newCache(t, scalesStore(t, 6), d, CacheOptions{Slots: 2, InFlight: 2})
	cause := errors.New("the caller has left")
	torchtest.DoOn(t, torchtest.NewStream(t, d), func(x *cgotorch.Exec) {
		for i := range 2 {
			u := c.Use(x, unitName(i))
			torchtest.Sleep(x, 100*time.Millisecond)
			u.Release(x)
		}
		prefetch(t, c, 2, 3)
		ctx, cancel := context.WithCancelCause(context.Background())
		go func() { time.Sleep(10 * time.Millisecond); cancel(cause) }()
		if err := c.Prefetch(ctx, unitName(4)); !errors.Is(err, cause) || !strings.Contains(err.Error(), unitName(4)) {
			t.Errorf("got %v, want the cause", err)
		}
		for i := 2; i < 5; i++ {
			apply(t, x, c, i)
		}
	})
}

// A unit that is prefetched while it is in use stays for its next Use.
func TestCache_Prefetch_WhileInUse(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newCache(t, scalesStore(t, 3), cgotorch.CPU, CacheOptions{Slots: 1})
	torchtest.DoOn(t, torchtest.NewStream(t, cgotorch.CPU), func(x *cgotorch.Exec) {
		u := c.Use(x, unitName(0))
		prefetch(t, c, 0) // for the next step
		u.Release(x)
		prefetch(t, c, 1) // would take the slot of unit 0 if nothing protected that unit
		before := c.Stats()
		apply(t, x, c, 0)
		if c.Stats().Misses != before.Misses {
			t.Error("what was prefetched while in use was given up before its use")
		}
	})
}

// A Use whose unit is queued takes the unit out of the queue. It must then wake a Prefetch that
// waits for a shorter queue.
func TestCache_Dequeue_LostWakeUp(t *testing.T) {
	torchtest.CheckLeaks(t)
	c := newCache(t, scalesStore(t, 6), cgotorch.CPU, CacheOptions{Slots: 2, InFlight: 1})
	s := torchtest.NewStream(t, cgotorch.CPU)
	torchtest.DoOn(t, s, func(x *cgotorch.Exec) {
		c.Use(x, unitName(0))
		prefetch(t, c, 1) // unit 1 takes the other slot
		prefetch(t, c, 2) // unit 2 is queued, so InFlight is reached
		done := make(chan error, 1)
		go func() { done <- c.Prefetch(context.Background(), unitName(3)) }()
		time.Sleep(20 * time.Millisecond)
		c.Use(x, unitName(2)) // unit 2 leaves the queue, so nothing is in flight
		select {
		case <-done:
		case <-time.After(500 * time.Millisecond):
			again, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			t.Errorf("Prefetch still waits; one that is called now returns %v at once", c.Prefetch(again, unitName(4)))
		}
	})
}
