package cgotorch

import (
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// NoWaits returns an Exec of the same Do. The operators of this Exec must not wait for the
// device. If an operator waits, the Do fails with [ErrWaited] at its next operator or at its end.
// The error names the CUDA call, the operator, and the line of the program. NoWaits is for tests,
// as in
//
//	err := train.Do(func(x *cgotorch.Exec) error {
//		x = x.NoWaits()
//		… a whole step …
//	})
//
// Three kinds of CUDA calls count as waits: calls that synchronise, copies that block or use
// pageable memory, and allocations. An allocation counts because it may wait. A call also counts
// if the device happens to be idle. The first steps allocate memory and choose algorithms, so run
// them without NoWaits.
//
// CUPTI reports the calls on the Do's thread and on the threads of LibTorch's backward. Waits in
// Dos of other streams, or on other goroutines, do not count.
//
// Until the Do ends, deliberate waits on the Do's goroutine count too. These are Synchronize of a
// [Stream], an [Event] or a [Device], [Device.ReleaseCachedMemory], the end of a trace, and reads
// of a [HostRead]. A receive from the channel of [Event.Done] does not count.
//
// On the CPU nothing waits, but NoWaits still counts FromSlice, ToSlice and Item. Some operators
// always wait on a CUDA device, whatever their arguments are. NoWaits has a list of their names,
// and counts these operators on the CPU. So a test without a GPU finds most waits. The test does
// not find copies between host and device.
//
// NoWaits fails with [ErrUnsupported] if CUPTI is missing or another tool uses CUPTI. With
// NoWaits, operators take some microseconds longer.
func (x *Exec) NoWaits() *Exec {
	const op = "Exec.NoWaits"
	x.checkThread(op)
	y := *x
	y.c.Watch = x.watch(op)
	return &y
}

// watch makes a ct.Watch, which notes calls that wait for the device. For the CPU it notes
// operators that would wait on CUDA. The ct.Watch is freed when the scope ends.
func (x *Exec) watch(op string) *ct.Watch {
	var w *ct.Watch
	x.must(op, ct.WatchNew(x.stream.device.c(), &w))
	x.s.observers = append(x.s.observers, noWaits{w})
	return w
}

// noWaits fails a Do in which a call has waited for the device.
type noWaits struct{ watch *ct.Watch }

func (noWaits) Before(*Exec, string) {}
func (n noWaits) End()               { ct.WatchFree(n.watch) }

// After does not unwind, because the results of the call still need an owner.
func (n noWaits) After(x *Exec, op string, _ []*Tensor) {
	if x.c.Watch != n.watch || x.s.err != nil {
		return
	}
	if what := ct.WatchSeen(n.watch); what != "" {
		x.s.err = refuse(op, ErrWaited, "%s", what)
	}
}

func (noWaits) waits(op string) *Error { return refuse(op, ErrWaited, "it waits for the device") }
