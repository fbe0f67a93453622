package cgotorch

// #include <stdlib.h>
// #include "cgotorch.h"
import "C"

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"unsafe"
)

// Graph is work that was captured once and is launched as a whole, for the cost of one kernel's launch: a CUDA graph. It reads and
// writes the memory that the captured function did; whatever of that was there before is to live as long as the Graph. It may be used
// from any goroutine.
type Graph struct {
	pool    *GraphPool
	ownPool bool
	fn      func(x *Exec) error // of an eager graph
	hooks   []func(x *Exec)
	depends []func() string

	h       *C.ct_graph // guarded by pool.mu
	updated bool        // it has taken over what an older graph had on the device
	closed  bool        // guarded by pool.mu
	cleanup runtime.Cleanup
}

// CaptureOptions are the options of [Stream.Capture]; the zero value is a graph with memory of its own and no rehearsal.
type CaptureOptions struct {
	Pool      *GraphPool // memory shared with other graphs, whose launches are then ordered one after another on the device; nil for the graph's own
	Rehearsal int        // times that the function is run before it is captured, so that algorithms are chosen and libraries ready; what it does is done as often
}

// Capture runs fn and turns the work that it enqueues into a graph, which is not run before [Graph.Launch]; the caller must Close it.
// It waits for captures of other goroutines on the device, not for the device.
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
	x.checkThread(op)
	if x.s.graph != nil {
		return nil, &Error{Op: op, Code: CodeNotCapturable, Caller: caller(), Message: "a capture inside a capture"}
	}
	pool := o.Pool
	if pool == nil {
		var err error
		if pool, err = NewGraphPool(x.Device()); err != nil {
			return nil, err
		}
	}
	var g *Graph
	defer func() {
		if g == nil && o.Pool == nil { // also when fn panics
			pool.Close()
		}
	}()
	g, err := x.captureInto(pool, fn, o)
	if err != nil {
		return nil, err
	}
	g.ownPool = o.Pool == nil
	return g, nil
}

func (x *Exec) captureInto(pool *GraphPool, fn func(x *Exec) error, o CaptureOptions) (*Graph, error) {
	pool.mu.Lock()
	defer pool.mu.Unlock()
	if err := pool.usable("Exec.Capture", x); err != nil {
		return nil, err
	}
	for range o.Rehearsal {
		if err := pool.rehearse(x, fn, true); err != nil {
			return nil, err
		}
	}
	return pool.capture(x, fn, nil)
}

// Eager reports whether a launch runs the function anew, as on the CPU, where nothing can be captured.
func (g *Graph) Eager() bool { return g.fn != nil }

// Launch enqueues the graph's work on the stream, on any one of the graph's device, and does not wait: work of the stream runs before and
// behind it, launches of the same graph and of graphs in its pool one after another. It fails with [ErrClosed], with
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
		x.Fail(op, &Error{Op: op, Code: CodeInvalidArgument, Caller: caller(), Message: "the graph is nil, or was not made by Capture"})
	}
	if x.s.graph != nil {
		x.Fail(op, &Error{Op: op, Code: CodeNotCapturable, Caller: caller(), Message: "a graph is launched inside a captured function: call what it was captured from"})
	}
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	if g.closed {
		x.Fail(op, &Error{Op: op, Code: CodeClosed, Caller: caller(), Message: "the graph is closed"})
	}
	if err := g.pool.usable(op, x); err != nil {
		x.Fail(op, err)
	}
	if g.Eager() {
		if err := x.inside(x.c.stream, nil, g.fn); err != nil {
			x.Fail(op, err)
		}
		return
	}
	if what := g.stale(); what != "" {
		x.Fail(op, &Error{Op: op, Code: CodeStale, Caller: caller(), Message: what + " since the graph was captured: capture again"})
	}
	g.launch(x)
}

// launch is Launch for a graph that can be launched, with the pool locked.
func (g *Graph) launch(x *Exec) {
	g.pool.await(x)
	for _, hook := range g.hooks {
		hook(x)
	}
	x.must("Exec.Launch", C.ct_graph_launch(x.c, g.h))
	g.pool.used(x)
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
	var size C.ct_graph_size
	err := check("Graph.Size", C.ct_graph_count(g.h, &size))
	return GraphSize{Nodes: int(size.nodes), Kernels: int(size.kernels), Copies: int(size.copies), Fills: int(size.fills), Random: size.random != 0}, err
}

// WriteDOT writes the graph in the language of Graphviz. It fails for an eager graph, with [ErrUnsupported].
func (g *Graph) WriteDOT(w io.Writer) error {
	const op = "Graph.WriteDOT"
	if g.Eager() {
		return &Error{Op: op, Code: CodeUnsupported, Caller: caller(), Message: "the graph runs eagerly: nothing was captured"}
	}
	folder, err := os.MkdirTemp("", "graph-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "graph.dot")
	text := C.CString(path)
	defer C.free(unsafe.Pointer(text))
	if err := g.ask(op, func() error { return check(op, C.ct_graph_write_dot(g.h, text)) }); err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(w, file)
	return err
}

// ask calls question with the graph open.
func (g *Graph) ask(op string, question func() error) error {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	switch {
	case g.closed:
		return &Error{Op: op, Code: CodeClosed, Caller: caller(), Message: "the graph is closed"}
	case g.Eager():
		return nil
	}
	return question()
}

// Update captures fn in place of the graph's function. Where only parameters differ, CUDA updates the graph that the device has, which is
// cheaper than a new one; updated says whether. When it fails the graph is what it was.
func (g *Graph) Update(s *Stream, fn func(x *Exec) error) (updated bool, err error) {
	err = s.Do(func(x *Exec) error {
		var err error
		updated, err = x.update(g, fn)
		return err
	})
	return updated, located(err)
}

func (x *Exec) update(g *Graph, fn func(x *Exec) error) (updated bool, err error) {
	const op = "Graph.Update"
	if x.s.graph != nil {
		return false, &Error{Op: op, Code: CodeNotCapturable, Caller: caller(), Message: "a capture inside a capture"}
	}
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	if g.closed {
		return false, &Error{Op: op, Code: CodeClosed, Caller: caller(), Message: "the graph is closed"}
	}
	if err := g.pool.usable(op, x); err != nil {
		return false, err
	}
	if g.Eager() {
		g.fn = fn
		return false, nil
	}
	anew, err := g.pool.capture(x, fn, g)
	if err != nil {
		return false, err
	}
	g.free()
	anew.cleanup.Stop()
	g.h, g.hooks, g.depends = anew.h, anew.hooks, anew.depends
	g.guard()
	g.pool.graphs-- // counted anew
	return anew.updated, nil
}

// Close frees the graph; launches under way go on. Tensors that its function kept stay until they are closed. Closing twice does nothing.
func (g *Graph) Close() error {
	if g == nil || g.pool == nil {
		return nil
	}
	g.pool.mu.Lock()
	if g.closed {
		g.pool.mu.Unlock()
		return nil
	}
	g.end()
	g.pool.mu.Unlock()
	if g.ownPool {
		return g.pool.Close()
	}
	g.pool.endIfUnused()
	return nil
}

// end closes the graph with the pool locked.
func (g *Graph) end() {
	g.closed = true
	g.free()
	g.pool.graphs--
}

// guard frees the graph should the program forget to.
func (g *Graph) guard() { g.cleanup = runtime.AddCleanup(g, freeGraph, g.h) }

func freeGraph(h *C.ct_graph) { C.ct_graph_free(h) }

func (g *Graph) free() {
	if g.h == nil {
		return
	}
	g.cleanup.Stop()
	C.ct_graph_free(g.h)
	g.h = nil
}

// Capturing reports whether x's work becomes part of a graph and is not run.
func (x *Exec) Capturing() bool { return x.capture() != nil }

// capture is the capture that x's work is part of, or nil.
func (x *Exec) capture() *graphWork {
	if g := x.s.graph; g != nil && g.capturing && x.c.stream != g.outside {
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
	y.c.stream = g.outside
	return &y
}

// EachLaunch calls fn with x or, where x's work is captured, before each launch of the graph instead, with an Exec of the stream that it
// is launched on. It is for what the host does at each step: to count steps, or to write a new learning rate into the tensor that the graph
// reads, which is to be made with [Exec.Uncaptured]. fn must not make tensors that it keeps, or launch graphs.
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

// graphWork is what a scope's operators are for, whose work is captured, or is the rehearsal of a capture.
type graphWork struct {
	pool      *GraphPool
	capturing bool
	h         *C.ct_graph           // that is captured; nil before and after
	outside   *C.ct_stream          // for which it is captured
	forked    map[*C.ct_stream]bool // those whose work becomes part of the graph
	hooks     []func(x *Exec)
	depends   []func() string
}

// standIn is the pool's stream for work that the function means for s.
func (w *graphWork) standIn(s *Stream) (*C.ct_stream, error) { return w.pool.standIn(s) }

// GraphPool is memory of a device, and the streams for captures, that graphs share: as much as the largest of them needs, where graphs of
// their own would need the sum. The device runs one of them at a time.
type GraphPool struct {
	device Device

	mu      sync.Mutex // held by a capture, a rehearsal or a launch
	h       *C.ct_graph_pool
	streams []*Stream // the first captures, the others stand for those that it forks to
	stands  map[*Stream]*Stream
	graphs  int        // open
	filled  bool       // a graph uses its memory, so that nobody else may
	last    *Event     // behind the last launch, rehearsal or capture
	lastOn  C.uint64_t // the number of its stream
	closed  bool
	ended   bool
}

// NewGraphPool returns an empty pool. The caller must Close it. It fails with [ErrNoDevice] or [ErrDeviceLost].
func NewGraphPool(d Device) (*GraphPool, error) {
	p := &GraphPool{device: d}
	if !d.IsCUDA() {
		return p, d.Check()
	}
	if err := ready(); err != nil {
		return nil, err
	}
	if err := check("NewGraphPool", C.ct_graph_pool_new(d.c(), &p.h)); err != nil {
		return nil, err
	}
	if _, err := p.newStream(); err != nil {
		C.ct_graph_pool_free(p.h)
		return nil, err
	}
	return p, nil
}

func (p *GraphPool) newStream() (*Stream, error) {
	s, err := NewStream(p.device, StreamOptions{Name: "capture"})
	if err != nil {
		return nil, err
	}
	if err := check("GraphPool", C.ct_graph_pool_add(p.h, s.h)); err != nil {
		s.Close()
		return nil, err
	}
	p.streams = append(p.streams, s)
	return s, nil
}

// Memory is what the pool holds of the device, in bytes; 0 on the CPU. It may take a millisecond.
func (p *GraphPool) Memory() (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.h == nil {
		return 0, nil
	}
	var bytes C.int64_t
	err := check("GraphPool.Memory", C.ct_graph_pool_bytes(p.h, &bytes))
	return int64(bytes), err
}

// Close lets the memory go back when the last graph of the pool has been closed. Closing twice does nothing.
func (p *GraphPool) Close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.endIfUnused()
	return nil
}

func (p *GraphPool) endIfUnused() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed || p.ended || p.graphs > 0 {
		return
	}
	p.ended = true
	for _, s := range p.streams {
		s.Close()
	}
	p.last.Close()
	C.ct_graph_pool_free(p.h)
	p.h = nil
}

// usable fails unless the pool is open and of x's device.
func (p *GraphPool) usable(op string, x *Exec) error {
	switch {
	case p.ended || p.closed && p.graphs == 0:
		return &Error{Op: op, Code: CodeClosed, Caller: caller(), Message: "the pool of graphs is closed"}
	case p.device != x.Device():
		return &Error{Op: op, Code: CodeInvalidArgument, Caller: caller(), Message: "the graph is of " + p.device.String() + ", the Exec of " + x.Device().String()}
	}
	return nil
}

// standIn is the stream of the pool that stands for s in captures.
func (p *GraphPool) standIn(s *Stream) (*C.ct_stream, error) {
	if s == nil {
		return nil, noStream("Exec.On")
	}
	if s.device != p.device {
		return nil, &Error{Op: "Exec.On", Code: CodeNotCapturable, Caller: caller(), Message: "a captured function of " + p.device.String() + " forks to a stream of " + s.device.String()}
	}
	stand := p.stands[s]
	if stand == nil {
		if next := len(p.stands); next < len(p.streams) {
			stand = p.streams[next]
		} else {
			var err error
			if stand, err = p.newStream(); err != nil {
				return nil, err
			}
		}
		p.stands[s] = stand
	}
	return stand.h, nil
}

// await makes x's stream wait, on the device, for the last use of the pool's memory.
func (p *GraphPool) await(x *Exec) {
	if p.last != nil && p.lastOn != C.ct_stream_id(x.c.stream) {
		x.Wait(p.last)
	}
}

// used marks the end of a use on x's stream. The pool's streams follow it: LibTorch's allocator was told in the capture that they use what
// the function reads and writes, and does not hand such memory out again before they are done.
func (p *GraphPool) used(x *Exec) {
	last := x.Record()
	for _, s := range p.streams {
		if err := last.awaitedBy("GraphPool", s.h, nil); err != nil {
			last.Close()
			x.Fail("GraphPool", err)
		}
	}
	p.last.Close()
	p.last, p.lastOn = last, C.ct_stream_id(x.c.stream)
}

// rehearse runs fn on the pool's streams, as one piece of work of x's; in the pool's memory where it warms it up for a capture. It cannot
// once there is a graph in it: what outlives a rehearsal, such as an optimizer's state, would lie where the graph writes.
func (p *GraphPool) rehearse(x *Exec, fn func(x *Exec) error, warm bool) error {
	if !p.device.IsCUDA() {
		return x.inside(x.c.stream, nil, fn)
	}
	if warm && !p.filled {
		if err := check("GraphPool", C.ct_graph_pool_enter(p.h)); err != nil {
			return err
		}
		defer C.ct_graph_pool_leave(p.h)
	}
	return p.joined(x, func(on *C.ct_stream) error { return x.inside(on, &graphWork{pool: p}, fn) })
}

// joined calls fn with the first stream of the pool, whose work for it comes behind x's work so far and before x's work from then on.
func (p *GraphPool) joined(x *Exec, fn func(on *C.ct_stream) error) error {
	const op = "GraphPool"
	on := p.streams[0].h
	p.stands = map[*Stream]*Stream{x.stream: p.streams[0]}
	p.await(x)
	begin := x.Record()
	defer begin.Close()
	if err := begin.awaitedBy(op, on, nil); err != nil {
		return err
	}
	defer func() { // also when fn panics: x's stream is not to run ahead of what fn has enqueued
		end, err := recordEvent(op, on, 0)
		if err != nil {
			return // on a lost device
		}
		defer end.Close()
		if end.awaitedBy(op, x.c.stream, nil) == nil {
			p.used(x)
		}
	}()
	return fn(on)
}

// capture captures fn; older is a graph that it takes the place of, or nil.
func (p *GraphPool) capture(x *Exec, fn func(x *Exec) error, older *Graph) (g *Graph, err error) {
	const op = "Exec.Capture"
	g = &Graph{pool: p}
	if !p.device.IsCUDA() {
		g.fn = fn
		p.graphs++
		return g, nil
	}
	work := &graphWork{pool: p, capturing: true, outside: x.c.stream, forked: map[*C.ct_stream]bool{p.streams[0].h: true}}
	err = p.joined(x, func(on *C.ct_stream) error {
		y := x.c
		y.stream = on
		var h *C.ct_graph
		if err := check(op, C.ct_graph_begin(y, p.h, &h)); err != nil {
			return err
		}
		captured := false
		work.h = h
		defer func() {
			work.h = nil
			if !captured {
				C.ct_graph_free(h)
			}
		}()
		if err := x.inside(on, work, fn); err != nil {
			return err
		}
		var before *C.ct_graph
		if older != nil {
			before = older.h
		}
		var updated C.int32_t
		if err := check(op, C.ct_graph_end(y, h, before, &updated)); err != nil {
			return err
		}
		captured = true
		g.h, g.updated = h, updated != 0
		return nil
	})
	if err != nil {
		return nil, err
	}
	g.hooks, g.depends = work.hooks, work.depends
	g.guard()
	p.filled = true
	p.graphs++
	return g, nil
}
