package cgotorch

import (
	"bytes"
	"errors"
	"iter"
	"runtime"
	"strconv"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/place"
)

// Recompute returns fn(x, `in`) and reduces the memory that is kept for backward. The autograd
// graph keeps the input `in`, but no tensor that fn makes between its input and its result.
// [Exec.Backward] calls fn a second time to make the tensors that it needs, and then frees them.
// So a training step needs less memory, but it runs the forward of fn twice. If the operators of
// fn are deterministic, then losses, gradients and buffers have the same bits as without
// Recompute.
//
// fn must compute the same result in both calls. It may use its argument, and also leaf tensors
// such as parameters. These leaf tensors accumulate gradients. If fn uses a tensor that has an
// autograd graph of its own, this tensor must be the argument of fn. fn must not write its
// argument, so its first operator must not be in place. Tensors that fn makes are freed when fn
// returns, except its result. fn may call Recompute. If x does not record operators for backward,
// Recompute only calls fn.
//
// The first call of fn records nothing for backward. The second call gets a new Exec on the same
// [Stream], with x's autocast. It draws the same random numbers as the first call. In the second
// call [Exec.Recomputing] is true, so that fn can change buffers in the first call only.
// [Exec.AtEnd] fails in the second call. The second call runs in the Do of the Backward, on any
// goroutine and any thread of LibTorch's backward. So fn must use the Exec that it is given, and
// not x.
//
// The gradients have the bits of a step without Recompute, with one exception: if a leaf has
// several readers, the parts of its gradient may be added in another order.
//
// If the second call fails, panics or calls Goexit, the Backward ends in the same way. A device
// has one generator of random numbers. If another stream draws from this generator during fn, the
// numbers of fn are unknown, and the Backward fails. [Exec.Gradients] cannot go through a
// Recompute.
func (x *Exec) Recompute(in *Tensor, fn func(x *Exec, in *Tensor) *Tensor) *Tensor {
	const op = "Exec.Recompute"
	x.checkThread(op)
	x.open(op, in)
	if !x.GradEnabled() {
		return fn(x, in)
	}
	r := &recomputation{fn: fn, stream: x.stream, graph: x.work, native: x.c.Stream, autocast: x.c.Autocast, from: x.callers()}
	r.lent = x.s.lent[in.info().Storage].whose
	return x.Tidy(func() *Tensor {
		version, before := in.info().Version, r.generators(x, op)
		y := fn(x.NoGrad(), in)
		x.open(op, y)
		x.open(op, in)
		if in.info().Version != version {
			x.Fail(op, refuse(op, ErrInvalidArgument,
				"the function has written its input, from which it is to be computed again: its first operator must not be in place"))
		}
		for i, after := range r.generators(x, op) {
			if !bytes.Equal(before[i].state, after.state) {
				r.draws = append(r.draws, draws{before[i], after.state})
			}
		}
		return r.record(x, op, in, y)
	})
}

// A recomputation is the state that a backward needs to call a function again. The autograd graph
// holds the recomputation by a ct.Handle.
type recomputation struct {
	fn       func(x *Exec, in *Tensor) *Tensor
	stream   *Stream
	graph    *graphWork // x.work of the first call, or nil
	native   *ct.Stream // the stream of the first call; in a capture the graph's own stream
	autocast int32
	draws    []draws
	lent     string  // the owner of the input's memory, as given to Exec.Lend; or ""
	from     forward // the frames that called Recompute
}

// generator is the default generator of a device.
type generator struct {
	device Device
	state  []byte
}

// draws describes the random numbers that the first call took from a generator. It has the states
// of the generator before and after the call.
type draws struct {
	generator
	after []byte
}

// generators returns the generators that fn can draw from, with their present states.
func (r *recomputation) generators(x *Exec, op string) []generator {
	gs := []generator{{device: CPU}}
	if x.Device().IsCUDA() {
		gs = append(gs, generator{device: x.Device()})
	}
	for i := range gs {
		var err error
		if gs[i].state, err = r.generatorState(gs[i].device); err != nil {
			x.Fail(op, err)
		}
	}
	return gs
}

// record returns y as the result of a node in the autograd graph. The node calls fn again in a
// backward.
func (r *recomputation) record(x *Exec, op string, in, y *Tensor) *Tensor {
	var out *ct.Tensor
	defer runtime.KeepAlive([2]*Tensor{in, y})
	x.must(op, ct.Recompute(x.c, r, in.h, y.h, &out), in, y)
	return x.s.own(out)
}

// Run calls the function for the second time. The core calls it in a backward. It returns 0 if the
// function succeeds, and otherwise the ct.Handle of an outcome.
func (r *recomputation) Run(in *ct.Tensor, out **ct.Tensor) uint64 {
	y, end := r.again(in)
	if end != (outcome{}) {
		return uint64(ct.NewHandle(end))
	}
	*out = y
	return 0
}

// again calls the function on the calling thread, in a scope of its own. If the function returns
// without a failure, `result` is a handle of its result. Otherwise `result` is nil.
func (r *recomputation) again(in *ct.Tensor) (result *ct.Tensor, end outcome) {
	h, done, err := r.on()
	if err != nil {
		freeTensor(in)
		return nil, outcome{err: err}
	}
	defer done()
	s := &scope{stream: r.stream, thread: ct.ThreadID()}
	if check := checkOf(0); check != nil { // observers of the stream follow its own Dos alone
		s.observers = []observer{check}
	}
	// A Do inside this scope would deadlock, so it must fail. A Do fails if the map `workers` has the
	// number of its thread. A thread of LibTorch can be missing in this map, so it is added here.
	if _, known := workers.LoadOrStore(s.thread, &worker{stream: r.stream, scope: s}); !known {
		defer workers.Delete(s.thread)
	}
	x := newExec(s, r.stream, h)
	x.work, x.c.Autocast = r.graph, r.autocast
	x.setForward(r.from)
	callContained(func() {
		s.run(&end, func() error {
			t := s.own(in)
			if r.lent != "" {
				s.lent = map[uint64]loan{t.info().Storage: {whose: r.lent}}
			}
			return r.drawAgain(func() error {
				y := r.fn(x, t)
				x.open("Exec.Recompute", y)
				result = ct.TensorAlias(y.h)
				return nil
			})
		})
	})
	if end != (outcome{}) {
		ct.TensorFree(result)
		result = nil
	}
	var e *Error
	if errors.As(end.err, &e) && e.Caller == "" { // no frame of the second call belongs to the program
		e.Caller = place.In(r.from, place.Own)
	}
	return result, end
}

// callers returns the stack of its caller, followed by that of the forward around it.
func (x *Exec) callers() []uintptr {
	pcs := make([]uintptr, 64)
	return append(pcs[:runtime.Callers(2, pcs)], x.forward()...)
}

// on returns the stream for the second call. The caller calls `done` after the second call.
func (r *recomputation) on() (h *ct.Stream, done func(), err error) {
	const op = "Exec.Recompute"
	switch underWay := r.stream.device.state().capture.Load(); {
	case underWay != nil && underWay != r.graph: // this Backward is part of the capture, because a capture waits until all other Backwards end
		return nil, nil, r.refuse(ErrNotCapturable, "a Backward in a capture of what was called outside of it")
	case r.graph == nil || r.graph.eager:
		h, err = r.stream.use(op)
		return h, r.stream.unuse, err
	case r.graph.ended:
		return nil, nil, r.refuse(ErrInvalidArgument, "a Backward outside the captured function that it was called in")
	}
	return r.native, func() {}, nil
}

// refuse does the same as the function `refuse`, but the error's Caller is the line that called
// Recompute.
func (r *recomputation) refuse(kind error, format string, args ...any) *Error {
	e := refuse("Exec.Recompute", kind, format, args...)
	e.Caller = place.In(r.from, place.Own)
	return e
}

// holdCaptures makes captures wait until the function `release` is called, if the backward may
// call functions again. See Note [Captures take turns] in csrc/graph/capture.h.
func (x *Exec) holdCaptures(op string) (release func()) {
	if !x.Device().IsCUDA() || x.Capturing() || x.Recomputing() {
		return func() {}
	}
	var live ct.Live
	if ct.LiveHandles(&live); live.Functions == 0 {
		return func() {}
	}
	d := x.Device().c()
	x.must(op, ct.CapturesHold(d))
	return func() { ct.CapturesRelease(d) }
}

// generatorState returns the state of the device's generator. In a capture the state is the count
// of random numbers that the graph has drawn so far.
func (r *recomputation) generatorState(d Device) ([]byte, error) {
	if r.graph == nil || !r.graph.capturing || !d.IsCUDA() {
		return GeneratorState(d)
	}
	var drawn uint64
	if err := check("Exec.Recompute", ct.GraphDrawn(r.graph.h, &drawn)); err != nil {
		return nil, err
	}
	return strconv.AppendUint(nil, drawn, 10), nil
}

func (r *recomputation) setGeneratorState(d Device, state []byte) error {
	if r.graph == nil || !r.graph.capturing || !d.IsCUDA() {
		return SetGeneratorState(d, state)
	}
	drawn, err := strconv.ParseUint(string(state), 10, 64)
	if err != nil {
		return err
	}
	return check("Exec.Recompute", ct.GraphSetDrawn(r.graph.h, drawn))
}

// drawAgain calls fn with the generators in the states that they had before the first call.
// Afterwards it restores the states from before drawAgain.
func (r *recomputation) drawAgain(fn func() error) error {
	for _, d := range r.draws {
		now, err := r.generatorState(d.device)
		if err == nil {
			err = r.setGeneratorState(d.device, d.state)
		}
		if err != nil {
			return err
		}
		defer r.setGeneratorState(d.device, now)
	}
	if err := fn(); err != nil {
		return err
	}
	for _, d := range r.draws {
		now, err := r.generatorState(d.device)
		if err != nil {
			return err
		}
		// If `now` equals d.state, fn has drawn nothing in the second call. Then fn drew nothing in the
		// first call either, and only another stream drew. This is no failure.
		if !bytes.Equal(now, d.after) && !bytes.Equal(now, d.state) {
			return r.refuse(ErrInvalidArgument, "the function drew other random numbers than the first time: "+
				"it decided otherwise, or another stream drew from the generator of %v meanwhile", d.device)
		}
	}
	return nil
}

// callContained calls fn on the calling thread. fn must not panic. A Goexit in fn ends here,
// because it must not unwind through C++. The coroutine of iter.Pull turns the Goexit into a
// panic, and callContained recovers this panic.
func callContained(fn func()) {
	next, _ := iter.Pull(func(func(struct{}) bool) {
		returned := false
		defer func() {
			if !returned {
				panic(errExited)
			}
		}()
		fn()
		returned = true
	})
	defer func() {
		if r := recover(); r != nil && r != errExited {
			panic(r)
		}
	}()
	next()
}

var errExited = errors.New("runtime.Goexit in a function that was called again")

// differentiated handles the status of a call that ran a backward from the tensors in `roots`. If a
// function that the backward called again has failed, panicked or called Goexit, `differentiated`
// does the same.
func (x *Exec) differentiated(op string, status *ct.Status, roots []*Tensor) {
	if status != nil {
		x.joinUsed(op)
	}
	cause := ct.StatusCause(status)
	if cause == 0 {
		x.must(op, status, roots...)
		return
	}
	end := ct.Handle(cause).Value().(outcome)
	e := statusError(op, status)
	e.Shapes = describeTensors(roots)
	switch {
	case end.exited:
		runtime.Goexit()
	case end.panicked != nil:
		panic(end.panicked)
	}
	var of *Error
	if e.Kind, e.Err = nil, end.err; errors.As(end.err, &of) {
		e.Kind = of.Kind
	}
	x.s.fail(e)
}
