package pace

import (
	"testing"
	"time"
)

// An alarm rings for each wait, also if a longer one was given up before.
func TestAlarm(t *testing.T) {
	a := NewAlarm()
	defer a.Stop()
	changed := make(chan struct{}, 1)
	for _, wait := range []time.Duration{5 * time.Millisecond, longest, 100 * time.Microsecond, 0} {
		changed <- struct{}{}
		a.Await(time.Hour, changed, nil)
		changed <- struct{}{}
		a.Await(longest, changed, nil)
		until := time.Now().Add(wait)
		for left := wait; left > 0; left = time.Until(until) {
			a.Await(left, changed, nil)
		}
	}
}
