package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
)

// arrivals calls `one` at random moments for a time, as many callers do who know nothing of each
// other, and waits until all calls have returned. A call gets the moment for which it was meant,
// also if it comes late.
func arrivals(rate float64, long time.Duration, random *rand.Rand, one func(at time.Time)) {
	var all sync.WaitGroup
	defer all.Wait()
	next := time.Now()
	for end := next.Add(long); ; {
		next = next.Add(time.Duration(random.ExpFloat64() / rate * 1e9))
		if next.After(end) {
			return
		}
		// Go's timers are up to a millisecond late while the program has nothing else to do.
		if wait := time.Until(next) - 200*time.Microsecond; wait > 0 {
			t := syscall.NsecToTimespec(wait.Nanoseconds())
			_ = syscall.Nanosleep(&t, nil) // a signal may end it early
		}
		for time.Now().Before(next) {
			runtime.Gosched()
		}
		all.Add(1)
		go func(at time.Time) {
			defer all.Done()
			one(at)
		}(next)
	}
}

// openLoop is what an open loop of requests has measured.
type openLoop struct {
	mu      sync.Mutex
	took    sample // milliseconds from the moment of arrival to the answer
	refused int
	failed  error
}

// load sends requests of one image at this rate, and waits for all answers.
func (o *openLoop) load(b *serve.Batcher, in serve.Array, rate float64, long time.Duration, random *rand.Rand) {
	arrivals(rate, long, random, func(at time.Time) {
		_, err := b.Predict(context.Background(), in)
		ms := time.Since(at).Seconds() * 1e3
		o.mu.Lock()
		defer o.mu.Unlock()
		switch {
		case errors.Is(err, serve.ErrQueueFull):
			o.refused++
		case err != nil:
			o.failed = err
		default:
			o.took = append(o.took, ms)
		}
	})
}

// benchServeOpen measures latencies of requests that come at random, at parts of the rate that
// callers reach in a closed loop.
func benchServeOpen(c *config, emit func(row)) error {
	return c.withService(func(s *service, b *serve.Batcher) error { return s.open(b, emit) })
}

func (s *service) open(b *serve.Batcher, emit func(row)) error {
	c := s.c
	largest := c.batchSizes()[len(c.batchSizes())-1]
	full, _, err := callers(b, 2*largest, c.block(), func() serve.Array { return s.pixels(1) })
	if err != nil {
		return err
	}
	alones := map[int]sample{1: nil, largest: nil}
	for batch := range alones {
		o, err := s.newOffline(batch)
		if err != nil {
			return err
		}
		if alones[batch], err = o.alone(10); err == nil { // these also capture
			alones[batch], err = o.alone(c.or(2, 100))
		}
		o.close()
		if err != nil {
			return err
		}
	}
	in, random := s.pixels(1), rand.New(rand.NewPCG(1, 2))
	long := 5 * time.Second
	switch {
	case c.brief:
		long = c.block()
	case c.device.IsCUDA():
		long = 2 * time.Second
	}
	measure := func(name string, percents ...float64) error {
		var o *openLoop
		before := b.Stats()
		for _, p := range percents {
			o = &openLoop{}
			before = b.Stats()
			o.load(b, in, full*p/100, long, random)
		}
		after := b.Stats()
		if o.failed != nil {
			return o.failed
		}
		if len(o.took) == 0 {
			return errors.New("no request was answered")
		}
		emit(alone("serve/open/"+name, o.took.quantile(0.99), "ms (99 %)", fmt.Sprintf(
			"%s; median %.2f ms; %s; %d answered, %d refused; Poisson arrivals for %v, of a full rate of %.0f images/s; a batch of 1 alone takes %.2f ms, of %d %.2f ms; %s",
			s.name, o.took.median(), batchesBetween(before, after), len(o.took), o.refused, long, full,
			alones[1].median(), largest, alones[largest].median(), c.settings())))
		return nil
	}
	for _, p := range []float64{5, 30, 80, 120} {
		if err := measure(fmt.Sprint(p), p); err != nil {
			return err
		}
	}
	return measure("80-after-5", 5, 80)
}
