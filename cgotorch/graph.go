package cgotorch

import (
	"runtime"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Graph is work that was captured once and is launched as a whole, for the cost of one kernel's launch: a CUDA graph. It reads and
// writes the memory that the captured function did; whatever of that was there before is to live as long as the Graph. It may be used
// from any goroutine.
type Graph struct {
	pool    *graphPool
	ownPool bool
	eager   bool
	hooks   []func(x *Exec)
	depends []func() string

	h       *ct.Graph // guarded by pool.mu
	beside  bool      // a Choice was for the second way
	updated bool      // it has taken over what an older graph had on the device
	closed  bool      // guarded by pool.mu
	cleanup runtime.Cleanup

	fn             func(x *Exec) error // of an eager graph; guarded by pool.mu
	grad, autocast int32               // the modes that it was captured in
}

// Eager reports whether a launch runs the function anew, as on the CPU, where nothing can be captured.
func (g *Graph) Eager() bool { return g.eager }

// Launch enqueues the graph's work on the stream, on any one of the graph's device, and does not wait but for a capture into the graph's
// pool: work of the stream runs before and behind it, launches of the same graph and of graphs in its pool one after another. It fails with [ErrClosed], with
// [ErrInvalidArgument] on another device, and with [ErrStale] when something that it was captured with has changed since.
func (g *Graph) Launch(s *Stream) error {
	return located(s.Do(func(x *Exec) error {
		x.Launch(g)
		return nil
	}))
}

// Launch is [Graph.Launch] inside a Do.
func (x *Exec) Launch(g *Graph) {
	const op = "Exec.Launch"
	x.checkThread(op)
	if g == nil || g.pool == nil {
		x.Fail(op, &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Message: "the graph is nil, or was not made by Capture"})
	}
	if x.work != nil || x.hook {
		x.Fail(op, &Error{Op: op, Kind: ErrNotCapturable, Caller: caller(), Message: "a graph is launched inside a captured function, or one given to EachLaunch: call what it was captured from"})
	}
	g.pool.lock(op, x)
	defer g.pool.unlock()
	if g.closed {
		x.Fail(op, &Error{Op: op, Kind: ErrClosed, Caller: caller(), Message: "the graph is closed"})
	}
	if err := g.pool.usable(op, x); err != nil {
		x.Fail(op, err)
	}
	if g.Eager() {
		y := *x
		y.c.Grad, y.c.Autocast = g.grad, g.autocast
		if err := y.inside(x.c.Stream, &graphWork{pool: g.pool, eager: true}, g.fn); err != nil {
			x.Fail(op, err)
		}
		return
	}
	if what := g.stale(); what != "" {
		x.Fail(op, &Error{Op: op, Kind: ErrStale, Caller: caller(), Message: what + " since the graph was captured: capture again"})
	}
	g.pool.await(x)
	g.launch(x)
	g.pool.used(x)
}

// launch enqueues the work of a graph that can be launched, with the pool locked and awaited; used is to follow.
func (g *Graph) launch(x *Exec) {
	before := *x
	before.hook = true
	for _, hook := range g.hooks {
		hook(&before)
	}
	x.must("Exec.Launch", ct.GraphLaunch(x.c, g.h))
	runtime.KeepAlive(g)
}

// stale is what has changed since the capture, or "".
func (g *Graph) stale() string {
	for _, changed := range g.depends {
		if what := changed(); what != "" {
			return what
		}
	}
	return ""
}

// GraphSize counts what a graph is made of.
type GraphSize struct {
	Nodes, Kernels, Copies, Fills int  // fills are captured as kernels, but for those of several rows
	Random                        bool // it draws random numbers
}

// Size counts the graph's nodes. That of an eager graph is zero.
func (g *Graph) Size() (GraphSize, error) {
	var size GraphSize
	err := g.ask("Graph.Size", func() error {
		var err error
		size, err = g.size()
		return err
	})
	return size, err
}

func (g *Graph) size() (GraphSize, error) {
	var size ct.GraphSize
	err := check("Graph.Size", ct.GraphCount(g.h, &size))
	return GraphSize{Nodes: int(size.Nodes), Kernels: int(size.Kernels), Copies: int(size.Copies), Fills: int(size.Fills), Random: size.Random != 0}, err
}

// Memory is what the graph's pool holds of the device, in bytes; 0 on the CPU. It may take a millisecond.
func (g *Graph) Memory() (int64, error) { return g.pool.Memory() }

// ask calls question with the graph open.
func (g *Graph) ask(op string, question func() error) error {
	if err := g.pool.enter(op); err != nil {
		return err
	}
	defer g.pool.mu.Unlock()
	switch {
	case g.closed:
		return &Error{Op: op, Kind: ErrClosed, Caller: caller(), Message: "the graph is closed"}
	case g.Eager():
		return nil
	}
	defer runtime.KeepAlive(g)
	return question()
}

// Close frees the graph; launches under way go on. Tensors that its function kept stay until they are closed. Closing twice does nothing.
func (g *Graph) Close() error {
	if g == nil || g.pool == nil {
		return nil
	}
	if err := g.pool.enter("Graph.Close"); err != nil {
		return err
	}
	defer g.pool.mu.Unlock()
	if g.closed {
		return nil
	}
	g.end()
	g.pool.closed = g.pool.closed || g.ownPool
	g.pool.endIfUnused()
	return nil
}

// end closes the graph with the pool locked.
func (g *Graph) end() {
	g.closed = true
	g.free()
	if g.pool.graphs--; g.pool.graphs == 0 {
		g.pool.filled = false
	}
}

// guard frees the graph should the program forget to.
func (g *Graph) guard() { g.cleanup = runtime.AddCleanup(g, freeGraph, g.h) }

func freeGraph(h *ct.Graph) { ct.GraphFree(h) }

func (g *Graph) free() {
	if g.h == nil {
		return
	}
	g.cleanup.Stop()
	ct.GraphFree(g.h)
	g.h = nil
}
