package cgotorch

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// capturesNow holds the capture under way on each device; there is one at most.
var capturesNow sync.Map // Device -> *graphWork

// graphPool is memory of a device, and the streams for captures, that graphs share: as much as the largest of them needs, where graphs of
// their own would need the sum. The device runs one of them at a time.
type graphPool struct {
	device Device

	mu      sync.Mutex    // held by a capture, a rehearsal or a launch
	runner  atomic.Uint64 // the thread that holds it for one of these, or 0
	h       *ct.GraphPool
	streams []*Stream // the first captures, the others stand for those that it forks to
	stands  map[*Stream]*Stream
	graphs  int    // open
	filled  bool   // graphs use its memory, so that nobody else may
	warmed  bool   // it has had a rehearsal
	last    *Event // behind the last launch, rehearsal or capture
	lastOn  uint64 // the number of its stream
	closed  bool   // by the program
	ended   bool   // and no graph is left
}

// newGraphPool returns an empty pool. The caller must Close it. It fails with [ErrNoDevice] or [ErrDeviceLost].
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

// lock takes the pool for a capture, a rehearsal or a launch by x; unlock gives it back. Inside of one of these it fails.
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

// enter takes the pool for another call, and fails inside of what holds it; on success the caller unlocks p.mu.
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
	return &Error{Op: op, Kind: ErrMisuse, Caller: caller(), Message: "called inside the captured function, or a function given to EachLaunch, which it would wait for"}
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

// Memory is what the pool holds of the device, in bytes; 0 on the CPU. It may take a millisecond.
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

// Close lets the memory go back when the last graph of the pool has been closed. Closing twice does nothing.
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

// endIfUnused frees a closed pool whose last graph is gone; with p.mu held.
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
		return &Error{Op: op, Kind: ErrClosed, Caller: caller(), Message: "the pool of graphs is closed"}
	case p.device != x.Device():
		return &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Message: "the graph is of " + p.device.String() + ", the Exec of " + x.Device().String()}
	}
	return nil
}

// standIn is the stream of the pool that stands for s in captures.
func (p *graphPool) standIn(s *Stream) (*ct.Stream, error) {
	if s == nil {
		return nil, noStream("Exec.On")
	}
	if s.device != p.device {
		return nil, &Error{Op: "Exec.On", Kind: ErrNotCapturable, Caller: caller(), Message: "a captured function of " + p.device.String() + " forks to a stream of " + s.device.String()}
	}
	if slices.Contains(p.streams, s) {
		return s.h, nil // it stands in for another one already
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

// used marks the end of a use on x's stream. The pool's streams follow it: LibTorch's allocator was told in the capture that they use what
// the function reads and writes, and does not hand such memory out again before they are done.
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

// rehearse runs fn on the pool's streams, as one piece of work of x's; in the pool's memory where it warms it up for a capture. It cannot
// once there is a graph in it: what outlives a rehearsal, such as an optimizer's state, would lie where the graph writes. undecided: a Choice
// in fn needs more of them.
func (p *graphPool) rehearse(x *Exec, fn func(x *Exec) error, warm bool) (undecided bool, err error) {
	if !p.device.IsCUDA() {
		return false, x.inside(x.c.Stream, &graphWork{pool: p, eager: true}, fn)
	}
	work := &graphWork{pool: p}
	defer func() { work.ended = true }()
	if warm && !p.filled {
		if !p.warmed { // LibTorch's allocator does not give up what it has cached while a pool is entered
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

// joined calls fn with the first stream of the pool, whose work for it comes behind x's work so far and before x's work from then on.
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
	defer func() { // also when fn panics: x's stream is not to run ahead of what fn has enqueued
		if awaitStream(op, x.c.Stream, on) == nil { // but on a lost device
			p.used(x)
		}
	}()
	return fn(on)
}

// capture captures fn; older is a graph that it takes the place of, or nil. plain: whatever Choices in fn say, it goes the first way.
func (p *graphPool) capture(x *Exec, fn func(x *Exec) error, older *Graph, plain bool) (g *Graph, err error) {
	const op = "Exec.Capture"
	g = &Graph{pool: p}
	if !p.device.IsCUDA() {
		g.eager, g.fn, g.grad, g.autocast = true, fn, x.c.Grad, x.c.Autocast
		p.graphs++
		return g, nil
	}
	alone := p.graphs == 0 || older != nil && p.graphs == 1
	work := &graphWork{pool: p, capturing: true, alone: alone, plain: plain, outside: x.c.Stream, forked: map[*ct.Stream]bool{p.streams[0].h: true}}
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
		capturesNow.Delete(p.device) // what waits for the end of the capture looks there
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
	g.hooks, g.depends, g.beside = work.hooks, work.depends, work.beside
	g.guard()
	p.filled = true
	p.graphs++
	return g, nil
}
