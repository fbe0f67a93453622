package cgotorch

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// graphPool is device memory that several graphs share, together with the streams on which the
// graphs are captured. The pool needs as much memory as its largest graph. Without a shared pool
// the graphs would need the sum of their memory. The device runs the graphs of a pool one at a
// time.
type graphPool struct {
	device Device

	mu      sync.Mutex    // held during a capture, a warm-up run or a launch
	runner  atomic.Uint64 // thread of that capture, warm-up run or launch; 0 means none
	h       *ct.GraphPool
	streams []*Stream           // streams[0] is where captures begin; the others stand in for side streams
	stands  map[*Stream]*Stream // from a stream of the program to the stream that stands in for it
	graphs  int                 // number of open graphs
	filled  bool                // open graphs use the pool's memory, so nothing else may lie there
	warmed  bool                // a warm-up run has used the pool's memory
	last    *Event              // recorded after the last launch, warm-up run or capture; nil before the first one
	lastOn  uint64              // number of the stream on which the event `last` was recorded
	closed  bool                // the pool is to be freed when its last graph is closed
	ended   bool                // the pool is freed
}

// newGraphPool returns an empty pool. The caller must Close the pool. newGraphPool fails with
// [ErrNoDevice] or [ErrDeviceLost].
func newGraphPool(d Device) (*graphPool, error) {
	p := &graphPool{device: d}
	if !d.IsCUDA() {
		return p, d.Check()
	}
	if err := ready(); err != nil {
		return nil, err
	}
	if err := check("Stream.Capture", ct.GraphPoolNew(d.c(), &p.h)); err != nil {
		return nil, err
	}
	if _, err := p.newStream(); err != nil {
		ct.GraphPoolFree(p.h)
		return nil, err
	}
	return p, nil
}

// lock locks the pool for a capture, a warm-up run or a launch by x. The method `unlock` unlocks
// the pool. `lock` fails if x's thread already holds the pool.
func (p *graphPool) lock(op string, x *Exec) {
	if p.runner.Load() == x.s.thread {
		x.Fail(op, insideError(op))
	}
	p.mu.Lock()
	p.runner.Store(x.s.thread)
}

func (p *graphPool) unlock() {
	p.runner.Store(0)
	p.mu.Unlock()
}

// enter locks p.mu for any call other than a capture, a warm-up run or a launch. If `enter`
// succeeds, the caller unlocks p.mu. Captures, warm-up runs and launches call functions of the
// program while they hold the pool. In these functions of the program `enter` fails.
func (p *graphPool) enter(op string) error {
	if runsOn(p.runner.Load()) {
		return insideError(op)
	}
	p.mu.Lock()
	return nil
}

// runsOn reports whether the calling goroutine runs a Do on the given thread.
func runsOn(thread uint64) bool {
	if thread == 0 {
		return false
	}
	w := currentWorker()
	return w != nil && w.scope != nil && w.scope.thread == thread
}

func insideError(op string) error {
	return refuse(op, ErrMisuse,
		"called inside the captured function, or a function given to EachLaunch, which it would wait for")
}

func (p *graphPool) newStream() (*Stream, error) {
	s, err := NewStream(p.device, StreamOptions{Name: "capture"})
	if err != nil {
		return nil, err
	}
	if err := check("Graph", ct.GraphPoolAdd(p.h, s.h)); err != nil {
		s.Close()
		return nil, err
	}
	p.streams = append(p.streams, s)
	return s, nil
}

// Memory returns the number of bytes on the device that the pool holds. On the CPU it returns 0.
// The call may take a millisecond.
func (p *graphPool) Memory(op string) (int64, error) {
	if err := p.enter(op); err != nil {
		return 0, err
	}
	defer p.mu.Unlock()
	if p.h == nil {
		return 0, nil
	}
	var bytes int64
	err := check(op, ct.GraphPoolBytes(p.h, &bytes))
	return bytes, err
}

// Close gives the pool's memory back when the last graph of the pool is closed. A second Close
// does nothing.
func (p *graphPool) Close(op string) error {
	if p == nil {
		return nil
	}
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.mu.Unlock()
	p.closed = true
	p.endIfUnused()
	return nil
}

// endIfUnused frees the pool if the pool is closed and has no open graph. The caller holds p.mu.
func (p *graphPool) endIfUnused() {
	if !p.closed || p.ended || p.graphs > 0 {
		return
	}
	p.ended = true
	for _, s := range p.streams {
		s.Close() // its next owner works after the last use: see usedRaw
	}
	p.last.Close()
	ct.GraphPoolFree(p.h)
	p.h = nil
}

// usable returns an error if the pool is freed or belongs to another device than x.
func (p *graphPool) usable(op string, x *Exec) error {
	switch {
	case p.ended:
		return refuse(op, ErrClosed, "the pool of graphs is closed")
	case p.device != x.Device():
		return refuse(op, ErrInvalidArgument, "the graph is of %v, the Exec of %v", p.device, x.Device())
	}
	return nil
}

func (p *graphPool) stand(of *Stream) *Stream { return p.stands[of] }
func (p *graphPool) shared() bool             { return p.filled }
func (p *graphPool) handle() *ct.GraphPool    { return p.h }

// standIn returns the stream of the pool that stands in for s in captures and warm-up runs.
func (p *graphPool) standIn(s *Stream) (*ct.Stream, error) {
	if s == nil {
		return nil, noStream("Exec.On")
	}
	if s.device != p.device {
		return nil, refuse("Exec.On", ErrNotCapturable,
			"a captured function of %v forks to a stream of %v", p.device, s.device)
	}
	if slices.Contains(p.streams, s) {
		return s.h, nil // s stands in for another stream already
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

// await makes x's stream wait for the last use of the pool's memory. The host does not wait.
func (p *graphPool) await(x *Exec) {
	if p.last != nil && p.lastOn != ct.StreamID(x.c.Stream) {
		x.Wait(p.last)
	}
}

// used marks the end of a use of the pool's memory on x's stream. It makes the pool's streams wait
// for this end, on the device. In the capture LibTorch's allocator has learned that the pool's
// streams use the memory. So the allocator gives this memory to no other work until the pool's
// streams are done.
func (p *graphPool) used(x *Exec) {
	x.checkThread("Graph")
	if err := p.usedRaw(x); err != nil {
		x.Fail("Graph", err)
	}
}

// usedRaw is `used`, also after x's Do has failed.
func (p *graphPool) usedRaw(x *Exec) error {
	last, err := recordEvent("Graph", x.c.Stream, 0)
	if err != nil {
		return err
	}
	for _, s := range p.streams {
		if err := last.awaitedBy("Graph", s.h, nil); err != nil { //edge:pool-streams-end-behind-graphs TestGraph_CloseGivesStreamsBehindLaunches gpu
			last.Close()
			return err
		}
	}
	p.last.Close()
	p.last, p.lastOn = last, ct.StreamID(x.c.Stream)
	return nil
}

// warmUp runs fn on the pool's streams, after x's earlier work and before x's later work. The
// result `undecided` is true if a Choice in fn needs more runs.
//
// If the argument `warm` is true and the pool has no graph, fn takes its memory from the pool, as
// a capture does. Otherwise fn takes its memory from elsewhere. Memory that outlives the run,
// such as an optimizer's state, must not lie in the pool if the pool has a graph. The graph would
// write to this memory.
func (p *graphPool) warmUp(x *Exec, fn func(x *Exec) error, warm bool) (undecided bool, err error) {
	if !p.device.IsCUDA() {
		return false, x.inside(x.c.Stream, &graphWork{pool: p, eager: true}, fn)
	}
	work := &graphWork{pool: p}
	defer func() { work.ended = true }()
	if warm && !p.filled {
		if !p.warmed { // inside a warm-up run or a capture, LibTorch's allocator cannot free its cached memory
			if err := p.device.ReleaseCachedMemory(); err != nil {
				return false, err
			}
			p.warmed = true
		}
		if err := check("Graph", ct.GraphPoolEnter(p.h)); err != nil {
			return false, err
		}
		defer ct.GraphPoolLeave(p.h)
	}
	err = p.joined(x, func(on *ct.Stream) error { return x.inside(on, work, fn) })
	return work.undecided, err
}

// joined calls fn with `on`, the first stream of the pool. Work that fn enqueues on this stream
// runs after x's work so far. x's later work runs after fn's work.
func (p *graphPool) joined(x *Exec, fn func(on *ct.Stream) error) error {
	const op = "Graph"
	on := p.streams[0].h
	p.stands = map[*Stream]*Stream{x.stream: p.streams[0]}
	p.await(x)
	begin := x.Record()
	defer begin.Close()
	if err := begin.awaitedBy(op, on, nil); err != nil {
		return err
	}
	defer func() { // also if fn panics, because x's later work must run after fn's work
		for _, s := range p.streams { // a fn that fails, for instance in a backward, has not joined its streams
			if awaitStream(op, x.c.Stream, s.h) != nil { // fails if the device is lost
				return
			}
		}
		p.used(x)
	}()
	return fn(on)
}

// capture captures fn and returns the graph. The argument `older` is the graph that the new graph
// replaces, or nil. CUDA may reuse the executable graph of `older`, and `older` can then only be
// closed. If the argument `serial` is true, every Choice in fn runs its work serially.
func (p *graphPool) capture(x *Exec, fn func(x *Exec) error, older *Graph, serial bool) (g *Graph, err error) {
	const op = "Stream.Capture"
	g = &Graph{pool: p}
	if !p.device.IsCUDA() || checkingValues() {
		g.eager, g.fn, g.grad, g.autocast = true, fn, x.c.Grad, x.c.Autocast
		p.graphs++
		return g, nil
	}
	alone := p.graphs == 0 || older != nil && p.graphs == 1
	work := &graphWork{pool: p, capturing: true, alone: alone, serial: serial, outside: x.c.Stream, forked: map[*ct.Stream]bool{p.streams[0].h: true}}
	defer func() { work.ended = true }()
	err = p.joined(x, func(on *ct.Stream) error {
		y := x.c
		y.Stream = on
		var h *ct.Graph
		if err := check(op, ct.GraphBegin(y, p.h, &h)); err != nil {
			return err
		}
		captured := false
		work.h = h
		underWay := &p.device.state().capture
		underWay.Store(work)
		defer func() {
			work.h = nil
			underWay.CompareAndSwap(work, nil) // another capture may have begun
			if !captured {
				ct.GraphFree(h)
			}
		}()
		if err := x.inside(on, work, fn); err != nil {
			return err
		}
		var before *ct.Graph
		if older != nil {
			before = older.h
		}
		var updated int32
		underWay.Store(nil) // before GraphEnd, which wakes backwards that wait for this capture: they read it
		if err := check(op, ct.GraphEnd(y, h, before, &updated)); err != nil {
			return err
		}
		captured = true
		g.h, g.updated = h, updated != 0
		g.guard()
		return nil
	})
	if err != nil {
		return nil, err
	}
	g.hooks, g.depends, g.parallel = work.hooks, work.depends, work.parallel
	p.filled = true
	p.graphs++
	return g, nil
}

// Note [Memory written before launches]
//
// Functions given to EachLaunch write memory before each launch of a graph. Make this memory before
// the capture, or with an Exec that is not captured. Memory of the graph is not safe, because an
// earlier operator of the graph may have used the same addresses. At each launch this operator
// would overwrite what the functions have written.
//
// For the same reason a function cannot keep a tensor that is made in a pool with other graphs. A
// warm-up run uses the pool's memory only if the pool has no graph yet. In a pool with a graph,
// memory that outlives the run, such as momentum, would lie where the graph writes.
