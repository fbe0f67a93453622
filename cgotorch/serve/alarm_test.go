package serve

import (
	"testing"
	"time"
)

// An alarm rings for each wait, also if a longer one was given up before.
func TestAlarm(t *testing.T) {
	a := newAlarm()
	defer a.stop()
	changed := make(chan struct{}, 1)
	for _, wait := range []time.Duration{5 * time.Millisecond, longest, 100 * time.Microsecond, 0} {
		changed <- struct{}{}
		a.await(time.Hour, changed)
		changed <- struct{}{}
		a.await(longest, changed)
		until := time.Now().Add(wait)
		for left := wait; left > 0; left = time.Until(until) {
			a.await(left, changed)
		}
	}
}
