package cgotorch

import (
	"runtime/debug"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// A scope owns the tensors, events and streams in use of one Do. It is used on the Do's thread
// alone.
type scope struct {
	stream *Stream
	thread uint64
	used   []*Stream // other streams, by Exec.On
	// Tensors made here, or inside a Tidy in it. Those no longer owned (kept or closed) are passed
	// over.
	tensors []*Tensor
	unused  []Tensor        // own hands these out next
	lent    map[uint64]loan // storages that must not outlive the Do
	atEnd   []func()
	watches []*ct.Watch // of NoWaits
	err     *Error      // the first failure
	// The reason why operators cannot be called: the Do has returned, or a scope inside this one
	// runs. "" if they can.
	barred string
}

// A loan is the Do's record of lent memory.
type loan struct {
	whose string
	// While name is held, no other memory gets the storage's number. nil where another scope holds
	// it.
	name *ct.Storage
}

// unwind is the panic by which a failed operator returns to its Do.
type unwind struct{ scope *scope }

func (s *scope) own(h *ct.Tensor) *Tensor {
	if len(s.unused) == 0 {
		s.unused = make([]Tensor, 16) // one allocation for each tensor took 7 % of a small operator's time
	}
	t := &s.unused[0]
	s.unused = s.unused[1:]
	t.h, t.owner = h, s
	if len(s.tensors) == cap(s.tensors) {
		s.makeRoom()
	}
	s.tensors = append(s.tensors, t)
	return t
}

// makeRoom forgets tensors that are no longer owned, so that a long Do remembers no more than
// it holds.
func (s *scope) makeRoom() {
	owned := s.tensors[:0]
	for _, t := range s.tensors {
		if t.owner == s {
			owned = append(owned, t)
		}
	}
	clear(s.tensors[len(owned):])
	s.tensors = owned
	if 2*len(owned) >= cap(owned) {
		s.tensors = slices.Grow(owned, max(16, len(owned)))
	}
}

// Error returns the failure's text, for a program that recovers the panic and prints it.
func (u unwind) Error() string { return u.scope.err.Error() }

// fail records the first failure and unwinds to Do. On another goroutine than Do's it panics
// with the failure.
func (s *scope) fail(e *Error) {
	if ct.ThreadID() != s.thread {
		panic(&Error{Op: e.Op, Kind: ErrMisuse, Caller: e.Caller, Message: otherGoroutine, Err: e})
	}
	if s.err == nil {
		s.err = e
	}
	panic(unwind{s})
}

// run calls fn, ends the scope, and returns in out how fn ended: by return, by an operator's
// failure, by a panic of the user's, or by Goexit. During Goexit deferred functions run but
// recover returns nil.
func (s *scope) run(out *outcome, fn func() error) {
	*out = outcome{exited: true}
	defer func() {
		of := *out
		*out = outcome{exited: true} // should a function given to AtEnd call Goexit
		if p := s.end(); p != nil && of.err == nil && of.panicked == nil && !of.exited {
			of = outcome{panicked: p}
		}
		if s.err != nil && of.err == nil && of.panicked == nil && !of.exited {
			of.err = s.err
		}
		*out = of
	}()
	defer func() {
		switch r := recover().(type) {
		case nil:
		case unwind:
			*out = outcome{err: s.err}
			if r.scope != s {
				*out = outcome{panicked: &Panic{Value: r.scope.err, Stack: debug.Stack()}}
			}
		case *Panic: // raised again by a backward, or a scope inside this one
			*out = outcome{panicked: r}
		default:
			*out = outcome{panicked: &Panic{Value: r, Stack: debug.Stack()}}
		}
	}()
	err := fn()
	if s.err != nil {
		err = s.err // the function has recovered it, but the failed work is missing
	}
	*out = outcome{err: err}
}

func (s *scope) uses(stream *Stream) bool { return slices.Contains(s.used, stream) }

// inside runs fn in a scope of its own on x's thread, with an Exec on the stream that does
// work. It returns fn's failure, which is not x's. Tensors of that scope are freed when fn has
// returned. x cannot be used meanwhile. The stream checker and NoWaits see both scopes as one
// Do.
func (x *Exec) inside(stream *ct.Stream, work *graphWork, fn func(x *Exec) error) error {
	s := &scope{stream: x.s.stream, thread: x.s.thread, lent: map[uint64]loan{}}
	for storage, l := range x.s.lent {
		s.lent[storage] = loan{whose: l.whose}
	}
	y := *x
	y.s, y.work, y.trial, y.c.Stream = s, work, false, stream
	x.s.barred = "the Exec around a captured function was used inside it: use the function's own"
	defer func() { x.s.barred = "" }()
	var out outcome
	s.run(&out, func() error { return fn(&y) })
	if out.panicked != nil {
		panic(out.panicked)
	}
	return out.err
}

// end runs the functions given to AtEnd and closes the scope, however they end. It returns the
// first panic in one of them.
func (s *scope) end() (first *Panic) {
	failure := s.err
	var waited *Error // NoWaits holds until here
	defer func() {
		if s.err = failure; failure == nil {
			s.err = waited
		}
		s.free() //edge:end-frees TestDo_FreesWhatItMade
		for _, l := range s.lent {
			ct.StorageFree(l.name)
		}
		for _, stream := range s.used {
			stream.unuse() //edge:on-ends TestStream_CloseUnderOn
		}
		s.endWatches()
		s.barred = "an Exec was used after its Do had returned"
	}()
	s.runAtEnd(&first, &waited) //edge:end-before-frees TestAtEnd
	return first
}

// runAtEnd runs the functions given to AtEnd. It notes the first panic in one of them, and the
// first wait under NoWaits.
func (s *scope) runAtEnd(first **Panic, waited **Error) {
	for len(s.atEnd) > 0 {
		fn := s.atEnd[0]
		s.atEnd = s.atEnd[1:]
		s.err = nil
		func() {
			returned := false
			defer func() {
				r := recover()
				if _, failed := r.(unwind); r != nil && !failed && *first == nil {
					*first = &Panic{Value: r, Stack: debug.Stack()}
				}
				if s.err != nil && s.err.Kind == ErrWaited && *waited == nil {
					*waited = s.err
				}
				if r == nil && !returned { // Goexit: the others still run
					s.runAtEnd(first, waited)
				}
			}()
			fn()
			returned = true
		}()
	}
}

// free frees all tensors except keep, in one C call.
func (s *scope) free(keep ...*Tensor) {
	var handles []*ct.Tensor
	kept := s.tensors[:0]
	for _, t := range s.tensors {
		switch {
		case t.owner != s:
		case slices.Contains(keep, t):
			kept = append(kept, t)
		default:
			if handles == nil {
				handles = make([]*ct.Tensor, 0, len(s.tensors))
			}
			if t.grad != nil {
				t.grad.Close()
			}
			handles = append(handles, t.take())
		}
	}
	clear(s.tensors[len(kept):])
	s.tensors = kept
	if len(handles) > 0 {
		ct.TensorsFree(&handles[0], int64(len(handles))) //edge:tensors-freed TestDo_FreesWhatItMade
	}
}
