package cgotorch

import (
	"runtime/debug"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/mistakes"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// A scope is the state of one Do. It owns the Do's tensors and keeps open the streams that the Do
// uses. Only the Do's thread uses the scope.
type scope struct {
	stream *Stream
	thread uint64
	used   []*Stream // streams given to Exec.On, except the Do's own stream
	// `tensors` are the tensors made in this scope. Inside a Tidy they are the tensors made in the
	// Tidy. The list may also have tensors that were kept or closed. The scope does not own these,
	// and the method `free` skips them.
	tensors []*Tensor
	unused  []Tensor        // the method `own` returns these next
	lent    map[uint64]loan // by number of storage; Keep refuses tensors on these storages
	atEnd   []func()
	err     *Error // the first failure
	// `observers` follow the Do, in this order: see observer.go.
	observers []observer
	// `barred` is the reason why operators cannot be called. Either the Do has returned, or a scope
	// inside this scope runs. "" means that operators can be called.
	barred string
}

// A loan is the scope's record of lent memory.
type loan struct {
	whose string
	// `name` reserves the number of the lent storage. Until the scope frees `name`, no other storage
	// gets this number. If another scope has already reserved the number, `name` is nil.
	name *ct.Storage
}

// unwind is the value of the panic by which a failed operator returns to its Do.
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

// makeRoom removes tensors that the scope no longer owns from the list. Otherwise the list of a
// long Do would grow with every tensor that the Do makes.
func (s *scope) makeRoom() {
	owned := s.tensors[:0]
	for _, t := range s.tensors {
		if t.owner == s {
			owned = append(owned, t)
		}
	}
	clear(s.tensors[len(owned):])
	s.tensors = owned
	if len(owned) >= mistakes.ManyTensors {
		s.observeGrowth()
	}
	if 2*len(owned) >= cap(owned) {
		s.tensors = slices.Grow(owned, max(16, len(owned)))
	}
}

// Error returns the text of the failure. It is for a program that recovers and prints the panic.
func (u unwind) Error() string { return u.scope.err.Error() }

// fail records the first failure of the Do and unwinds to the Do. On a goroutine other than the
// Do's, it panics with an *Error that wraps e.
func (s *scope) fail(e *Error) {
	if ct.ThreadID() != s.thread {
		panic(&Error{Op: e.Op, Kind: ErrMisuse, Caller: e.Caller, Message: otherGoroutine, Err: e})
	}
	if s.err == nil {
		s.err = e
	}
	panic(unwind{s})
}

// run calls fn and ends the scope. It stores in `out` how fn ended. fn can end by return, by a
// failed operator, by Must or Check, by a panic of the program, or by Goexit. During Goexit
// deferred functions run, and recover returns nil.
func (s *scope) run(out *outcome, fn func() error) {
	*out = outcome{exited: true}
	defer func() {
		of := *out
		*out = outcome{exited: true} // in case a function given to AtEnd calls Goexit
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
		case unmet:
			if s.err == nil {
				s.err = r.err
			}
			*out = outcome{err: s.err}
		case *Panic: // a backward, or a scope inside this scope, has raised the panic again
			*out = outcome{panicked: r}
		default:
			*out = outcome{panicked: &Panic{Value: r, Stack: debug.Stack()}}
		}
	}()
	err := fn()
	if s.err != nil {
		err = s.err // fn has recovered from the failure, but the failed work is missing
	}
	*out = outcome{err: err}
}

func (s *scope) uses(stream *Stream) bool { return slices.Contains(s.used, stream) }

// inside runs fn in a new scope on x's thread. The Exec of fn enqueues on the argument `stream`,
// and its field `work` is the argument `work`. When fn returns, the tensors of the new scope are
// freed. While fn runs, x cannot be used. The stream checker and NoWaits see the two scopes as one
// Do. `inside` returns fn's failure, and x's Do does not fail.
func (x *Exec) inside(stream *ct.Stream, work *graphWork, fn func(x *Exec) error) error {
	s := &scope{stream: x.s.stream, thread: x.s.thread, lent: map[uint64]loan{}}
	s.borrow(x.s)
	for storage, l := range x.s.lent {
		s.lent[storage] = loan{whose: l.whose}
	}
	y := *x
	y.s, y.work, y.values, y.c.Stream = s, work, x.values.Within(seam.Everywhere), stream
	x.s.barred = "the Exec around a captured function was used inside it: use the function's own"
	defer func() { x.s.barred = "" }()
	var out outcome
	s.run(&out, func() error { return fn(&y) })
	if out.panicked != nil {
		panic(out.panicked)
	}
	return out.err
}

// end runs the functions given to AtEnd. Then it closes the scope, however these functions have
// ended. It returns the first panic of these functions.
func (s *scope) end() (first *Panic) {
	failure := s.err
	var waited *Error // NoWaits also holds in functions given to AtEnd
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
		for _, o := range s.observers {
			o.End()
		}
		s.barred = "an Exec was used after its Do had returned"
	}()
	s.runAtEnd(&first, &waited) //edge:end-before-frees TestAtEnd
	return first
}

// runAtEnd runs the functions given to AtEnd. It stores the first panic of these functions in
// `first`, and the first wait under NoWaits in `waited`.
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
				if r == nil && !returned { // fn has called Goexit, and the functions after fn must still run
					s.runAtEnd(first, waited)
				}
			}()
			fn()
			returned = true
		}()
	}
}

// free frees all tensors of the scope except the tensors in `keep`, in one call of the core.
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
