package cgotorch

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// CaptureOptions are the options of [Stream.Capture]; the zero value is a graph with memory of its own and no rehearsal.
type CaptureOptions struct {
	pool      *graphPool // memory shared with other graphs, whose launches are then ordered one after another on the device; nil for the graph's own
	Rehearsal int        // times that the function is run before it is captured; what it does is done as often. The first use of cuDNN or cuBLAS on a thread cannot be captured: where fn is that, it needs one. With one at least there are as many more as a Choice in fn takes to be made; with none it keeps to the plain way
}

// Capture runs fn and turns the work that it enqueues into a graph, which is not run before [Graph.Launch]; the caller must Close it.
// It waits for captures of other goroutines on the device, and not for the device unless a rehearsal does.
//
// The work is captured on a stream of the library's own, on one thread, from where it may fork to other streams and must be joined
// again: [Exec.On], [Exec.Record], [Exec.Wait]. What the host does in fn happens once; what it is to do at each launch goes into
// [Exec.EachLaunch]. Tensors made in fn are memory of the graph: those that fn keeps hold the result of the last launch. In a pool where there are
// graphs already nothing can be kept.
//
// Work that waits for the device or needs a value on the host cannot be captured, and makes Capture fail with [ErrNotCapturable], naming
// the operator and its line; so do events from outside, and a capture in a capture. Random numbers can be drawn: those of a launch follow what the
// device's generator gave before it, as if the work were run there. Operators on other streams that draw some wait until the capture has ended.
//
// On the CPU there are no graphs: nothing is captured, and each launch runs fn (see [Graph.Eager]). What it keeps is then new at each
// launch: a function that is to run on both writes its results into tensors made before.
func (s *Stream) Capture(fn func(x *Exec) error, o CaptureOptions) (*Graph, error) {
	var g *Graph
	err := s.Do(func(x *Exec) error {
		var err error
		g, err = x.Capture(fn, o)
		return err
	})
	return g, located(err)
}

// located is err with the place of the caller where the failed call was made by the library for it.
func located(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Caller == "" {
		e.Caller = caller()
	}
	return err
}

// Capture is [Stream.Capture] inside a Do.
func (x *Exec) Capture(fn func(x *Exec) error, o CaptureOptions) (*Graph, error) {
	const op = "Exec.Capture"
	if err := x.beginsCapture(op, fn); err != nil {
		return nil, err
	}
	pool := o.pool
	if pool == nil {
		var err error
		if pool, err = newGraphPool(x.Device()); err != nil {
			return nil, err
		}
	}
	var g *Graph
	defer func() {
		if g == nil && o.pool == nil { // also when fn panics
			pool.Close()
		}
	}()
	g, err := x.captureInto(pool, fn, o)
	if err != nil {
		return nil, err
	}
	g.ownPool = o.pool == nil
	return g, nil
}

// beginsCapture fails where x's work cannot be captured at all.
func (x *Exec) beginsCapture(op string, fn func(x *Exec) error) error {
	x.checkThread(op)
	switch {
	case fn == nil:
		return &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Message: "the function is nil"}
	case x.hook:
		return &Error{Op: op, Kind: ErrNotCapturable, Caller: caller(), Message: "a capture inside a function given to EachLaunch"}
	case x.work != nil:
		return &Error{Op: op, Kind: ErrNotCapturable, Caller: caller(), Message: "a capture inside a captured function"}
	case x.from != nil:
		return &Error{Op: op, Kind: ErrNotCapturable, Caller: caller(), Message: "a capture inside a backward, in a function given to Recompute"}
	}
	return nil
}

func (x *Exec) captureInto(pool *graphPool, fn func(x *Exec) error, o CaptureOptions) (*Graph, error) {
	pool.lock("Exec.Capture", x)
	defer pool.unlock()
	if err := pool.usable("Exec.Capture", x); err != nil {
		return nil, err
	}
	for i, undecided := 0, o.Rehearsal > 0; i < o.Rehearsal || undecided && i < o.Rehearsal+maxTrials; i++ {
		var err error
		if undecided, err = pool.rehearse(x, fn, true); err != nil {
			return nil, err
		}
	}
	return pool.capture(x, fn, nil, false)
}

// Capturing reports whether x's work becomes part of a graph and is not run.
func (x *Exec) Capturing() bool { return x.capture() != nil }

// capture is the capture that x's work is part of, or nil.
func (x *Exec) capture() *graphWork {
	if g := x.work; g != nil && g.capturing && x.c.Stream != g.outside {
		return g
	}
	return nil
}

// Uncaptured returns an Exec over the same scope whose work is run, in a captured function, and no part of the graph: on the stream that the
// capture was asked for. It is for memory that is written before launches, by [Exec.EachLaunch], which must not be the graph's: what else
// the graph does would write there too. It cannot draw random numbers. Outside a capture it returns x.
func (x *Exec) Uncaptured() *Exec {
	x.checkThread("Exec.Uncaptured")
	g := x.capture()
	if g == nil {
		return x
	}
	y := *x
	y.c.Stream = g.outside
	return &y
}

// EachLaunch calls fn with x or, where x's work is captured, before each launch of the graph instead, with an Exec of the stream that it
// is launched on. It is for what the host does at each step: to count steps, or to write a new learning rate into the tensor that the graph
// reads, which is to be made with [Exec.Uncaptured]. Its Exec has the modes of the Launch, and cannot capture or launch graphs. Where
// the launch fails afterwards, what fn has done stays done.
func (x *Exec) EachLaunch(fn func(x *Exec)) {
	x.checkThread("Exec.EachLaunch")
	if g := x.capture(); g != nil {
		g.hooks = append(g.hooks, fn)
		return
	}
	fn(x)
}

// DependsOn says what values of the host a captured function has used: changed is asked before each launch, and returns "" or what has
// changed since, as in "the momentum has changed", after which the graph cannot be launched any more. Outside a capture it does nothing.
func (x *Exec) DependsOn(changed func() string) {
	x.checkThread("Exec.DependsOn")
	if g := x.capture(); g != nil {
		g.depends = append(g.depends, changed)
	}
}

// poolHandle is where its memory comes from; NULL for none.
func (g *graphWork) poolHandle() *ct.GraphPool {
	if g == nil {
		return nil
	}
	return g.pool.h
}

// graphWork is what a scope's operators are for, whose work is captured, is the rehearsal of a capture, or what a graph does without one.
type graphWork struct {
	pool      *graphPool
	eager     bool // on the CPU
	capturing bool
	alone     bool // there is no other graph in the pool
	undecided bool // a Choice has not been made
	beside    bool // one was for the second way
	plain     bool // none is asked: the first way
	ended     bool
	h         *ct.Graph           // that is captured; nil before and after
	outside   *ct.Stream          // for which it is captured
	forked    map[*ct.Stream]bool // those whose work becomes part of the graph
	hooks     []func(x *Exec)
	depends   []func() string
}
