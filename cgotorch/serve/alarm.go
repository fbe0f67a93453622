package serve

import (
	"sync"
	"syscall"
	"time"
)

// alarm lets the dispatcher wait for a moment. Go's timers are up to a millisecond late while the
// program has nothing else to do, and a small batch takes less than that. So the last part of a
// wait is a sleep of a thread.
type alarm struct {
	mu    sync.Mutex
	rings time.Time // when the sleep under way ends; zero if there is none
	naps  sync.WaitGroup
	rang  chan struct{} // of capacity 1
}

const (
	timerLate = time.Millisecond      // how late Go's timers are
	longest   = 2 * time.Millisecond  // of a thread's sleep
	sleepLate = 50 * time.Microsecond // how late Linux ends a sleep, so as to end several at once
)

// await returns after a time, or when `changed` has a value, or earlier: the caller looks again
// whether there is something to do.
func (a *alarm) await(wait time.Duration, changed <-chan struct{}) {
	if wait > longest {
		timer := time.NewTimer(wait - timerLate)
		defer timer.Stop()
		select {
		case <-changed:
		case <-timer.C:
		}
		return
	}
	a.ring(wait)
	select {
	case <-changed:
	case <-a.rang:
	}
}

// ring makes `rang` have a value after a time. One thread sleeps, or two if the second rings
// earlier.
func (a *alarm) ring(after time.Duration) {
	at := time.Now().Add(after)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.rings.IsZero() && !a.rings.After(at.Add(sleepLate)) {
		return
	}
	a.rings = at
	a.naps.Add(1)
	go func() {
		defer a.naps.Done()
		sleep(at.Add(-sleepLate))
		a.mu.Lock()
		if a.rings.Equal(at) {
			a.rings = time.Time{}
		}
		a.mu.Unlock()
		select {
		case a.rang <- struct{}{}:
		default:
		}
	}()
}

// sleep sleeps until a moment, and is then up to sleepLate late.
func sleep(until time.Time) {
	for left := time.Until(until); left > 0; left = time.Until(until) {
		t := syscall.NsecToTimespec(left.Nanoseconds())
		_ = syscall.Nanosleep(&t, nil) // a signal may end it early
	}
}

func (a *alarm) stop() { a.naps.Wait() }
