package cgotorch

import (
	"bytes"
	"errors"
	"iter"
	"runtime"
	"runtime/cgo"
	"strconv"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Recompute returns fn(x, in). The autograd graph keeps in, and none of the tensors between in
// and the result. [Exec.Backward] calls fn again for the tensors that it needs, and frees them.
// A training step then needs less memory and one more forward of fn. Losses, gradients and
// buffers are those of the plain call, to the bit, where the operators of fn are deterministic.
//
// fn is called twice and must compute the same both times, from its argument and from leaves
// such as parameters, whose gradients accumulate. A tensor with an autograd graph of its own
// must be the argument. fn must not write its argument: its first operator must not be in
// place. Tensors that fn makes are freed when it returns, except its result. fn may call
// Recompute. Without gradients Recompute only calls fn.
//
// The first call is without gradients. The second call has an Exec of its own over the same
// [Stream], with x's autocast, and draws the random numbers of the first. [Exec.Recomputing] is
// true there, so that fn changes buffers only once. [Exec.AtEnd] fails there. The second call
// runs in the Do of the Backward, on any goroutine and thread of LibTorch's backward. fn must
// use the Exec that it is given, and not x.
//
// An error, a panic or Goexit in the second call is that of the Backward. Random numbers come
// from the device's one generator. The Backward fails if another stream draws from it during
// fn, because fn's numbers are then unknown. [Exec.Gradients] cannot go through a Recompute.
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
		version, before := in.Version(), r.generators(x, op)
		y := fn(x.NoGrad(), in)
		x.open(op, y)
		x.open(op, in)
		if in.Version() != version {
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

// Recomputing reports whether x belongs to the second call of a function given to
// [Exec.Recompute]. A module that changes memory of its own in Forward, such as running
// statistics, must not change it again then.
func (x *Exec) Recomputing() bool { return x.from != nil }

// A recomputation is the state that backward needs to call a function again. The autograd graph
// holds it, by a cgo.Handle.
type recomputation struct {
	fn       func(x *Exec, in *Tensor) *Tensor
	stream   *Stream
	graph    *graphWork // of x's work, or nil
	native   *ct.Stream // the CUDA graph's own, in place of stream
	autocast int32
	draws    []draws
	lent     string    // the owner of in, as of Exec.Lend
	from     []uintptr // the callers of Recompute
}

// generator is the default generator of a device.
type generator struct {
	device Device
	state  []byte
}

// draws are the random numbers of the first call: a generator's state before and after it.
type draws struct {
	generator
	after []byte
}

// generators returns the generators that fn can draw from.
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

// record gives y its place in the autograd graph.
func (r *recomputation) record(x *Exec, op string, in, y *Tensor) *Tensor {
	var out *ct.Tensor
	defer runtime.KeepAlive([2]*Tensor{in, y})
	if r.stream.device.IsCUDA() {
		onCUDA.Add(1) // until it is released
	}
	x.must(op, ct.Recompute(x.c, uint64(cgo.NewHandle(r)), in.h, y.h, &out), in, y)
	return x.s.own(out)
}

func init() {
	ct.Function.Run, ct.Function.Release = runAgain, releaseFunction
}

// runAgain is the function of a token, called for a backward. It returns 0, or the number of an
// outcome.
func runAgain(token uint64, in *ct.Tensor, out **ct.Tensor) uint64 {
	y, end := cgo.Handle(token).Value().(*recomputation).again(in)
	if end != (outcome{}) {
		return uint64(cgo.NewHandle(end))
	}
	*out = y
	return 0
}

func releaseFunction(number uint64) {
	h := cgo.Handle(number)
	if r, ok := h.Value().(*recomputation); ok && r.stream.device.IsCUDA() {
		onCUDA.Add(-1)
	}
	h.Delete()
}

// again calls the function on the calling thread, in a scope of its own. It returns a handle of
// the result if the function has returned without a failure.
func (r *recomputation) again(in *ct.Tensor) (result *ct.Tensor, end outcome) {
	h, done, err := r.on()
	if err != nil {
		freeTensor(in)
		return nil, outcome{err: err}
	}
	defer done()
	s := &scope{stream: r.stream, thread: ct.ThreadID()}
	// A Do inside this scope is an error and no deadlock, on a thread of LibTorch's too.
	if _, known := workers.LoadOrStore(s.thread, &worker{stream: r.stream, scope: s}); !known {
		defer workers.Delete(s.thread)
	}
	x := newExec(s, r.stream, h)
	x.work, x.from, x.c.Autocast = r.graph, r.from, r.autocast
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
	if errors.As(end.err, &e) && e.Caller == "" { // only the first call's line led there
		e.Caller = callerIn(r.from, ownFrame)
	}
	return result, end
}

// callers returns the frames that led to the calling function.
func (x *Exec) callers() []uintptr {
	pcs := make([]uintptr, 64)
	return append(pcs[:runtime.Callers(2, pcs)], x.from...)
}

// on returns the stream for the second call. done is called after that call.
func (r *recomputation) on() (h *ct.Stream, done func(), err error) {
	const op = "Exec.Recompute"
	switch {
	case captureOn(r.stream.device) != nil && captureOn(r.stream.device) != r.graph: // no other Backward is under way then
		return nil, nil, r.refuse(ErrNotCapturable, "a Backward in a capture of what was called outside of it")
	case r.graph == nil || r.graph.eager:
		h, err = r.stream.use(op)
		return h, r.stream.unuse, err
	case r.graph.ended:
		return nil, nil, r.refuse(ErrInvalidArgument, "a Backward outside the captured function that it was called in")
	}
	return r.native, func() {}, nil
}

// refuse is the function refuse, with the caller of Recompute.
func (r *recomputation) refuse(kind error, format string, args ...any) *Error {
	e := refuse("Exec.Recompute", kind, format, args...)
	e.Caller = callerIn(r.from, ownFrame)
	return e
}

// captureOn returns the capture under way on the device, or nil.
func captureOn(d Device) *graphWork {
	w, _ := capturesNow.Load(d)
	work, _ := w.(*graphWork)
	return work
}

// onCUDA counts the nodes of autograd graphs that call functions again on a CUDA device.
var onCUDA atomic.Int64

// holdCaptures keeps captures off during a backward that may call functions again. See Note
// [Captures take turns] in csrc/graph/capture.h.
func (x *Exec) holdCaptures(op string) (release func()) {
	if !x.Device().IsCUDA() || x.Capturing() || x.from != nil || onCUDA.Load() == 0 {
		return func() {}
	}
	d := x.Device().c()
	x.must(op, ct.CapturesHold(d))
	return func() { ct.CapturesRelease(d) }
}

// generatorState returns the state of the device's generator. In a capture it is the count of
// numbers that the graph has drawn.
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

// drawAgain calls fn with the generators as before the first call, and puts them back.
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
		// fn drew nothing: another stream alone drew during the first call.
		if !bytes.Equal(now, d.after) && !bytes.Equal(now, d.state) {
			return r.refuse(ErrInvalidArgument, "the function drew other random numbers than the first time: "+
				"it decided otherwise, or another stream drew from the generator of %v meanwhile", d.device)
		}
	}
	return nil
}

// callContained calls fn, which must not panic, on the calling thread. A Goexit in fn must not
// go on into C++, so it ends here: the coroutine turns it into a panic, which is recovered.
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

// differentiated ends a call that ran a backward from roots. Where a function that was called
// again did not return, the call ends as that function ended.
func (x *Exec) differentiated(op string, status *ct.Status, roots []*Tensor) {
	if status != nil {
		x.joinUsed(op)
	}
	cause := ct.StatusCause(status)
	if cause == 0 {
		x.must(op, status, roots...)
		return
	}
	end := cgo.Handle(cause).Value().(outcome)
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
