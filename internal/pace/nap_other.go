//go:build !linux

package pace

import "time"

// nap is time.Sleep, so it may end a millisecond late.
func nap(d time.Duration) { time.Sleep(d) }
