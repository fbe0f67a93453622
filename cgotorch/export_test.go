package cgotorch

import (
	"maps"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// This file exports names for this package's tests. The tests are in package cgotorch_test,
// because they import packages that import cgotorch.

var (
	Kinds        = kinds[:]
	DTypes       = maps.Keys(dtypes)
	NewPool      = newGraphPool
	ReadWithin   = (*HostRead).read
	CaptureGraph = (*Exec).captureGraph
	Uncaptured   = (*Exec).uncaptured
	Decisions    = (*Choice).made
	SetPatience  = streams.mistakes.SetPatience
)

// TellRaces reports the new races. LeftRaces returns those that nobody has got.
func TellRaces() {
	c, _ := theChecker()
	c.tell()
}

func LeftRaces() []*StreamRace {
	c, _ := theChecker()
	return c.left()
}

// OverlapCounts returns the counts of an Overlap.
func OverlapCounts(p *Overlap) (counts struct{ Layers, Parallel, Late, ShortOfMemory int }) {
	c := p.counts()
	counts.Layers, counts.Parallel, counts.Late, counts.ShortOfMemory = int(c.Layers), int(c.Parallel), int(c.Late), int(c.ShortOfMemory)
	return counts
}

// DecisionsOf returns the decisions of an Overlap.
func DecisionsOf(p *Overlap) []decision { return p.choice.made() }

// InferenceStats returns the launches of all streams, and their graphs.
func InferenceStats(f *Inference) (launches, graphs int) {
	for _, l := range f.lanes {
		s := l.captured.Stats()
		launches, graphs = launches+s.Launches, graphs+s.Graphs
	}
	return launches, graphs
}

// GraphSize counts the nodes of a graph. Of an eager graph it is zero.
func GraphSize(g *Graph) (size ct.GraphSize, err error) {
	if !g.eager {
		err = check("GraphSize", ct.GraphCount(g.h, &size))
	}
	return size, err
}

// Threads returns the number of threads that one operator may use on the CPU.
func Threads() int { return int(ct.ThreadsGet()) }

// NameOf returns the name without the device.
func NameOf(s *Stream) string { return s.name }

// Pinned reports whether the memory is page-locked.
func Pinned(s *HostSlab) bool { return s.h != nil && ct.SlabPinned(s.h) != 0 }

// Version and StorageBytes are what package seam gives of a tensor.
func Version(t *Tensor) int        { return inner{}.Version(t) }
func StorageBytes(t *Tensor) int64 { return inner{}.StorageBytes(t) }

// Switch returns a switch of the process.
func Switch(which int32) (v int32) {
	if err := check("Switch", ct.SwitchGet(which, &v)); err != nil {
		panic(err)
	}
	return v
}

// CaptureInto captures fn on s into a pool, without a warm-up run.
func CaptureInto(p *graphPool, s *Stream, fn func(x *Exec) error) (*Graph, error) {
	var g *Graph
	err := s.Do(func(x *Exec) error {
		err := x.beginsCapture("Stream.Capture", fn)
		if err == nil {
			g, err = x.captureInto(p, fn, 0)
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
