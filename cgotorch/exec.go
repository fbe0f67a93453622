package cgotorch

import (
	"runtime"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// Exec is an execution context. It says on which stream work runs, in which modes work runs, and
// which Do owns the results. The modes are the gradient mode and autocast. Every call that
// enqueues work takes an Exec as its first argument.
//
// An Exec may be used only inside the [Stream.Do] that made it, and only on the goroutine of that
// Do. Any other use panics with an [*Error].
type Exec struct {
	s      *scope
	stream *Stream // stream of the program; a captured function uses another stream instead: see Exec.Stream
	parent *Exec   // for a side branch: the Exec that called Parallel
	// `work` is the graphWork that x's work belongs to: a capture, a warm-up run or a launch of an
	// eager graph. Otherwise it is nil.
	work *graphWork
	// `values` are kept with x by features and packages, such as the weights that nn.CastWeights
	// has cast. A derived Exec gets them too. If its work is not ordered after x's, it does not get
	// the values of reach seam.SameOrder.
	values *seam.Values
	c      ct.Exec
}

func newExec(s *scope, of *Stream, stream *ct.Stream) *Exec {
	return &Exec{s: s, stream: of, c: ct.Exec{Stream: stream, Thread: s.thread, Grad: 1, Autocast: -1}}
}

const otherGoroutine = "an Exec was used on another goroutine than its Do's; " + ownExec

// check panics if the Do has returned, or if a scope inside x's scope runs. If an operator of the
// Do has failed, `check` unwinds to the Do. In a capture every call except Wait fails if x's stream
// is not part of the capture yet. `check` does not compare threads.
func (x *Exec) check(op string) {
	if x.s.barred != "" {
		panic(refuse(op, ErrMisuse, "%s", x.s.barred))
	}
	if x.s.err != nil {
		panic(unwind{x.s})
	}
	if len(x.s.observers) > 0 {
		x.before(op)
	}
	if g := x.work; g != nil && g.capturing && !g.forked[x.c.Stream] && op != "Exec.Wait" && x.c.Stream != g.outside {
		x.s.fail(refuse(op, ErrNotCapturable,
			"the stream is no part of the capture yet: make it wait for an event that is recorded in it (x.Record, then Wait on the Exec of On)"))
	}
}

// checkThread does what check does. It also panics if the calling goroutine is not the
// goroutine of the Do. A method of Exec calls checkThread if it does not call the core. The core
// itself compares the threads at each call.
func (x *Exec) checkThread(op string) {
	x.check(op)
	if ct.ThreadID() != x.s.thread {
		panic(refuse(op, ErrMisuse, otherGoroutine))
	}
}

// report ends a call that failed. For an error of kind ErrMisuse it panics with the error. For any
// other error it unwinds to the Do.
func (x *Exec) report(e *Error) {
	if e.Kind == ErrMisuse {
		panic(e)
	}
	x.s.fail(e)
}

// must ends a call of the core. If status is an error, `must` reports this error with the shapes of
// ts.
func (x *Exec) must(op string, status *ct.Status, ts ...*Tensor) {
	if status == nil {
		if len(x.s.observers) > 0 {
			x.after(op, nil)
		}
		return
	}
	e := statusError(op, status)
	e.Shapes = describeTensors(ts)
	x.report(e)
}

// Fail makes the Do return err. Fail itself does not return. If err is not an [*Error], Fail
// wraps it in an Error. The kind of that Error is the Err… value of this package that err wraps,
// or nil. If the Error has no Caller, Fail fills in the Caller.
func (x *Exec) Fail(op string, err error) {
	x.checkThread(op)
	e, ok := err.(*Error)
	switch {
	case !ok:
		e = &Error{Op: op, Kind: kindOf(err), Err: err}
	case e == nil:
		e = &Error{Op: op}
	}
	if e.Caller == "" {
		e.Caller = caller()
	}
	x.s.fail(e)
}

// Stream returns the stream that x enqueues on. In a captured function and in its warm-up runs
// this is a stream of the graph's own, which stands in for the program's stream.
func (x *Exec) Stream() *Stream {
	if g := x.work; g != nil && !g.eager && x.c.Stream != g.outside {
		if stand := g.pool.stand(x.stream); stand != nil {
			return stand
		}
	}
	return x.stream
}

// DoStream returns the stream whose Do x belongs to. [Exec.Stream] returns another stream if x
// comes from [Exec.On] or belongs to a branch.
func (x *Exec) DoStream() *Stream { return x.s.stream }

// Device returns the device that x's work runs on.
func (x *Exec) Device() Device { return x.stream.device }

// GradEnabled reports whether operators are recorded for [Exec.Backward].
func (x *Exec) GradEnabled() bool { return x.c.Grad != 0 }

// Recomputing reports whether x belongs to the second call of a function given to
// [Exec.Recompute]. A module that changes its own memory in Forward, such as running statistics,
// must not change this memory in the second call.
func (x *Exec) Recomputing() bool { return x.forward() != nil }

// forward returns the call stack of Recompute, if x belongs to the second call of the function.
// Otherwise it returns nil.
func (x *Exec) forward() forward {
	frames, _ := seam.Find[forward](x.values)
	return frames
}

func (x *Exec) setForward(frames forward) { x.values = x.values.With(frames, seam.Everywhere) }

// forward is the call stack of a Recompute. Execs of the second call carry it.
type forward []uintptr

// NoGrad returns an Exec of the same Do. The operators of the returned Exec are not recorded for
// backward.
func (x *Exec) NoGrad() *Exec {
	y := *x
	y.c.Grad = 0
	return &y
}

// WithGrad returns an Exec of the same Do. The operators of the returned Exec are recorded for
// backward.
func (x *Exec) WithGrad() *Exec {
	y := *x
	y.c.Grad = 1
	return &y
}

// Autocast returns an Exec of the same Do that runs operators with autocast to dtype. These
// operators run in dtype if LibTorch's autocast rules call this safe, and otherwise in float32.
// Backward and optimizer steps run without autocast. dtype is [BFloat16] or [Float16], or [Float32]
// for an Exec without autocast. Otherwise Autocast fails with [ErrInvalidArgument].
func (x *Exec) Autocast(dtype DType) *Exec {
	switch dtype {
	case BFloat16, Float16:
	case Float32:
		return x.NoAutocast()
	default:
		x.Fail("Exec.Autocast", refuse("Exec.Autocast", ErrInvalidArgument,
			"autocast to %v: use bfloat16 or float16, or float32 for none", dtype))
	}
	y := *x
	y.c.Autocast = int32(dtype)
	return &y
}

// NoAutocast returns an Exec of the same Do without autocast.
func (x *Exec) NoAutocast() *Exec {
	y := *x
	y.c.Autocast = -1
	return &y
}

// AutocastDType returns the dtype of [Exec.Autocast]. 0 means no autocast.
func (x *Exec) AutocastDType() DType { return DType(max(x.c.Autocast, 0)) }

// On returns an Exec of the same Do that enqueues on s. On does not wait for a Do of s. s stays
// open until x's Do has ended. Work on s and work on x's stream have no order. Give them an order
// with [Exec.Record] and [Exec.Wait]. In a captured function a stream of the graph's own stands
// in for s. On fails with [ErrClosed] if s is closed.
func (x *Exec) On(s *Stream) *Exec {
	x.checkThread("Exec.On")
	y := *x
	y.stream, y.values = s, x.values.Within(seam.SameScope)
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

// Record returns an event that marks the end of all work enqueued so far on x's stream. It does
// not wait. Close frees the event early. Without Close the garbage collector frees it.
func (x *Exec) Record() *Event { return x.record("Exec.Record", 0) }

// RecordTiming is [Exec.Record] for an event whose time [Event.Elapsed] can read.
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

// Wait makes later work of x's stream run after the event. On a CUDA stream the device waits, and
// the host does not. On a CPU stream the host waits until the event is done, as in [Stream.Wait].
func (x *Exec) Wait(e *Event) {
	x.checkThread("Exec.Wait")
	//edge:exec-wait TestEpoch_HasNoRace checked
	if err := e.awaitedBy("Exec.Wait", x.c.Stream, x.capture()); err != nil {
		x.Fail("Exec.Wait", err)
	}
	if g := x.capture(); g != nil && e != nil {
		g.forked[x.c.Stream] = true
	}
}

// AtEnd runs fn after the Do's function has ended, and before the Do's tensors are freed. fn also
// runs if the Do's function has failed or panicked. The Do runs all functions given to AtEnd, in
// the order of the calls of AtEnd. fn can use x and every Exec derived from x.
//
// If an operator fails in fn, the failure is ignored, except [ErrWaited]. A panic in fn is raised
// in the caller of Do, unless the Do itself failed. AtEnd fails with [ErrUnsupported] in the
// second call of a function given to [Exec.Recompute].
func (x *Exec) AtEnd(fn func()) {
	x.checkThread("Exec.AtEnd")
	if x.Recomputing() {
		x.Fail("Exec.AtEnd", refuse("Exec.AtEnd", ErrUnsupported,
			"in a function that is computed again, whose tensors backward still reads when it has ended"))
	}
	if p := x.parent; p != nil { // at the Do's end p may have later work, and the branch has not waited for this work
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

// follow makes x's later work run after y's work so far.
func (x *Exec) follow(y *Exec) {
	e := y.Record()
	defer e.Close()
	x.Wait(e)
}

// Keep takes t out of the Do and returns t. Then t lives until the caller closes it.
//
// Keep fails with [ErrInvalidArgument] for a tensor that shares the memory of a lent tensor:
// Clone it first. Keep fails with [ErrNotCapturable] for a tensor that was made in a capture, in
// memory that other graphs write.
func (x *Exec) Keep(t *Tensor) *Tensor {
	x.checkThread("Exec.Keep")
	x.open("Exec.Keep", t)
	if g := x.capture(); g != nil && g.pool.shared() && !g.alone && t.owner == x.s {
		x.Fail("Exec.Keep", refuse("Exec.Keep", ErrNotCapturable,
			"the tensor lies in memory that other graphs of the pool use, and write: make it before the capture, or in a warm-up run"))
	}
	if len(x.s.lent) > 0 {
		if l, ok := x.s.lent[t.info().Storage]; ok {
			x.Fail("Exec.Keep", refuse("Exec.Keep", ErrInvalidArgument,
				"the tensor shares the memory of %v, which is refilled: Clone it first", l.whose))
		}
	}
	return x.keep(t)
}

// keep is Keep without the checks for lent memory and for memory of a graph.
func (x *Exec) keep(t *Tensor) *Tensor {
	if t.owner != nil {
		if t.owner != x.s {
			x.s.fail(refuse("Exec.Keep", ErrMisuse, "the tensor belongs to another Do"))
		}
		t.owner = nil
		t.cleanup = runtime.AddCleanup(t, freeTensor, t.h)
	}
	return t
}

// adopt makes x's Do the owner of a tensor that was kept.
func (x *Exec) adopt(t *Tensor) {
	if t.owner != nil {
		return // x's Do owns t already
	}
	t.cleanup.Stop()
	t.owner = x.s
	x.s.tensors = append(x.s.tensors, t)
}

// Lend returns a second handle of t. The Do frees this handle at its end. Keep refuses the handle
// and every tensor that shares its memory. Keep's error then says who owns the memory: `whose`,
// for example "batch 12 of epoch 3".
func (x *Exec) Lend(t *Tensor, whose string) *Tensor {
	x.checkThread("Exec.Lend")
	x.open("Exec.Lend", t)
	y := x.s.own(ct.TensorLend(t.h)) //edge:lent-skip-go TestCheckStreams_FindsMistakes checked
	runtime.KeepAlive(t)
	if x.s.lent == nil {
		x.s.lent = map[uint64]loan{}
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

// Alias returns a second handle of t. The Do owns the second handle.
func (x *Exec) Alias(t *Tensor) *Tensor {
	x.checkThread("Exec.Alias")
	x.open("Exec.Alias", t)
	defer runtime.KeepAlive(t)
	return x.s.own(ct.TensorAlias(t.h))
}

// Tidy runs fn and returns fn's result, which may be nil. When fn returns, Tidy frees all other
// tensors that fn made, except tensors that fn kept.
func (x *Exec) Tidy(fn func() *Tensor) *Tensor {
	x.checkThread("Exec.Tidy")
	var t *Tensor
	x.tidy(func() []*Tensor {
		t = fn()
		return []*Tensor{t}
	})
	return t
}

// tidy is Tidy for a function with several results.
func (x *Exec) tidy(fn func() []*Tensor) (ts []*Tensor) {
	before := x.s.tensors
	x.s.tensors = before[len(before):] // an empty list, in the unused part of the array of `before`
	defer func() {
		if inner := cap(x.s.tensors); inner > cap(before)-len(before) { // fn made more tensors than the array has room for
			before = slices.Grow(before, inner) // so that the next Tidy finds room
		}
		x.s.tensors = append(before, x.s.tensors...)
	}()
	ts = fn()
	x.s.free(ts...)
	return ts
}

// open fails if t is nil or closed.
func (x *Exec) open(op string, t *Tensor) {
	switch {
	case t == nil:
		x.s.fail(refuse(op, ErrInvalidArgument, "the tensor is nil; %s", setTensor))
	case t.h == nil:
		x.s.fail(refuse(op, ErrClosed,
			"the tensor is closed: it was closed by the program, or freed when the Do that made it returned (Keep it there)"))
	}
}
