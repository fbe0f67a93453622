package cgotorch

import "maps"

// This file exports names for this package's tests. The tests are in package cgotorch_test,
// because they import packages that import cgotorch.

var (
	Kinds      = kinds[:]
	TellRaces  = theChecker().tell
	DTypes     = maps.Keys(dtypes)
	NewPool    = newGraphPool
	ReadWithin = (*HostRead).read
)

// CaptureInto captures fn on s into a pool, without a warm-up run.
func CaptureInto(p *graphPool, s *Stream, fn func(x *Exec) error) (*Graph, error) {
	var g *Graph
	err := s.Do(func(x *Exec) error {
		err := x.beginsCapture("Exec.Capture", fn)
		if err == nil {
			g, err = x.captureInto(p, fn, CaptureOptions{})
		}
		return err
	})
	return g, err
}

// Thread returns the number of the thread of x's Do.
func Thread(x *Exec) uint64 { return x.s.thread }

// IsWorker reports whether a thread is the thread of a stream's worker.
func IsWorker(thread uint64) bool {
	_, known := workers.Load(thread)
	return known
}

// HasWorker reports whether a stream has a worker.
func HasWorker(s *Stream) (found bool) {
	workers.Range(func(_, w any) bool { found = found || w.(*worker).stream == s; return true })
	return found
}

// TensorRoom returns the number of tensors that x's Do has room for.
func TensorRoom(x *Exec) int { return cap(x.s.tensors) }

// Unwatched returns x without the watch of NoWaits.
func Unwatched(x *Exec) *Exec {
	plain := *x
	plain.c.Watch = nil
	return &plain
}

// Failure returns the Do's failure if `recovered` is the panic of a failed operator, and
// otherwise nil.
func Failure(recovered any) error {
	if u, ok := recovered.(unwind); ok {
		return u.scope.err
	}
	return nil
}

// UnderCall locks the event in the same way as a call that uses the event. The returned function
// `end` unlocks the event.
func UnderCall(e *Event) (end func(), err error) {
	_, err = e.lock("test")
	return e.mu.RUnlock, err
}

// AddForgotten adds two tensors. It runs the function `forget` after the call has taken the
// tensors, and before the call runs. Then only the call holds the tensors.
func AddForgotten(x *Exec, ts *[]*Tensor, forget func()) *Tensor {
	c := x.call(&opAdd)
	c.Tensor((*ts)[0])
	c.Tensor((*ts)[1])
	*ts = nil
	forget()
	c.RestDefault()
	return c.Run1()
}

// JoinOverloads is the text of an error that names overloads.
func JoinOverloads(op string, names []string) string { return joinOverloads(op, names) }

// ForgetLocks makes the next Do that waits for a lock be told, also if its place was told before.
func ForgetLocks() { streams.mistakes.Forget() }
