package cgotorch

import (
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// NoWaits returns an Exec over the same scope whose operators must not wait for the device: if one does, the Do fails with
// [ErrWaited], and says which call of CUDA's it was, in which operator, at which line of the program. It is for tests, as in
//
//	err := train.Do(func(x *cgotorch.Exec) error {
//		x = x.NoWaits()
//		… a whole step …
//	})
//
// What counts is every synchronising call, copies that block or are of pageable memory, and allocations, which may wait (so the
// steps that come first, for which memory is allocated and algorithms are chosen, are to run without it). A call counts also where the
// device happens to be done already. Calls are told by CUPTI, on the Do's thread and on those on which LibTorch runs its backward;
// what other streams' Dos and other goroutines wait for is theirs. Until the Do ends, these count too when its
// goroutine calls them: Synchronize of a [Stream], an [Event] or a [Device], [Device.ReleaseCachedMemory], [Trace.Stop], and reads of a
// [HostRead]. To receive from [Event.Done] does not.
//
// On the CPU nothing waits. There the operators count that would wait on CUDA whatever their arguments are, known by name, and FromSlice, ToSlice and Item, so that
// the test finds most of it on a machine without a GPU; copies between memory of one kind and another are not seen.
//
// The Do goes on until the next operator. NoWaits fails with [ErrUnsupported] where CUPTI is absent, or another tool has it. Operators
// are slower meanwhile, by some microseconds.
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

// watches counts the watches there are. A deliberate wait then skips the thread lookup when there is none.
var watches atomic.Int64

func (s *scope) endWatches() {
	for _, w := range s.watches {
		ct.WatchFree(w)
	}
	watches.Add(-int64(len(s.watches)))
	s.watches = nil
}

// look asks whether the call that has returned waited. The Do then fails, but not here: the call has results that somebody must own.
func (x *Exec) look(op string) {
	if x.s.err != nil {
		return
	}
	if what := ct.WatchSeen(x.c.Watch); what != "" {
		x.s.err = &Error{Op: op, Kind: ErrWaited, Caller: caller(), Message: what}
	}
}

// waits is called by what waits on purpose.
func waits(op string) {
	if watches.Load() == 0 {
		return
	}
	if w := currentWorker(); w != nil && w.scope != nil && len(w.scope.watches) > 0 && w.scope.err == nil {
		w.scope.err = &Error{Op: op, Kind: ErrWaited, Caller: caller(), Message: "it waits for the device"}
	}
}
