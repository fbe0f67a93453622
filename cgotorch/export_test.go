package cgotorch

import "maps"

// This file exports names for the package's tests. They lie outside of the package, so that they
// can use packages above it.

var (
	Kinds      = kinds[:]
	TellRaces  = tellRaces
	DTypes     = maps.Keys(dtypes)
	NewPool    = newGraphPool
	ReadWithin = (*HostRead).read
)

// InPool are options of a capture into a pool.
func InPool(p *graphPool) CaptureOptions { return CaptureOptions{pool: p} }

// Thread is the thread of x's Do.
func Thread(x *Exec) uint64 { return x.s.thread }

// IsWorker reports whether a thread is a stream's.
func IsWorker(thread uint64) bool {
	_, known := workers.Load(thread)
	return known
}

// HasWorker reports whether a stream has a thread.
func HasWorker(s *Stream) (found bool) {
	workers.Range(func(_, w any) bool { found = found || w.(*worker).stream == s; return true })
	return found
}

// TensorRoom is the number of tensors that x's Do has room for.
func TensorRoom(x *Exec) int { return cap(x.s.tensors) }

// Unwatched is x without the watch of NoWaits.
func Unwatched(x *Exec) *Exec {
	plain := *x
	plain.c.Watch = nil
	return &plain
}

// Failure is the failure by which a function unwound, or nil.
func Failure(recovered any) error {
	if u, ok := recovered.(unwind); ok {
		return u.scope.err
	}
	return nil
}

// UnderCall locks the event as a call under way does.
func UnderCall(e *Event) (end func(), err error) {
	_, err = e.lock("test")
	return e.mu.RUnlock, err
}

// AddForgotten adds two tensors that only the call holds once forget runs: after the call has
// them, and before it runs.
func AddForgotten(x *Exec, ts *[]*Tensor, forget func()) *Tensor {
	c := x.call(&opAdd)
	c.tensor((*ts)[0])
	c.tensor((*ts)[1])
	*ts = nil
	forget()
	c.restDefault()
	return c.run1()
}
