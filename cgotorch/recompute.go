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

// Recompute returns fn(x, in) and lets the graph keep no more of it than in: [Exec.Backward] calls fn again for the tensors that
// it needs, and frees them. What is kept, and the memory of a training step, is less; the step takes one more forward of fn.
// Losses, gradients and buffers are those of the plain call, to the bit, where the operators of fn are deterministic.
//
// fn is called twice and must compute the same both times, from in and from leaves such as parameters, whose gradients accumulate;
// a tensor with a graph of its own must be in. Tensors that fn makes are freed when it returns, but its result. The first call is
// without gradients. The second has an Exec of its own over the same [Stream], with x's autocast, and the random numbers of the
// first. There [Exec.Recomputing] is true, so that what fn writes beside its result is written once, and [Exec.AtEnd] fails. fn runs
// in the Do of the Backward then, on whatever goroutine and thread LibTorch's backward comes from: it must use the Exec that it is given,
// and not x. It must not write in: a first operator in place is an error.
//
// An error, a panic or Goexit in the second call is that of the Backward. Random numbers come from the device's one generator: if
// another stream draws from it while fn does, so that fn's cannot be told, the Backward fails. [Exec.Gradients] cannot go through
// a Recompute. Without gradients Recompute only calls fn. fn may call Recompute.
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
			x.Fail(op, &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(),
				Message: "the function has written its input, from which it is to be computed again: its first operator must not be in place"})
		}
		for i, after := range r.generators(x, op) {
			if !bytes.Equal(before[i].state, after.state) {
				r.draws = append(r.draws, draws{before[i], after.state})
			}
		}
		return r.record(x, op, in, y)
	})
}

// Recomputing reports whether x is that of a second call, by [Exec.Recompute]. A module that changes something of its own in Forward,
// such as running statistics, must not do so again then.
func (x *Exec) Recomputing() bool { return x.from != nil }

// A recomputation is what backward needs to call a function again. The graph holds it, by a cgo.Handle.
type recomputation struct {
	fn       func(x *Exec, in *Tensor) *Tensor
	stream   *Stream
	graph    *graphWork // that x's work was for, or nil
	native   *ct.Stream // the graph's, which stands in for stream
	autocast int32
	draws    []draws
	lent     string    // whose in is, as of Exec.Lend
	from     []uintptr // the callers of Recompute
}

// generator is the default generator of a device.
type generator struct {
	device Device
	state  []byte
}

// draws are the random numbers of the first call: a generator's state before, and after.
type draws struct {
	generator
	after []byte
}

// generators returns those that fn can draw from.
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

// record gives y its place in the graph.
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

// runAgain is the function of a token, called for a backward. It returns 0, or the number of an outcome.
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

// again calls the function, on the calling thread, in a scope of its own. It returns a handle of the result where the outcome is that
// of a function which has returned.
func (r *recomputation) again(in *ct.Tensor) (result *ct.Tensor, end outcome) {
	h, done, err := r.on()
	if err != nil {
		freeTensor(in)
		return nil, outcome{err: err}
	}
	defer done()
	s := &scope{stream: r.stream, thread: ct.ThreadID()}
	// On a thread of LibTorch's too a Do inside this one is an error and no deadlock.
	if _, known := workers.LoadOrStore(s.thread, &worker{stream: r.stream, scope: s}); !known {
		defer workers.Delete(s.thread)
	}
	x := newExec(s, r.stream, h)
	x.work, x.from, x.c.Autocast = r.graph, r.from, r.autocast
	callContained(func() {
		s.run(&end, func() error {
			t := s.own(in)
			if r.lent != "" {
				s.lent = map[uint64]lending{t.info().Storage: {whose: r.lent}}
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
	if errors.As(end.err, &e) && e.Caller == "" { // no line of the program led there but that of the first call
		e.Caller = callerIn(r.from, ownFrame)
	}
	return result, end
}

// callers are the frames that led here.
func (x *Exec) callers() []uintptr {
	pcs := make([]uintptr, 64)
	return append(pcs[:runtime.Callers(2, pcs)], x.from...)
}

// on is the stream for the second call; done is to be called after it.
func (r *recomputation) on() (h *ct.Stream, done func(), err error) {
	const op = "Exec.Recompute"
	switch {
	case captureOn(r.stream.device) != nil && captureOn(r.stream.device) != r.graph: // no other Backward is under way then
		return nil, nil, &Error{Op: op, Kind: ErrNotCapturable, Caller: callerIn(r.from, ownFrame), Message: "a Backward in a capture of what was called outside of it"}
	case r.graph == nil || r.graph.eager:
		h, err = r.stream.use(op)
		return h, r.stream.unuse, err
	case r.graph.ended:
		return nil, nil, &Error{Op: op, Kind: ErrInvalidArgument, Caller: callerIn(r.from, ownFrame), Message: "a Backward outside the captured function that it was called in"}
	}
	return r.native, func() {}, nil
}

// captureOn is the capture under way on the device, or nil.
func captureOn(d Device) *graphWork {
	w, _ := capturesNow.Load(d)
	work, _ := w.(*graphWork)
	return work
}

// onCUDA counts the nodes of autograd's graphs that call functions again on a CUDA device.
var onCUDA atomic.Int64

// holdCaptures keeps captures off while a backward runs that may call functions again; see Note [Captures take turns] in csrc/graph/capture.h.
func (x *Exec) holdCaptures(op string) (release func()) {
	if !x.Device().IsCUDA() || x.Capturing() || x.from != nil || onCUDA.Load() == 0 {
		return func() {}
	}
	d := x.Device().c()
	x.must(op, ct.CapturesHold(d))
	return func() { ct.CapturesRelease(d) }
}

// generatorState is that of the device's generator or, in a capture, how far the graph's own is.
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

// drawAgain calls fn with the generators as they were before the first call, and puts them back.
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
		// Where nothing was drawn, another stream alone drew during the first call.
		if !bytes.Equal(now, d.after) && !bytes.Equal(now, d.state) {
			return &Error{Op: "Exec.Recompute", Kind: ErrInvalidArgument, Caller: callerIn(r.from, ownFrame),
				Message: "the function drew other random numbers than the first time: it decided otherwise, or another stream drew from the generator of " +
					d.device.String() + " meanwhile"}
		}
	}
	return nil
}

// callContained calls fn, which must not panic, on the calling thread. A Goexit in it ends there, as it must not go on into C++: it
// becomes a panic of the coroutine's, which is recovered from.
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

// differentiated ends a call that ran a backward from roots: as the function ended, where one that was called again did not return.
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
