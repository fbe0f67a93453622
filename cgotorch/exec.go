package cgotorch

import (
	"fmt"
	"runtime"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Exec is an execution context: where work runs (a stream), how (grad mode, autocast) and who owns the results. It is passed
// first to everything that enqueues work, and lives only inside the [Stream.Do] that made it, on that Do's goroutine; used
// elsewhere it panics with an [*Error].
type Exec struct {
	s      *scope
	stream *Stream    // the program's; in a graph's work another one stands in for it, see Stream
	parent *Exec      // of a side branch's
	work   *graphWork // what x's work becomes part of, or is a rehearsal of; nil for neither
	hook   bool       // of a function given to EachLaunch
	trial  bool       // a Choice measures x's work
	from   []uintptr  // the calls that led to a Recompute whose second call x is for; nil for any other
	c      ct.Exec
}

func newExec(s *scope, of *Stream, stream *ct.Stream) *Exec {
	return &Exec{s: s, stream: of, c: ct.Exec{Stream: stream, Thread: s.thread, Grad: 1, Autocast: -1}}
}

const otherGoroutine = "an Exec was used on another goroutine than its Do's"

// check panics when the Exec's Do has returned or another goroutine uses it, and unwinds after a failure.
func (x *Exec) check(op string) {
	if theChecker.on.Load() {
		x.c.Site = uint64(callSite(x.from...))
	}
	if x.s.barred != "" {
		panic(&Error{Op: op, Kind: ErrMisuse, Caller: caller(), Message: x.s.barred})
	}
	if x.s.err != nil {
		panic(unwind{x.s})
	}
	if g := x.work; g != nil && g.capturing && !g.forked[x.c.Stream] && op != "Exec.Wait" && x.c.Stream != g.outside {
		x.s.fail(&Error{Op: op, Kind: ErrNotCapturable, Caller: caller(),
			Message: "the stream is no part of the capture yet: make it wait for an event that is recorded in it (x.Record, then Wait on the Exec of On)"})
	}
}

// checkThread is check where no call into the core follows that would compare the thread.
func (x *Exec) checkThread(op string) {
	x.check(op)
	if ct.ThreadID() != x.s.thread {
		panic(&Error{Op: op, Kind: ErrMisuse, Caller: caller(), Message: otherGoroutine})
	}
}

// report ends a call that failed: misuse panics where it happened, anything else unwinds to Do.
func (x *Exec) report(e *Error) {
	if e.Kind == ErrMisuse {
		panic(e)
	}
	x.s.fail(e)
}

// must ends a call on ts that failed.
func (x *Exec) must(op string, status *ct.Status, ts ...*Tensor) {
	if status == nil {
		if x.c.Watch != nil {
			x.look(op)
		}
		return
	}
	e := statusError(op, status)
	e.Shapes = describeTensors(ts)
	x.report(e)
}

// Fail makes the Do return err: it does not return. It wraps an err that is no [*Error] in an Error without a kind,
// and fills in the Caller that an Error lacks.
func (x *Exec) Fail(op string, err error) {
	x.checkThread(op)
	e, ok := err.(*Error)
	if !ok || e == nil {
		e = &Error{Op: op, Err: err}
	}
	if e.Caller == "" {
		e.Caller = caller()
	}
	x.s.fail(e)
}

// Stream is where x enqueues. In a captured function and its rehearsals that is a stream of the graph's own, which stands in
// for the program's.
func (x *Exec) Stream() *Stream {
	if g := x.work; g != nil && !g.eager && x.c.Stream != g.outside {
		if stand := g.pool.stands[x.stream]; stand != nil {
			return stand
		}
	}
	return x.stream
}

// DoStream is the stream whose Do x lives in; where x is of [Exec.On] or a branch, Stream is another.
func (x *Exec) DoStream() *Stream { return x.s.stream }

// Device is where the Exec's work runs.
func (x *Exec) Device() Device { return x.stream.device }

// GradEnabled reports whether operators are recorded for [Exec.Backward].
func (x *Exec) GradEnabled() bool { return x.c.Grad != 0 }

// NoGrad returns an Exec over the same scope whose operators are not recorded for backward.
func (x *Exec) NoGrad() *Exec {
	y := *x
	y.c.Grad = 0
	return &y
}

// WithGrad returns an Exec over the same scope whose operators are recorded for backward.
func (x *Exec) WithGrad() *Exec {
	y := *x
	y.c.Grad = 1
	return &y
}

// Autocast returns an Exec over the same scope that runs operators in dtype (bfloat16 or float16) where LibTorch's autocast
// rules say that this is safe, and in float32 elsewhere. Backward and optimizer steps run with autocast off.
func (x *Exec) Autocast(dtype DType) *Exec {
	if dtype != BFloat16 && dtype != Float16 {
		x.Fail("Exec.Autocast", &Error{Op: "Exec.Autocast", Kind: ErrInvalidArgument, Caller: caller(),
			Message: fmt.Sprintf("autocast to %v: use bfloat16 or float16", dtype)})
	}
	y := *x
	y.c.Autocast = int32(dtype)
	return &y
}

// NoAutocast returns an Exec over the same scope without autocast.
func (x *Exec) NoAutocast() *Exec {
	y := *x
	y.c.Autocast = -1
	return &y
}

// AutocastDType is the dtype of [Exec.Autocast]; 0 means none.
func (x *Exec) AutocastDType() DType { return DType(max(x.c.Autocast, 0)) }

// On returns an Exec over the same scope that enqueues on another stream, which stays open until the Do has ended. It is not
// ordered with x: join them with [Exec.Record] and [Exec.Wait]. It does not wait for a Do of that stream. In a captured function a
// stream of the graph's own stands in for it.
func (x *Exec) On(s *Stream) *Exec {
	x.checkThread("Exec.On")
	y := *x
	y.stream = s
	var err error
	if g := x.work; g != nil && !g.eager {
		y.c.Stream, err = g.pool.standIn(s)
	} else if s == x.s.stream || x.s.uses(s) {
		y.c.Stream, err = s.handle("Exec.On")
	} else if y.c.Stream, err = s.use("Exec.On"); err == nil {
		x.s.used = append(x.s.used, s) //edge:on-is-remembered TestStream_CloseUnderOn
	}
	if err != nil {
		x.Fail("Exec.On", err)
	}
	if x.c.Watch != nil && s.device.IsCUDA() != x.Device().IsCUDA() {
		y.c.Watch = y.watch("Exec.On")
	}
	return &y
}

// Record returns a mark behind all work enqueued on x's stream so far. The caller closes it.
func (x *Exec) Record() *Event { return x.record("Exec.Record", 0) }

// RecordTiming is Record for an event that [Event.Elapsed] may be asked of.
func (x *Exec) RecordTiming() *Event { return x.record("Exec.RecordTiming", 1) }

func (x *Exec) record(op string, timing int32) *Event {
	x.checkThread(op)
	e, err := recordEvent(op, x.c.Stream, timing)
	if err != nil {
		x.Fail(op, err)
	}
	e.capture = x.capture()
	return e
}

// Wait makes work enqueued on x's stream from now on run after the event. The host does not wait.
func (x *Exec) Wait(e *Event) {
	x.checkThread("Exec.Wait")
	//edge:exec-wait TestEpoch_HasNoRace checked
	if err := e.awaitedBy("Exec.Wait", x.c.Stream, x.capture()); err != nil {
		x.Fail("Exec.Wait", err)
	}
	if g := x.capture(); g != nil {
		g.forked[x.c.Stream] = true
	}
}

// AtEnd runs fn when the Do's function has ended, also by a failure or a panic, before the Do's tensors are freed. Functions
// run in the order in which they were given, all of them; x and what it derives can be used in them. The failure of an
// operator in one is passed over, and a panic is raised in the caller of Do where the Do itself did not fail.
func (x *Exec) AtEnd(fn func()) {
	x.checkThread("Exec.AtEnd")
	if x.from != nil {
		x.Fail("Exec.AtEnd", &Error{Op: "Exec.AtEnd", Kind: ErrUnsupported, Caller: caller(),
			Message: "in a function that is computed again, whose tensors backward still reads when it has ended"})
	}
	if p := x.parent; p != nil { // the branch is joined by then, and p goes on
		branch := fn
		p.AtEnd(func() {
			x.follow(p)
			defer p.follow(x)
			branch()
		})
		return
	}
	x.s.atEnd = append(x.s.atEnd, fn)
}

// follow makes x's stream wait for y's work so far.
func (x *Exec) follow(y *Exec) {
	e := y.Record()
	defer e.Close()
	x.Wait(e)
}

// Keep hands the tensor out of the Do: it lives until the caller closes it. A tensor that shares the memory of a lent batch
// cannot be kept; clone it first. Nor can one that is made in a capture into a [graphPool] where there are graphs already, which write there.
func (x *Exec) Keep(t *Tensor) *Tensor {
	x.checkThread("Exec.Keep")
	x.open("Exec.Keep", t)
	if g := x.capture(); g != nil && g.pool.filled && !g.alone && t.owner == x.s {
		x.Fail("Exec.Keep", &Error{Op: "Exec.Keep", Kind: ErrNotCapturable, Caller: caller(),
			Message: "the tensor lies in memory that other graphs of the pool use, and write: make it before the capture, or rehearse what makes it"})
	}
	if len(x.s.lent) > 0 {
		if l, ok := x.s.lent[t.info().Storage]; ok {
			x.Fail("Exec.Keep", &Error{Op: "Exec.Keep", Kind: ErrInvalidArgument, Caller: caller(),
				Message: "the tensor shares the memory of " + l.whose + ", which is refilled: Clone it first"})
		}
	}
	return x.keep(t)
}

// keep is Keep for memory that others may write.
func (x *Exec) keep(t *Tensor) *Tensor {
	if t.owner != nil {
		if t.owner != x.s {
			x.s.fail(&Error{Op: "Exec.Keep", Kind: ErrMisuse, Caller: caller(), Message: "the tensor belongs to another Do"})
		}
		t.owner = nil
		t.cleanup = runtime.AddCleanup(t, freeTensor, t.h)
	}
	return t
}

// adopt gives x's Do a tensor that was kept.
func (x *Exec) adopt(t *Tensor) {
	if t.owner != nil {
		return // it is there already
	}
	t.cleanup.Stop()
	t.owner = x.s
	x.s.tensors = append(x.s.tensors, t)
}

// Lend returns a second handle of t that is freed when the Do returns. Neither it nor a tensor that shares its memory can be
// kept; whose names the owner in that error, as in "batch 12 of epoch 3".
func (x *Exec) Lend(t *Tensor, whose string) *Tensor {
	x.checkThread("Exec.Lend")
	x.open("Exec.Lend", t)
	y := x.s.own(ct.TensorLend(t.h)) //edge:lent-skip-go TestCheckStreams_FindsMistakes checked
	runtime.KeepAlive(t)
	if x.s.lent == nil {
		x.s.lent = map[uint64]lending{}
	}
	storage := y.info().Storage
	l, known := x.s.lent[storage]
	if !known {
		l.name = ct.TensorStorage(y.h)
	}
	l.whose = whose
	x.s.lent[storage] = l
	return y
}

// Alias returns a second handle of t, owned by the Do.
func (x *Exec) Alias(t *Tensor) *Tensor {
	x.checkThread("Exec.Alias")
	x.open("Exec.Alias", t)
	defer runtime.KeepAlive(t)
	return x.s.own(ct.TensorAlias(t.h))
}

// Tidy runs fn and frees at once all tensors it made, except its result (which may be nil) and those it kept.
func (x *Exec) Tidy(fn func() *Tensor) *Tensor {
	x.checkThread("Exec.Tidy")
	var t *Tensor
	x.tidy(func() []*Tensor {
		t = fn()
		return []*Tensor{t}
	})
	return t
}

// tidy is Tidy of several results.
func (x *Exec) tidy(fn func() []*Tensor) (ts []*Tensor) {
	before := x.s.tensors
	x.s.tensors = before[len(before):] // what fn makes lies behind, in the same memory while there is room
	defer func() { x.s.tensors = append(before, x.s.tensors...) }()
	ts = fn()
	x.s.free(ts...)
	return ts
}

// open fails unless t can be used.
func (x *Exec) open(op string, t *Tensor) {
	switch {
	case t == nil:
		x.s.fail(&Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Message: "the tensor is nil"})
	case t.h == nil:
		x.s.fail(&Error{Op: op, Kind: ErrClosed, Caller: caller(),
			Message: "the tensor is closed: it was closed by the program, or freed when the Do that made it returned (Keep it there)"})
	}
}
