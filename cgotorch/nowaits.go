package cgotorch

import (
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// NoWaits returns an Exec over the same scope whose operators must not wait for the device.
// Where an operator waits, the Do goes on until the next operator and then fails with
// [ErrWaited]. The error names the call of CUDA, the operator, and the line of the program.
// NoWaits is for tests, as in
//
//	err := train.Do(func(x *cgotorch.Exec) error {
//		x = x.NoWaits()
//		… a whole step …
//	})
//
// These calls count as waits: every synchronising call, copies that block or use pageable
// memory, and allocations, which may wait. Run the first steps without NoWaits: they allocate
// memory and choose algorithms. A call counts even if the device happens to be done already.
// CUPTI reports the calls on the Do's thread and on the threads of LibTorch's backward. Waits
// of other streams' Dos and of other goroutines do not count.
//
// Until the Do ends, deliberate waits of its goroutine count too. They are Synchronize of a
// [Stream], an [Event] or a [Device], [Device.ReleaseCachedMemory], the end of a trace, and
// reads of a [HostRead]. A receive from [Event.Done] does not count.
//
// On the CPU nothing waits. There NoWaits counts FromSlice, ToSlice and Item, and the operators
// that would wait on CUDA with any arguments, known by name. So a test finds most waits on a
// machine without a GPU. Copies between kinds of memory are not seen there.
//
// NoWaits fails with [ErrUnsupported] where CUPTI is absent, or another tool has it. Operators
// take some microseconds longer meanwhile.
func (x *Exec) NoWaits() *Exec {
	const op = "Exec.NoWaits"
	x.checkThread(op)
	y := *x
	y.c.Watch = x.watch(op)
	return &y
}

// watch makes a watch for the kind of x's device. It ends with the scope.
func (x *Exec) watch(op string) *ct.Watch {
	var w *ct.Watch
	x.must(op, ct.WatchNew(x.stream.device.c(), &w))
	x.s.watches = append(x.s.watches, w)
	watches.Add(1)
	return w
}

// watches counts the watches. A deliberate wait then skips the thread lookup when there is
// none.
var watches atomic.Int64

func (s *scope) endWatches() {
	for _, w := range s.watches {
		ct.WatchFree(w)
	}
	watches.Add(-int64(len(s.watches)))
	s.watches = nil
}

// look fails the Do where the call that has returned waited. It lets the call return first,
// because the call's results need an owner.
func (x *Exec) look(op string) {
	if x.s.err != nil {
		return
	}
	if what := ct.WatchSeen(x.c.Watch); what != "" {
		x.s.err = refuse(op, ErrWaited, "%s", what)
	}
}

// waits is called by each deliberate wait.
func waits(op string) {
	if watches.Load() == 0 {
		return
	}
	if w := currentWorker(); w != nil && w.scope != nil && len(w.scope.watches) > 0 && w.scope.err == nil {
		w.scope.err = refuse(op, ErrWaited, "it waits for the device")
	}
}
