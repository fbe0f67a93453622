package cgotorch

// #include "cgotorch.h"
import "C"

import "sync/atomic"

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
// what other streams' Dos and other goroutines wait for is theirs. Until the Do ends, Synchronize and ReleaseCachedMemory of
// streams, events and devices, and reads of a [HostRead], count too when the Do's goroutine calls them.
//
// On the CPU nothing waits. There the operators count that would wait on CUDA whatever their arguments are, known by name, so that
// the test finds most of it on a machine without a GPU; copies between memory of one kind and another are not seen.
//
// The Do goes on until the next operator. NoWaits fails with [ErrUnsupported] where CUPTI is absent, or another tool has it. Operators
// are slower meanwhile, by some microseconds.
func (x *Exec) NoWaits() *Exec {
	const op = "Exec.NoWaits"
	x.checkThread(op)
	if x.s.watch == nil {
		x.must(op, C.ct_watch_new(x.stream.device.c(), &x.s.watch))
		watches.Add(1)
	}
	y := *x
	y.c.watch = x.s.watch
	return &y
}

// watches counts the scopes that have a watch, so that who waits on purpose need not ask for the thread while there is none.
var watches atomic.Int64

func (s *scope) endWatch() {
	if s.watch != nil {
		C.ct_watch_free(s.watch)
		s.watch = nil
		watches.Add(-1)
	}
}

// look asks whether the call that has returned waited. The Do then fails, but not here: the call has results that somebody must own.
func (x *Exec) look(op string) {
	if x.s.err != nil {
		return
	}
	if what := C.ct_watch_seen(x.c.watch); what != nil {
		x.s.err = &Error{Op: op, Code: CodeWaited, Caller: caller(), Message: C.GoString(what)}
	}
}

// waits is called by what waits on purpose.
func waits(op string) {
	if watches.Load() == 0 {
		return
	}
	if w := currentWorker(); w != nil && w.scope != nil && w.scope.watch != nil && w.scope.err == nil {
		w.scope.err = &Error{Op: op, Code: CodeWaited, Caller: caller(), Message: "it waits for the device"}
	}
}
