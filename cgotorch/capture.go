package cgotorch

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// Capture calls fn and records the work that fn enqueues as a graph. The recorded work does not
// run during Capture. It runs at each [Graph.Launch].
//
// Before the recording, Capture runs fn eagerly `warmUp` times. The effects of these warm-up runs
// stay. The first use of cuDNN or cuBLAS on a thread cannot be captured, so a function that uses
// them needs a warm-up run. Above 0, more warm-up runs follow while a [Choice] in the function is
// undecided. With 0, each undecided Choice runs its work serially.
//
// Capture waits for captures of other goroutines on the same device. It waits for the device
// before the first warm-up run, and where a warm-up run itself waits. The caller must Close the
// graph.
//
// The work is captured on one thread, on a stream of the library's own. fn may enqueue work on a
// side stream by [Exec.On]. The side stream must first wait for an event that fn has recorded.
// Before fn returns, the stream of fn's Exec must wait for the side stream: see [Exec.Record] and
// [Exec.Wait]. A launch does not repeat the work that fn does on the host. Host work for each
// launch belongs in [Exec.EachLaunch].
//
// Tensors that fn makes lie in memory of the graph. If fn keeps a tensor by [Exec.Keep], this
// tensor holds the result of the last launch. fn can draw random numbers. The random numbers of a
// launch come from the device's generator, as if the work ran eagerly at the time of the launch.
// During the capture, operators on other streams that draw random numbers wait until the capture
// has ended.
//
// Capture fails with [ErrNotCapturable] if fn waits for the device or needs a value on the host.
// The error names the operator and the line of the program. Capture also fails with
// ErrNotCapturable if fn waits for an event that was recorded outside the capture, or if fn
// begins another capture.
//
// On the CPU nothing is captured, and each launch runs fn. If fn keeps a tensor, each launch keeps
// a new tensor. So a function for the CPU and CUDA must write its results into tensors that were
// made before the capture.
func (s *Stream) Capture(fn func(x *Exec) error, warmUp int) (*Graph, error) {
	var g *Graph
	err := s.Do(func(x *Exec) error {
		var err error
		g, err = x.captureGraph(fn, warmUp)
		return err
	})
	if err != nil && g != nil { // the Do has failed after the capture
		err = errors.Join(err, g.Close())
		g = nil
	}
	return g, located(err)
}

// located fills in the field Caller of err if this field is empty. It is for errors of calls that
// the library made on behalf of the program.
func located(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Caller == "" {
		e.Caller = caller()
	}
	return err
}

// captureGraph is Stream.Capture inside its Do.
func (x *Exec) captureGraph(fn func(x *Exec) error, warmUp int) (*Graph, error) {
	const op = "Stream.Capture"
	if err := x.beginsCapture(op, fn); err != nil {
		return nil, err
	}
	pool, err := newGraphPool(x.Device())
	if err != nil {
		return nil, err
	}
	var g *Graph
	defer func() {
		if g == nil { // g is also nil if fn panics
			pool.Close(op)
		}
	}()
	if g, err = x.captureInto(pool, fn, warmUp); err != nil {
		return nil, err
	}
	g.ownPool = true
	return g, nil
}

// beginsCapture returns an error if no capture can begin with x.
func (x *Exec) beginsCapture(op string, fn func(x *Exec) error) error {
	x.checkThread(op)
	switch {
	case fn == nil:
		return refuse(op, ErrInvalidArgument, "the function is nil")
	case x.hooked():
		return refuse(op, ErrNotCapturable, "a capture inside a function given to EachLaunch")
	case x.work != nil:
		return refuse(op, ErrNotCapturable, "a capture inside a captured function")
	case x.Recomputing():
		return refuse(op, ErrNotCapturable, "a capture inside a backward, in a function given to Recompute")
	}
	return nil
}

func (x *Exec) captureInto(pool *graphPool, fn func(x *Exec) error, warmUp int) (*Graph, error) {
	pool.lock("Stream.Capture", x)
	defer pool.unlock()
	if err := pool.usable("Stream.Capture", x); err != nil {
		return nil, err
	}
	for i, undecided := 0, warmUp > 0; i < warmUp || undecided && i < warmUp+maxTrials; i++ {
		var err error
		if undecided, err = pool.warmUp(x, fn, true); err != nil {
			return nil, err
		}
	}
	return pool.capture(x, fn, nil, false)
}

// Capturing reports whether x's work becomes part of a graph. This work does not run until the
// graph is launched.
func (x *Exec) Capturing() bool { return x.capture() != nil }

// uncaptured returns an Exec of the same Do. The work of this Exec does not become part of the
// graph. In a captured function this work is enqueued at once, on the stream for which Capture or
// [Captured.Run] was called. It then cannot draw random numbers. Outside a capture it returns x.
func (x *Exec) uncaptured() *Exec {
	x.checkThread("Exec")
	g := x.capture()
	if g == nil {
		return x
	}
	y := *x
	y.c.Stream, y.values = g.outside, x.values.Within(seam.SameScope)
	return &y
}

// EachLaunch calls fn before each launch of the graph. The Exec of fn enqueues on the stream of
// the launch. If x's work is not captured, EachLaunch calls fn at once, with x.
//
// EachLaunch is for work of the host that each step repeats. An example is a count of steps.
// Another example is a learning rate that fn writes into a tensor, which the graph then reads. Make
// this tensor before the capture. Other work of the graph writes to the addresses of tensors that
// are made in the capture.
//
// fn's Exec has the modes of the Exec that launches. fn's Exec cannot capture or launch graphs.
// If the launch fails after fn has returned, the effects of fn stay.
func (x *Exec) EachLaunch(fn func(x *Exec)) {
	x.checkThread("Exec.EachLaunch")
	if g := x.capture(); g != nil {
		g.hooks = append(g.hooks, fn)
		return
	}
	fn(x)
}

// inHook is the value of an Exec given to a function of EachLaunch.
type inHook struct{}

func (x *Exec) hooked() bool {
	_, is := seam.Find[inHook](x.values)
	return is
}

// DependsOn tells a graph that the captured function has used a value of the host. The graph
// calls the function `changed` before each launch. If the value is the same as in the capture,
// `changed` must return "". Otherwise `changed` must return a text, such as "the momentum has
// changed". The launch then fails with [ErrStale]. Outside a capture DependsOn does nothing.
func (x *Exec) DependsOn(changed func() string) {
	x.checkThread("Exec.DependsOn")
	if g := x.capture(); g != nil {
		g.depends = append(g.depends, changed)
	}
}

// poolHandle returns the pool that the work's memory comes from. If g is nil, poolHandle returns
// nil, and the core then uses no pool.
func (g *graphWork) poolHandle() *ct.GraphPool {
	if g == nil {
		return nil
	}
	return g.pool.handle()
}
