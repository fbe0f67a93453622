package pace

import (
	"syscall"
	"time"
)

// nap puts a thread of the system to sleep, where time.Sleep would use Go's timers. A signal may
// end it early.
func nap(d time.Duration) {
	t := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&t, nil)
}
