// Package timing measures times on the device for packages prefetcher and weights.
package timing

import (
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Between returns the time on the device between two timing events. `done` reports whether the
// event `to` is done. Between does not wait. On a lost device it returns 0 and true.
func Between(from, to *cgotorch.Event) (d time.Duration, done bool) {
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
