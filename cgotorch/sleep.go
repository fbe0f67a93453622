package cgotorch

// #include "cgotorch.h"
import "C"

import "time"

// Sleep enqueues work that takes d and does nothing else, for tests of what waits and what overlaps. The host does not wait, but on
// the CPU, where work runs at once.
func (x *Exec) Sleep(d time.Duration) {
	x.check("Exec.Sleep")
	x.must("Exec.Sleep", C.ct_sleep(x.c, C.int64_t(d.Nanoseconds())))
}
