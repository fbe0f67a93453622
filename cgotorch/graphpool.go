package cgotorch

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// capturesNow holds the capture under way on each device. There is at most one.
var capturesNow sync.Map // Device -> *graphWork

// graphPool is memory of a device, and the streams for captures, that graphs share. It needs as
// much memory as the largest graph. Graphs with memory of their own would need the sum. The
// device runs one graph of a pool at a time.
type graphPool struct {
	device Device

	mu      sync.Mutex    // held by a capture, a warm-up run or a launch
	runner  atomic.Uint64 // the thread that holds mu for one of these, or 0
	h       *ct.GraphPool
	streams []*Stream // the first captures, the others stand in for streams that it forks to
	stands  map[*Stream]*Stream
	graphs  int    // open
	filled  bool   // graphs use its memory, so nothing else may
	warmed  bool   // it has had a warm-up run
	last    *Event // behind the last launch, warm-up run or capture
	lastOn  uint64 // the number of the stream of last
	closed  bool   // by the program
	ended   bool   // closed, with no graph left
}

// newGraphPool returns an empty pool. The caller must Close it. It fails with [ErrNoDevice] or
// [ErrDeviceLost].
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

// lock takes the pool for a capture, a warm-up run or a launch by x, and unlock gives it back.
// Inside of one of these lock fails.
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

// enter takes the pool for another call, and fails inside of a function that holds the pool. On
// success the caller unlocks p.mu.
func (p *graphPool) enter(op string) error {
	if runsOn(p.runner.Load()) {
		return insideError(op)
	}
	p.mu.Lock()
	return nil
}

// runsOn reports whether the calling goroutine is the worker of this thread.
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

// Memory returns the bytes of the device that the pool holds; 0 on the CPU. It may take a
// millisecond.
func (p *graphPool) Memory() (int64, error) {
	if err := p.enter("GraphPool.Memory"); err != nil {
		return 0, err
	}
	defer p.mu.Unlock()
	if p.h == nil {
		return 0, nil
	}
	var bytes int64
	err := check("GraphPool.Memory", ct.GraphPoolBytes(p.h, &bytes))
	return bytes, err
}

// Close lets the memory go back when the last graph of the pool has been closed. Closing twice
// does nothing.
func (p *graphPool) Close() error {
	if p == nil {
		return nil
	}
	if err := p.enter("GraphPool.Close"); err != nil {
		return err
	}
	defer p.mu.Unlock()
	p.closed = true
	p.endIfUnused()
	return nil
}

// endIfUnused frees a closed pool whose last graph is gone. p.mu is held.
func (p *graphPool) endIfUnused() {
	if !p.closed || p.ended || p.graphs > 0 {
		return
	}
	p.ended = true
	for _, s := range p.streams {
		s.Close()
	}
	p.last.Close()
	ct.GraphPoolFree(p.h)
	p.h = nil
}

// usable fails unless the pool is open and of x's device.
func (p *graphPool) usable(op string, x *Exec) error {
	switch {
	case p.ended:
		return refuse(op, ErrClosed, "the pool of graphs is closed")
	case p.device != x.Device():
		return refuse(op, ErrInvalidArgument, "the graph is of %v, the Exec of %v", p.device, x.Device())
	}
	return nil
}

// standIn returns the stream of the pool that stands in for s in captures.
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

// await makes x's stream wait, on the device, for the last use of the pool's memory.
func (p *graphPool) await(x *Exec) {
	if p.last != nil && p.lastOn != ct.StreamID(x.c.Stream) {
		x.Wait(p.last)
	}
}

// used marks the end of a use on x's stream. The pool's streams follow it. LibTorch's allocator
// learned in the capture that they use the function's memory. It does not hand such memory out
// again before they are done.
func (p *graphPool) used(x *Exec) {
	last := x.Record()
	for _, s := range p.streams {
		if err := last.awaitedBy("Graph", s.h, nil); err != nil {
			last.Close()
			x.Fail("Graph", err)
		}
	}
	p.last.Close()
	p.last, p.lastOn = last, ct.StreamID(x.c.Stream)
}

// warmUp runs fn on the pool's streams as one piece of x's work. With warm it uses the pool's
// memory, as a warm-up for a capture. It does not where the pool has a graph: memory that
// outlives the run, such as an optimizer's state, would lie where the graph writes. undecided
// means that a Choice in fn needs more runs.
func (p *graphPool) warmUp(x *Exec, fn func(x *Exec) error, warm bool) (undecided bool, err error) {
	if !p.device.IsCUDA() {
		return false, x.inside(x.c.Stream, &graphWork{pool: p, eager: true}, fn)
	}
	work := &graphWork{pool: p}
	defer func() { work.ended = true }()
	if warm && !p.filled {
		if !p.warmed { // LibTorch's allocator keeps its cache while a pool is entered
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

// joined calls fn with the first stream of the pool. The stream's work for fn comes behind x's
// work so far and before x's later work.
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
	defer func() { // also when fn panics: x's stream must not run ahead of fn's work
		if awaitStream(op, x.c.Stream, on) == nil { // fails on a lost device
			p.used(x)
		}
	}()
	return fn(on)
}

// capture captures fn. The new graph takes the place of older, which may be nil. With serial
// every Choice in fn is serial.
func (p *graphPool) capture(x *Exec, fn func(x *Exec) error, older *Graph, serial bool) (g *Graph, err error) {
	const op = "Exec.Capture"
	g = &Graph{pool: p}
	if !p.device.IsCUDA() {
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
		capturesNow.Store(p.device, work)
		defer func() {
			work.h = nil
			capturesNow.Delete(p.device)
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
		capturesNow.Delete(p.device) // waiters for the end of the capture look there
		if err := check(op, ct.GraphEnd(y, h, before, &updated)); err != nil {
			return err
		}
		captured = true
		g.h, g.updated = h, updated != 0
		return nil
	})
	if err != nil {
		return nil, err
	}
	g.hooks, g.depends, g.parallel = work.hooks, work.depends, work.parallel
	g.guard()
	p.filled = true
	p.graphs++
	return g, nil
}

// Note [Memory written before launches]
//
// Memory that EachLaunch writes must be made with Uncaptured. Memory of the graph may have
// served an earlier operator of the same graph, which then writes there at each launch. For the
// same reason nothing can be kept in a pool that has graphs already. A rehearsal uses the pool's
// memory only before its first graph: what outlives it, such as momentum, would lie where the
// graph writes.
