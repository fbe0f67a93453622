package cgotorch

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// CaptureOptions are the options of [Stream.Capture]. The zero value is a graph with memory of
// its own and no warm-up.
type CaptureOptions struct {
	// pool is memory shared with other graphs. Their launches then run one after another on the
	// device. nil gives the graph a pool of its own.
	pool *graphPool
	// WarmUp is the number of runs of the function before its capture. Their effects stay. The
	// first use of cuDNN or cuBLAS on a thread cannot be captured, so fn needs a warm-up run for
	// it. With at least one, more follow while a Choice in fn is undecided. With none, every Choice
	// in fn is serial.
	WarmUp int
}

// Capture runs fn and turns the work that fn enqueues into a graph. The work runs at
// [Graph.Launch] and not before. Capture waits for captures of other goroutines on the device.
// It waits for the device only where a warm-up run does. The caller must Close the graph.
//
// The work is captured on a stream of the library's own, on one thread. It may fork to other
// streams and must be joined again: [Exec.On], [Exec.Record], [Exec.Wait]. The host's own work
// in fn happens once. Work of the host for each launch goes into [Exec.EachLaunch].
//
// Tensors made in fn are memory of the graph: those that fn keeps hold the result of the last
// launch. Random numbers can be drawn. Those of a launch follow the device's generator, as if
// the work ran at the launch. Operators on other streams that draw random numbers wait until
// the capture has ended.
//
// Capture fails with [ErrNotCapturable], naming the operator and its line, for work that waits
// for the device or needs a value on the host. Events from outside fail in the same way, and a
// capture in a capture.
//
// On the CPU nothing is captured, and each launch runs fn (see [Graph.Eager]). Tensors that fn
// keeps are then new at each launch. A function for both devices writes its results into
// tensors made before.
func (s *Stream) Capture(fn func(x *Exec) error, o CaptureOptions) (*Graph, error) {
	var g *Graph
	err := s.Do(func(x *Exec) error {
		var err error
		g, err = x.Capture(fn, o)
		return err
	})
	return g, located(err)
}

// located fills in the caller of an error whose failed call the library made for the program.
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
		return refuse(op, ErrInvalidArgument, "the function is nil")
	case x.hook:
		return refuse(op, ErrNotCapturable, "a capture inside a function given to EachLaunch")
	case x.work != nil:
		return refuse(op, ErrNotCapturable, "a capture inside a captured function")
	case x.from != nil:
		return refuse(op, ErrNotCapturable, "a capture inside a backward, in a function given to Recompute")
	}
	return nil
}

func (x *Exec) captureInto(pool *graphPool, fn func(x *Exec) error, o CaptureOptions) (*Graph, error) {
	pool.lock("Exec.Capture", x)
	defer pool.unlock()
	if err := pool.usable("Exec.Capture", x); err != nil {
		return nil, err
	}
	for i, undecided := 0, o.WarmUp > 0; i < o.WarmUp || undecided && i < o.WarmUp+maxTrials; i++ {
		var err error
		if undecided, err = pool.warmUp(x, fn, true); err != nil {
			return nil, err
		}
	}
	return pool.capture(x, fn, nil, false)
}

// Capturing reports whether x's work becomes part of a graph and is not run.
func (x *Exec) Capturing() bool { return x.capture() != nil }

// capture returns the capture that x's work is part of, or nil.
func (x *Exec) capture() *graphWork {
	if g := x.work; g != nil && g.capturing && x.c.Stream != g.outside {
		return g
	}
	return nil
}

// Uncaptured returns an Exec over the same scope whose work runs at once and is no part of the
// graph. In a captured function its stream is the stream that the capture was asked for on.
// Outside a capture it returns x.
//
// It is for memory that [Exec.EachLaunch] writes before launches. Such memory must not be the
// graph's, because other work of the graph would write there too. It cannot draw random
// numbers.
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

// EachLaunch calls fn before each launch of the graph, with an Exec of the stream of the
// launch. Where x's work is not captured, EachLaunch calls fn at once, with x.
//
// It is for work of the host at each step, such as a count of steps. Another example is a new
// learning rate, which fn writes into a tensor that the graph reads. Such a tensor must be made
// with [Exec.Uncaptured]. fn's Exec has the modes of the Launch, and cannot capture or launch
// graphs. The effects of fn stay where the launch fails afterwards.
func (x *Exec) EachLaunch(fn func(x *Exec)) {
	x.checkThread("Exec.EachLaunch")
	if g := x.capture(); g != nil {
		g.hooks = append(g.hooks, fn)
		return
	}
	fn(x)
}

// DependsOn names a value of the host that a captured function has used. changed is called
// before each launch. It returns "", or a text for the value that has changed, as in "the
// momentum has changed". The graph can then not be launched any more. Outside a capture
// DependsOn does nothing.
func (x *Exec) DependsOn(changed func() string) {
	x.checkThread("Exec.DependsOn")
	if g := x.capture(); g != nil {
		g.depends = append(g.depends, changed)
	}
}

// poolHandle returns the pool that the work's memory comes from; NULL for none.
func (g *graphWork) poolHandle() *ct.GraphPool {
	if g == nil {
		return nil
	}
	return g.pool.h
}

// graphWork marks a scope's work as captured, as a warm-up run of a capture, or as a launch of
// an eager graph.
type graphWork struct {
	pool      *graphPool
	eager     bool // on the CPU
	capturing bool
	alone     bool // the pool has no other graph
	undecided bool // a Choice is undecided
	parallel  bool // a Choice was parallel
	serial    bool // every Choice is serial, without being asked
	ended     bool
	h         *ct.Graph           // under capture; nil before and after
	outside   *ct.Stream          // of the Exec that asked for the capture
	forked    map[*ct.Stream]bool // streams with work of the graph
	hooks     []func(x *Exec)
	depends   []func() string
}
