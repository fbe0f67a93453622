package cgotorch

import (
	"runtime"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Graph is work that was captured once and is launched as a whole, for the cost of one kernel's
// launch: a CUDA graph. It reads and writes the memory that the captured function did. Memory
// from before the capture must live as long as the Graph. A Graph may be used from any
// goroutine.
type Graph struct {
	pool    *graphPool
	ownPool bool
	eager   bool
	hooks   []func(x *Exec)
	depends []func() string

	h        *ct.Graph // guarded by pool.mu
	parallel bool      // a Choice was parallel
	updated  bool      // it has taken over the executable graph of an older capture
	closed   bool      // guarded by pool.mu
	cleanup  runtime.Cleanup

	fn             func(x *Exec) error // of an eager graph; guarded by pool.mu
	grad, autocast int32               // the modes of its capture
}

// Eager reports whether each launch runs the function anew, as on the CPU, where nothing can be
// captured.
func (g *Graph) Eager() bool { return g.eager }

// Launch enqueues the graph's work on s, which is any stream of the graph's device. It does not
// wait for the device; it waits for a capture into the graph's pool. The work comes behind
// earlier work of s and before later work. Launches of graphs of one pool run one after
// another.
//
// Launch fails with [ErrClosed], with [ErrInvalidArgument] on another device, and with
// [ErrStale] when something that was captured has changed since.
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
		x.Fail(op, refuse(op, ErrInvalidArgument, "the graph is nil, or was not made by Capture"))
	}
	if x.work != nil || x.hook {
		x.Fail(op, refuse(op, ErrNotCapturable,
			"a graph is launched inside a captured function, or one given to EachLaunch: call the function that it was captured from"))
	}
	g.pool.lock(op, x)
	defer g.pool.unlock()
	if g.closed {
		x.Fail(op, refuse(op, ErrClosed, "the graph is closed"))
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
		x.Fail(op, refuse(op, ErrStale, "%v since the graph was captured: capture again", what))
	}
	g.pool.await(x)
	g.launch(x)
	g.pool.used(x)
}

// launch enqueues the work of a graph that can be launched. The pool is locked and awaited; its
// used is to follow.
func (g *Graph) launch(x *Exec) {
	before := *x
	before.hook = true
	for _, hook := range g.hooks {
		hook(&before)
	}
	x.must("Exec.Launch", ct.GraphLaunch(x.c, g.h))
	runtime.KeepAlive(g)
}

// stale returns a text for a value that has changed since the capture, or "".
func (g *Graph) stale() string {
	for _, changed := range g.depends {
		if what := changed(); what != "" {
			return what
		}
	}
	return ""
}

// GraphSize counts the parts of a graph.
type GraphSize struct {
	// Fills are captured as kernels, except those of several rows.
	Nodes, Kernels, Copies, Fills int
	Random                        bool // the graph draws random numbers
}

// Size counts the graph's nodes. An eager graph's size is zero. It does not wait for the
// device.
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

// Memory returns the bytes of the device that the graph's pool holds; 0 on the CPU. It may take
// a millisecond.
func (g *Graph) Memory() (int64, error) { return g.pool.Memory() }

// ask calls question while the graph is open.
func (g *Graph) ask(op string, question func() error) error {
	if err := g.pool.enter(op); err != nil {
		return err
	}
	defer g.pool.mu.Unlock()
	switch {
	case g.closed:
		return refuse(op, ErrClosed, "the graph is closed")
	case g.Eager():
		return nil
	}
	defer runtime.KeepAlive(g)
	return question()
}

// Close frees the graph. Launches under way go on. Tensors that its function kept stay until
// they are closed. Closing twice does nothing.
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

// guard frees the graph in case the program forgets to.
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
