package pace

import (
	"sync"
	"time"
)

// Alarm lets a dispatcher wait for a moment. Go's timers are up to a millisecond late while the
// program has nothing else to do, and a small batch takes less than that. So the last part of a
// wait is a sleep of a thread.
type Alarm struct {
	mu    sync.Mutex
	rings time.Time     // when the sleep under way is to end; zero if there is none
	late  time.Duration // how late sleeps have ended
	naps  sync.WaitGroup
	rang  chan struct{} // of capacity 1
}

const (
	timerLate = time.Millisecond       // how late Go's timers are
	longest   = 2 * time.Millisecond   // of a thread's sleep
	mostLate  = 400 * time.Microsecond // that counts: busy cores are later, and looking earlier would be in vain
	near      = 100 * time.Microsecond // so much earlier needs no sleep of its own
)

// NewAlarm returns an alarm. Linux ends a sleep 50 us late, so as to end several at once. A virtual
// machine whose processor was idle takes longer.
func NewAlarm() *Alarm { return &Alarm{late: 50 * time.Microsecond, rang: make(chan struct{}, 1)} }

// Await returns after a time, or when `changed` or `done` has a value, or earlier: the caller looks
// again whether there is something to do. Either may be nil.
func (a *Alarm) Await(wait time.Duration, changed, done <-chan struct{}) {
	if wait > longest {
		timer := time.NewTimer(wait - timerLate)
		defer timer.Stop()
		select {
		case <-changed:
		case <-done:
		case <-timer.C:
		}
		return
	}
	a.ring(wait)
	select {
	case <-changed:
	case <-done:
	case <-a.rang:
	}
}

// ring makes `rang` have a value after a time. One thread sleeps, or one more if it is to ring
// earlier.
func (a *Alarm) ring(after time.Duration) {
	at := time.Now().Add(after)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.rings.IsZero() && !a.rings.After(at.Add(near)) {
		return
	}
	a.rings = at
	end := at.Add(-a.late)
	a.naps.Add(1)
	go func() {
		defer a.naps.Done()
		slept := sleep(end)
		a.mu.Lock()
		if slept {
			a.late += (min(time.Since(end), mostLate) - a.late) / 8
		}
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

// sleep sleeps until a moment. It reports whether that moment was still to come.
func sleep(until time.Time) (slept bool) {
	for left := time.Until(until); left > 0; left = time.Until(until) {
		nap(left)
		slept = true
	}
	return slept
}

// Stop waits for the sleeps under way.
func (a *Alarm) Stop() {
	if a != nil {
		a.naps.Wait()
	}
}
