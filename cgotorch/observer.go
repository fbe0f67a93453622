package cgotorch

import (
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/mistakes"
	"github.com/streamtorch/streamtorch/cgotorch/internal/place"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// An observer follows a Do. The stream checker, NoWaits and the watches of package mistakes are
// observers. Without observers, each call of a Do compares one length.
type observer = seam.Observer[*Exec, *Tensor]

// theCheck is the check of the process, or nil before a check is first turned on. It stays set
// after the check is turned off. A process has at most one, because LibTorch has each hook once.
var theCheck atomic.Pointer[processCheck]

// A processCheck follows all Dos while it is on: see checker.
type processCheck interface {
	on() bool
	// here returns the site of its caller's caller.
	here() site
	// caller returns the place of a site, or "".
	caller(at site) string
	// observer returns the observer of a Do that was called at `do`.
	observer(do site) observer
	// afterDo is called by the caller of each Do that has ended. It returns what the check has found,
	// if the Do has not failed.
	afterDo(failed bool) error
	// finite reports whether the check reads the results of each operator.
	finite() bool
}

// A site is the number of a recorded call stack. 0 means no stack.
type site = place.Site

// activeCheck returns the check of the process, or nil while none is on.
func activeCheck() processCheck {
	if c := theCheck.Load(); c != nil && (*c).on() {
		return *c
	}
	return nil
}

// checking reports whether a check of the process is on.
func checking() bool { return activeCheck() != nil }

// checkingValues reports whether a check reads the results of each operator.
func checkingValues() bool {
	c := activeCheck()
	return c != nil && c.finite()
}

// callSite returns the site of its caller, or 0 while no check is on.
func callSite() site {
	if c := activeCheck(); c != nil {
		return c.here()
	}
	return 0
}

// checkOf returns the observer of a Do that was called at `do`, or nil while no check is on.
func checkOf(do site) observer {
	if c := activeCheck(); c != nil {
		return c.observer(do)
	}
	return nil
}

// waits is called by each method that waits for the device on purpose. It fails the Do of the
// calling goroutine if an observer of this Do forbids it.
func waits(op string) {
	w := currentWorker()
	if w == nil || w.scope == nil || w.scope.err != nil {
		return
	}
	for _, o := range w.scope.observers {
		if o, forbids := o.(interface{ waits(op string) *Error }); forbids {
			w.scope.err = o.waits(op)
			return
		}
	}
}

// newScope makes the scope of a Do. Its observers are those of the stream, and `check` if it is not
// nil.
func newScope(of *Stream, thread uint64, check observer) *scope {
	s := &scope{stream: of, thread: thread}
	if len(of.observers) > 0 {
		s.observers = append(s.observers, of.observers...)
	}
	if check != nil {
		s.observers = append(s.observers, check)
	}
	return s
}

// before tells the observers of a call.
func (x *Exec) before(op string) {
	for _, o := range x.s.observers {
		o.Before(x, op)
	}
}

// after tells the observers of a call that has succeeded.
func (x *Exec) after(op string, kept []*Tensor) {
	for _, o := range x.s.observers {
		o.After(x, op, kept)
	}
}

// borrowed is an observer of an outer scope. It ignores the end of the inner scope.
type borrowed struct{ observer }

func (borrowed) End() {}

// borrow gives s, a scope inside another scope, the observers of that scope.
func (s *scope) borrow(from *scope) {
	for _, o := range from.observers {
		s.observers = append(s.observers, borrowed{o})
	}
}

// growing follows a Do that has many tensors.
type growing struct{ *mistakes.Growth }

// observeGrowth begins to follow a scope with many tensors, once.
func (s *scope) observeGrowth() {
	for _, o := range s.observers {
		if _, is := o.(growing); is {
			return
		}
	}
	s.observers = append(s.observers, growing{streams.mistakes.NewGrowth()})
}

func (g growing) Before(x *Exec, op string) {
	if x.work == nil && !x.Recomputing() { // in a capture and in a second forward memory is not the Do's
		g.See(owner{x}, op)
	}
}

func (growing) After(*Exec, string, []*Tensor) {}
func (growing) End()                           {}

// owner is a Do as a mistakes.Do.
type owner struct{ x *Exec }

func (o owner) String() string { return o.x.stream.String() }
func (o owner) Tensors() int   { return len(o.tensors()) }

func (o owner) tensors() []*Tensor {
	var owned []*Tensor
	for _, t := range o.x.s.tensors {
		if t.owner == o.x.s {
			owned = append(owned, t)
		}
	}
	return owned
}

// Memory leaves out storages of which a tensor sees only a part, because older tensors may hold
// them.
func (o owner) Memory(from int) (bytes int64, recorded bool) {
	seen := map[uint64]bool{}
	for _, t := range o.tensors()[from:] {
		info := t.info()
		recorded = recorded || info.RequiresGrad != 0
		if !seen[info.Storage] && info.StorageBytes <= info.Elements*int64(DType(info.DType).Size()) {
			seen[info.Storage] = true
			bytes += info.StorageBytes
		}
	}
	return bytes, recorded
}
