package prefetcher

import (
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// elapsed is the time on the device from one timing event to another, and whether the second is
// done. It does not wait. On a lost device it is done, after no time.
func elapsed(from, to *cgotorch.Event) (d time.Duration, done bool) {
	done, err := to.Poll()
	if err == nil && !done {
		return 0, false
	}
	ms, err := to.Elapsed(from)
	if err != nil {
		return 0, true
	}
	return time.Duration(max(0, ms) * float64(time.Millisecond)), true
}
