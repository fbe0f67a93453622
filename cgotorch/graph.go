package cgotorch

import (
	"runtime"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// Graph is a CUDA graph: work that was captured once and is launched as a whole. A launch costs
// the host about as much as the launch of one kernel. The graph reads and writes the same memory
// as the captured function. Memory that existed before the capture must live as long as the
// Graph. A Graph may be used from any goroutine.
type Graph struct {
	pool    *graphPool
	ownPool bool
	eager   bool // each launch calls the function again
	hooks   []func(x *Exec)
	depends []func() string

	h        *ct.Graph // guarded by pool.mu
	parallel bool      // a Choice in the graph runs work in parallel
	updated  bool      // CUDA has updated the executable graph of an older capture, and this graph uses it
	closed   bool      // guarded by pool.mu
	cleanup  runtime.Cleanup

	fn             func(x *Exec) error // function of an eager graph; guarded by pool.mu
	grad, autocast int32               // modes in which an eager graph runs fn
}

// Launch enqueues the graph's work on s. s may be any stream of the graph's device. The work runs
// after earlier work of s and before later work of s. Launches of graphs that share memory run
// one after another on the device, even on different streams. Launch does not wait for the
// device. It waits for a Do of s, and for a capture that uses the graph's memory.
//
// Launch fails with [ErrClosed] if the graph is closed, and with [ErrInvalidArgument] if s is on
// another device. Launch fails with [ErrStale] if a value has changed since the capture: see
// [Exec.DependsOn].
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
	if x.work != nil || x.hooked() {
		x.Fail(op, refuse(op, ErrNotCapturable,
			"a graph is launched inside a captured function, or one given to EachLaunch: call the function that it was captured from"))
	}
	g.pool.lock(op, x)
	defer g.pool.unlock()
	if g.closed {
		x.Fail(op, refuse(op, ErrClosed, "the graph is closed; close it after its last launch"))
	}
	if err := g.pool.usable(op, x); err != nil {
		x.Fail(op, err)
	}
	if g.eager {
		y := *x
		y.c.Grad, y.c.Autocast = g.grad, g.autocast
		ct.CheckFullEdge(x.c) //edge:graph-begins-full-edge TestCheckStreams_FindsMistakes checked
		if err := y.inside(x.c.Stream, &graphWork{pool: g.pool, eager: true}, g.fn); err != nil {
			x.Fail(op, err)
		}
		ct.CheckFullEdge(x.c) //edge:graph-ends-full-edge TestCheckStreams_SilentWhereEarlyIsRight checked
		return
	}
	if what := g.stale(); what != "" {
		x.Fail(op, refuse(op, ErrStale, "%v since the graph was captured: capture again", what))
	}
	g.pool.await(x)
	g.launch(x)
	g.pool.used(x)
}

// launch enqueues the work of an open graph that is not stale. Before the call, the caller has
// locked the pool and called the pool's method `await`. After the call, the caller calls the pool's
// method `used`.
func (g *Graph) launch(x *Exec) {
	before := *x
	before.values = x.values.Within(seam.SameScope).With(inHook{}, seam.Everywhere)
	for _, hook := range g.hooks {
		hook(&before)
	}
	x.must("Exec.Launch", ct.GraphLaunch(x.c, g.h))
	runtime.KeepAlive(g)
}

// stale returns a text that names a value that has changed since the capture. If no value has
// changed, `stale` returns "".
func (g *Graph) stale() string {
	for _, changed := range g.depends {
		if what := changed(); what != "" {
			return what
		}
	}
	return ""
}

// Close frees the graph. Launches that are already enqueued still run. Tensors that the captured
// function kept stay valid until they are closed. A second Close does nothing.
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

// end closes the graph. The caller has locked the pool.
func (g *Graph) end() {
	g.closed = true
	g.free()
	if g.pool.graphs--; g.pool.graphs == 0 {
		g.pool.filled = false
	}
}

// guard lets the garbage collector free the graph if the program forgets to close it.
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
