package cgotorch

// #include "cgotorch.h"
import "C"

import (
	"fmt"
	"runtime"
)

// Exec is an execution context: where work runs (a stream), how (grad mode, autocast) and who owns the results. It is passed
// first to everything that enqueues work, and lives only inside the [Stream.Do] that made it, on that Do's goroutine; used
// elsewhere it panics with an [*Error].
type Exec struct {
	s      *scope
	stream *Stream
	parent *Exec // of a side branch's
	c      C.ct_exec
}

func newExec(s *scope, of *Stream, stream *C.ct_stream) *Exec {
	return &Exec{s: s, stream: of, c: C.ct_exec{stream: stream, thread: C.uint64_t(s.thread), grad: 1, autocast: -1}}
}

const otherGoroutine = "an Exec was used on another goroutine than its Do's"

// check panics when the Exec's Do has returned or another goroutine uses it, and unwinds after a failure.
func (x *Exec) check(op string) {
	if checking.Load() {
		x.c.site = C.uint64_t(callSite(x.s.from...))
	}
	if x.s.barred != "" {
		panic(&Error{Op: op, Code: CodeMisuse, Caller: caller(), Message: x.s.barred})
	}
	if x.s.err != nil {
		panic(unwind{x.s})
	}
	if g := x.s.graph; g != nil && g.capturing && !g.forked[x.c.stream] && op != "Exec.Wait" && x.c.stream != g.outside {
		x.s.fail(&Error{Op: op, Code: CodeNotCapturable, Caller: caller(),
			Message: "the stream is no part of the capture yet: make it wait for an event that is recorded in it (x.Record, then Wait on the Exec of On)"})
	}
}

// checkThread is check where no call into the core follows that would compare the thread.
func (x *Exec) checkThread(op string) {
	x.check(op)
	if uint64(C.ct_thread_id()) != x.s.thread {
		panic(&Error{Op: op, Code: CodeMisuse, Caller: caller(), Message: otherGoroutine})
	}
}

// report ends a call that failed: misuse panics where it happened, anything else unwinds to Do.
func (x *Exec) report(e *Error) {
	if e.Code == CodeMisuse {
		panic(e)
	}
	x.s.fail(e)
}

// must ends a call on ts that failed.
func (x *Exec) must(op string, status *C.ct_status, ts ...*Tensor) {
	if status == nil {
		if x.c.watch != nil {
			x.look(op)
		}
		return
	}
	e := statusError(op, status)
	e.Shapes = describeTensors(ts)
	x.report(e)
}

// Fail makes the Do return err: it does not return. It wraps an err that is no [*Error] in an Error without a code,
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

// Stream is where x enqueues.
func (x *Exec) Stream() *Stream { return x.stream }

// StreamID returns the number, as in [Stream.ID], of the stream on which x enqueues. In a captured
// function and its rehearsals a stream of the graph's own stands in for [Exec.Stream], and has the
// number.
func (x *Exec) StreamID() uint64 { return uint64(C.ct_stream_id(x.c.stream)) }

// DoStream is the stream whose Do x lives in; where x is of [Exec.On] or a branch, Stream is another.
func (x *Exec) DoStream() *Stream { return x.s.stream }

// Device is where the Exec's work runs.
func (x *Exec) Device() Device { return x.stream.device }

// GradEnabled reports whether operators are recorded for [Exec.Backward].
func (x *Exec) GradEnabled() bool { return x.c.grad != 0 }

// NoGrad returns an Exec over the same scope whose operators are not recorded for backward.
func (x *Exec) NoGrad() *Exec {
	y := *x
	y.c.grad = 0
	return &y
}

// WithGrad returns an Exec over the same scope whose operators are recorded for backward.
func (x *Exec) WithGrad() *Exec {
	y := *x
	y.c.grad = 1
	return &y
}

// Autocast returns an Exec over the same scope that runs operators in dtype (bfloat16 or float16) where LibTorch's autocast
// rules say that this is safe, and in float32 elsewhere. Backward and optimizer steps run with autocast off.
func (x *Exec) Autocast(dtype DType) *Exec {
	if dtype != BFloat16 && dtype != Float16 {
		x.Fail("Exec.Autocast", &Error{Op: "Exec.Autocast", Code: CodeInvalidArgument, Caller: caller(),
			Message: fmt.Sprintf("autocast to %v: use bfloat16 or float16", dtype)})
	}
	y := *x
	y.c.autocast = C.int32_t(dtype)
	return &y
}

// NoAutocast returns an Exec over the same scope without autocast.
func (x *Exec) NoAutocast() *Exec {
	y := *x
	y.c.autocast = -1
	return &y
}

// AutocastDType is the dtype of [Exec.Autocast]; 0 means none.
func (x *Exec) AutocastDType() DType { return DType(max(x.c.autocast, 0)) }

// On returns an Exec over the same scope that enqueues on another stream, which stays open until the Do has ended. It is not
// ordered with x: join them with [Exec.Record] and [Exec.Wait]. It does not wait for a Do of that stream. In a captured function a
// stream of the graph's own stands in for it.
func (x *Exec) On(s *Stream) *Exec {
	x.checkThread("Exec.On")
	y := *x
	y.stream = s
	var err error
	if g := x.s.graph; g != nil && !g.eager {
		y.c.stream, err = g.pool.standIn(s)
	} else if s == x.s.stream || x.s.uses(s) {
		y.c.stream, err = s.handle("Exec.On")
	} else if y.c.stream, err = s.use("Exec.On"); err == nil {
		x.s.used = append(x.s.used, s) //edge:on-is-remembered TestStream_CloseUnderOn
	}
	if err != nil {
		x.Fail("Exec.On", err)
	}
	if x.c.watch != nil {
		y.c.watch = y.watch("Exec.On")
	}
	return &y
}

// Record returns a mark behind all work enqueued on x's stream so far. The caller closes it.
func (x *Exec) Record() *Event { return x.record("Exec.Record", 0) }

// RecordTiming is Record for an event that [Event.Elapsed] may be asked of.
func (x *Exec) RecordTiming() *Event { return x.record("Exec.RecordTiming", 1) }

func (x *Exec) record(op string, timing C.int32_t) *Event {
	x.checkThread(op)
	x.s.count(x.c.stream) //edge:count-before-record TestExec_CountLater_BeforeRecord
	e, err := recordEvent(op, x.c.stream, timing)
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
	if err := e.awaitedBy("Exec.Wait", x.c.stream, x.capture()); err != nil {
		x.Fail("Exec.Wait", err)
	}
	if g := x.capture(); g != nil {
		g.forked[x.c.stream] = true
	}
}

// AtEnd runs fn when the Do's function has ended, also by a failure or a panic, before the Do's tensors are freed. Functions
// run in the order in which they were given, all of them; x and what it derives can be used in them. The failure of an
// operator in one is passed over, and a panic is raised in the caller of Do where the Do itself did not fail.
func (x *Exec) AtEnd(fn func()) {
	x.checkThread("Exec.AtEnd")
	if x.s.recomputing {
		x.Fail("Exec.AtEnd", &Error{Op: "Exec.AtEnd", Code: CodeUnsupported, Caller: caller(),
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
// cannot be kept; clone it first. Nor can one that is made in a capture into a [GraphPool] where there are graphs already, which write there.
func (x *Exec) Keep(t *Tensor) *Tensor {
	x.checkThread("Exec.Keep")
	x.open("Exec.Keep", t)
	if g := x.capture(); g != nil && g.pool.filled && !g.alone && t.owner == x.s {
		x.Fail("Exec.Keep", &Error{Op: "Exec.Keep", Code: CodeNotCapturable, Caller: caller(),
			Message: "the tensor lies in memory that other graphs of the pool use, and write: make it before the capture, or rehearse what makes it"})
	}
	if len(x.s.lent) > 0 {
		if l, ok := x.s.lent[uint64(t.info().storage)]; ok {
			x.Fail("Exec.Keep", &Error{Op: "Exec.Keep", Code: CodeInvalidArgument, Caller: caller(),
				Message: "the tensor shares the memory of " + l.whose + ", which is refilled: Clone it first"})
		}
	}
	return x.keep(t)
}

// keep is Keep for memory that others may write.
func (x *Exec) keep(t *Tensor) *Tensor {
	if t.owner != nil {
		if t.owner != x.s {
			x.s.fail(&Error{Op: "Exec.Keep", Code: CodeMisuse, Caller: caller(), Message: "the tensor belongs to another Do"})
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
	y := x.s.own(C.ct_tensor_lend(t.h)) //edge:lent-skip-go TestCheckStreams_FindsMistakes checked
	runtime.KeepAlive(t)
	if x.s.lent == nil {
		x.s.lent = map[uint64]lending{}
	}
	storage := uint64(y.info().storage)
	l, known := x.s.lent[storage]
	if !known {
		l.name = C.ct_tensor_storage(y.h)
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
	return x.s.own(C.ct_tensor_alias(t.h))
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
func (x *Exec) tidy(fn func() []*Tensor) []*Tensor {
	depth := len(x.s.marks)
	x.s.marks = append(x.s.marks, len(x.s.tensors))
	ts := fn()
	x.s.freeFrom(x.s.marks[depth], ts...)
	x.s.marks = x.s.marks[:depth]
	return ts
}

// open fails unless t can be used.
func (x *Exec) open(op string, t *Tensor) {
	switch {
	case t == nil:
		x.s.fail(&Error{Op: op, Code: CodeInvalidArgument, Caller: caller(), Message: "the tensor is nil"})
	case t.h == nil:
		x.s.fail(&Error{Op: op, Code: CodeClosed, Caller: caller(),
			Message: "the tensor is closed: it was closed by the program, or freed when the Do that made it returned (Keep it there)"})
	}
}
