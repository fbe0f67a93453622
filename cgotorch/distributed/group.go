package distributed

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// A Group is this process as one rank of several. Its collectives are made inside a Do of a stream
// on the group's device. Any goroutine may make them, and the program gives them one order.
type Group struct {
	rank, world       int
	local, localWorld int
	device            cgotorch.Device
	timeout           time.Duration
	alone             bool      // one rank that no launcher has started; it has no handle and no store
	h                 *ct.Group // nil if alone, and after Close
	store             *store
	names             []string         // of the ranks, for messages
	side              *cgotorch.Stream // for collectives beside a backward; nil before the first Gradients
	foreign           []bool           // the ranks that are not of this library, and give no sign of life

	reducers []*Gradients // of several ranks, until their Close; guarded by state

	stops []*cgotorch.HostRead // of the last steps: above 0 if a rank wants to stop

	lockstep  lockstep
	making    atomic.Bool // a goroutine makes a collective
	monitor   monitor
	exchanged atomic.Int64 // the number of calls of Exchange

	state  sync.Mutex
	err    error
	failed chan struct{} // closed when err is set
	closed bool
	using  sync.WaitGroup // calls that use h
}

// Rank returns the number of this process in the group, from 0.
func (g *Group) Rank() int { return g.rank }

// World returns the number of ranks.
func (g *Group) World() int { return g.world }

// LocalWorld returns the number of ranks on this process's machine.
func (g *Group) LocalWorld() int { return g.localWorld }

// Device returns the device of this rank. It is cuda:LOCAL_RANK, or the CPU.
func (g *Group) Device() cgotorch.Device { return g.device }

// self names this rank in messages, which other ranks print too.
func (g *Group) self() string { return fmt.Sprint("rank ", g.rank) }

func (g *Group) String() string {
	return fmt.Sprintf("rank %d of %d on %s", g.rank, g.world, g.device)
}

// Err returns why the group has failed, or nil. The error wraps [cgotorch.ErrGroupFailed].
func (g *Group) Err() error {
	g.state.Lock()
	defer g.state.Unlock()
	return g.err
}

// fail ends the group. Only the first failure counts.
func (g *Group) fail(format string, args ...any) {
	g.state.Lock()
	defer g.state.Unlock()
	if g.err != nil || g.closed {
		return
	}
	g.err = &cgotorch.Error{Op: "distributed.Group", Kind: cgotorch.ErrGroupFailed, Message: fmt.Sprintf(format, args...)}
	close(g.failed)
	ct.GroupAbort(g.h)
}

// Close leaves the group. All work of its collectives must be done. Close waits for calls of other
// goroutines. Rank 0 also waits until the other ranks have left, for at most Options.Timeout.
// Graphs that contain collectives of the group must be closed before. A second Close does nothing.
//
// On rank 0 it fails with [cgotorch.ErrGroupFailed] if a rank has not left by then, or has made
// another number of collectives.
func (g *Group) Close() error {
	if g == nil {
		return nil
	}
	if err := g.device.Check(); errors.Is(err, cgotorch.ErrDeviceLost) { // its collectives will never end
		g.fail("its device is lost: %v", err)
	}
	g.state.Lock()
	if g.closed {
		g.state.Unlock()
		return nil
	}
	g.closed = true
	g.state.Unlock()
	g.using.Wait()
	for _, r := range g.stops {
		r.Close()
	}
	err := g.monitor.stop(g)
	ct.GroupFree(g.h)
	g.h = nil
	return errors.Join(err, g.side.Close(), g.store.close())
}

// makeSide makes the side stream, if there is none yet.
func (g *Group) makeSide() (err error) {
	g.state.Lock()
	defer g.state.Unlock()
	if g.side == nil {
		g.side, err = cgotorch.NewStream(g.device, cgotorch.StreamOptions{Name: "gradients", HighPriority: true})
	}
	return err
}

// collective makes one collective with x. `made` describes it for the other ranks.
func (g *Group) collective(x *cgotorch.Exec, op string, tensors []*cgotorch.Tensor, made call, run func(x ct.Exec, tensors []*ct.Tensor) *ct.Status) {
	op = "distributed." + op
	c, handles := inside.Core.Prepare(x, op, tensors)
	defer g.enter(x, op)()
	if g.alone {
		return
	}
	if !g.making.CompareAndSwap(false, true) {
		x.Fail(op, fmt.Errorf("another goroutine makes a collective of this group: let them take turns in the same order on each rank: %w", cgotorch.ErrInvalidArgument))
	}
	defer g.making.Store(false)
	made.at = inside.Core.Caller()
	undo := g.note(x, made)
	g.compareCalls(x, op)
	ran := false
	defer func() {
		if ran {
			return
		}
		// An operator that makes the collective has failed, and panics.
		if !g.explainPanic(x) {
			undo()
		}
	}()
	status := run(c, handles)
	ran = true
	if status != nil && ct.StatusCode(status) != ct.GroupFailed {
		undo()
	}
	g.must(x, op, status, tensors)
}

// must fails x's Do if a call has failed. The error of a failed group says why the group has
// failed.
func (g *Group) must(x *cgotorch.Exec, op string, status *ct.Status, tensors []*cgotorch.Tensor) {
	if status != nil && ct.StatusCode(status) == ct.GroupFailed {
		x.Fail(op, g.explain(inside.Core.Check(op, status)))
	}
	inside.Core.Must(x, op, status, tensors)
}

// comparesCalls reports whether the ranks compare each collective before they make it. Ranks of
// Python do not.
func (g *Group) comparesCalls() bool { return !g.device.IsCUDA() && !slices.Contains(g.foreign, true) }

// enter begins a use of the group's handle, which Close waits for. It fails x's Do if the group
// cannot be used. The caller calls `leave` at the end.
func (g *Group) enter(x *cgotorch.Exec, op string) (leave func()) {
	if x.Device() != g.device {
		x.Fail(op, fmt.Errorf("the stream is on %v, and the group on %v: use a stream of Group.Device: %w", x.Device(), g.device, cgotorch.ErrInvalidArgument))
	}
	g.state.Lock()
	err := g.unusable()
	if err == nil {
		g.using.Add(1)
	}
	g.state.Unlock()
	if err != nil {
		x.Fail(op, err)
	}
	return g.using.Done
}

// check fails x's Do if the group cannot be used.
func (g *Group) check(x *cgotorch.Exec, op string) { g.enter(x, op)() }

// unusable returns why the group cannot be used, or nil. The caller holds g.state.
func (g *Group) unusable() error {
	if g.closed {
		return fmt.Errorf("the group is closed: %w", cgotorch.ErrClosed)
	}
	return g.err
}

// note counts a collective. A captured collective counts at each launch of its graph, and the graph
// is out of date when the group has failed. A caller that then fails to make the collective calls
// `undo`.
func (g *Group) note(x *cgotorch.Exec, made call) (undo func()) {
	undo = func() {}
	if !x.Capturing() {
		undo = g.lockstep.drop
	}
	x.EachLaunch(func(*cgotorch.Exec) { g.lockstep.add(made) })
	x.DependsOn(func() string {
		g.state.Lock()
		defer g.state.Unlock()
		switch {
		case g.err != nil:
			return "its group of processes has failed"
		case g.closed:
			return "its group of processes was closed"
		}
		return ""
	})
	return undo
}

// explain returns the failure of the group after a call has failed. The other ranks know more than
// the call, so it waits a moment for them.
func (g *Group) explain(cause error) error {
	g.state.Lock()
	closed := g.closed
	g.state.Unlock()
	if !closed {
		g.monitor.trouble.Store(true)
		select {
		case <-g.failed:
		case <-time.After(7*g.monitor.interval + time.Second): // longer than monitor.differs takes
		}
	}
	g.fail("%v; no other rank is known to have a problem, and the last collective of %s is %s", cause, g.self(), g.lockstep.last())
	g.state.Lock()
	defer g.state.Unlock()
	if g.err == nil { // the group was closed meanwhile
		return g.unusable()
	}
	return g.err
}

// explainPanic gives the error of a call that panics the group's failure, and reports whether the
// error is of a failed group.
func (g *Group) explainPanic(x *cgotorch.Exec) bool {
	e := inside.Core.Failure(x)
	if e == nil || !errors.Is(e, cgotorch.ErrGroupFailed) {
		return false
	}
	e.Message = reason(g.explain(e))
	return true
}

// reason returns the text of the group's failure alone.
func reason(err error) string {
	var e *cgotorch.Error
	if errors.As(err, &e) && e.Message != "" {
		return e.Message
	}
	return err.Error()
}
