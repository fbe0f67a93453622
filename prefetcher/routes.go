package prefetcher

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// RoutesOptions are the options of [NewRoutes].
type RoutesOptions struct {
	// Tokens of a choice for which memory is page-locked beforehand; 0 means 64. For a larger one some is when it is first sent, which may wait.
	Tokens int

	// Poll is how long a goroutine that waits for a choice looks for it again and again, which keeps a core busy, before it sleeps until it is
	// told, 50 us later. 0 means 2 ms; below 0 it does not look.
	Poll time.Duration
}

// Routes brings what routers choose on the device to the host without a wait: each choice is copied to page-locked memory behind the work
// that makes it, and is received from a channel when its event is done.
type Routes struct {
	r   *routes
	out chan Route
}

// Route is the choice of one layer.
type Route struct {
	Layer   int     // as given to Send
	Experts []int64 // one for each token
	Err     error   // in place of Experts: the device is lost
}

// NewRoutes makes memory for choices on a device, page-locked for a CUDA one, and starts the goroutine that waits for the copies. The caller must
// Close it. It fails with [ErrInvalidOptions], [cgotorch.ErrNoDevice] and [cgotorch.ErrOutOfMemory].
func NewRoutes(device cgotorch.Device, o RoutesOptions) (*Routes, error) {
	c := &Routes{out: make(chan Route)}
	var err error
	c.r, err = newRoutes(device, o, func(s *sending) {
		select {
		case c.out <- s.route:
		case <-c.r.dropped:
		}
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Send enqueues the copy of ids, Int64 with one for each token, contiguous, on x's stream and returns at once; what is not received takes
// memory, of which some more may have to be page-locked. It fails with [cgotorch.ErrInvalidArgument] for another dtype, with
// [cgotorch.ErrNotCapturable] in a capture, and with [ErrClosed].
func (c *Routes) Send(x *cgotorch.Exec, layer int, ids *cgotorch.Tensor) {
	c.r.send(x, "Routes.Send", layer, ids, false, nil)
}

// C is the channel on which the choices come, in the order in which they were sent. It is closed by Close.
func (c *Routes) C() <-chan Route { return c.out }

// Close drops what has not been received and waits for copies that are under way. Closing twice does nothing.
func (c *Routes) Close() error {
	if !c.r.close() {
		return c.r.aside.Close() // where a Do held it
	}
	close(c.out)
	return c.r.free()
}

// routes hands what is sent to deliver, in order, on a goroutine of its own, each when it is there.
type routes struct {
	device  cgotorch.Device
	o       RoutesOptions
	deliver func(*sending)
	aside   *cgotorch.Stream // of copies that the sender's stream need not stand for

	mapped sync.RWMutex // held for reading by who looks at the slabs' memory, without look

	mu      sync.Mutex
	sent    []*sending // not delivered
	slabs   []*cgotorch.HostSlab
	pieces  map[int][][]int64 // free ones, by length
	closed  bool
	wake    chan struct{}
	dropped chan struct{} // closed by close
	ended   chan struct{} // closed when the goroutine has ended
}

// sending is a choice on its way.
type sending struct {
	tag any // the sender's

	mu      sync.Mutex
	of      *routes
	memory  []int64 // page-locked; nil when it has arrived
	event   *cgotorch.Event
	owners  atomic.Int32
	arrived atomic.Bool
	awaited atomic.Bool // by the Do that runs it
	route   Route
}

func newRoutes(device cgotorch.Device, o RoutesOptions, deliver func(*sending)) (*routes, error) {
	if o.Tokens < 0 {
		return nil, fmt.Errorf("prefetcher: RoutesOptions.Tokens is %d; it must not be negative: %w", o.Tokens, ErrInvalidOptions)
	}
	if o.Tokens == 0 {
		o.Tokens = 64
	}
	if o.Poll == 0 {
		o.Poll = 2 * time.Millisecond
	}
	r := &routes{device: device, o: o, deliver: deliver, pieces: map[int][][]int64{},
		wake: make(chan struct{}, 1), dropped: make(chan struct{}), ended: make(chan struct{})}
	var err error
	if r.aside, err = cgotorch.NewStream(device, cgotorch.StreamOptions{Name: "routes", HighPriority: true}); err != nil {
		return nil, fmt.Errorf("prefetcher: %w", err)
	}
	if err := r.allocate(o.Tokens); err != nil {
		return nil, errors.Join(err, r.free())
	}
	go r.run()
	return r, nil
}

// allocate makes pieces of so many numbers. r.mu is held, or nobody else has r.
func (r *routes) allocate(n int) error {
	const count = 32
	slab, err := cgotorch.NewHostSlab(8 * n * count)
	if err != nil {
		return fmt.Errorf("prefetcher: %w", err)
	}
	r.slabs = append(r.slabs, slab)
	if r.device.IsCUDA() {
		if err := slab.Pin(); err != nil {
			return fmt.Errorf("prefetcher: %w", err)
		}
	}
	all := unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(slab.Bytes()))), n*count)
	for i := range count {
		r.pieces[n] = append(r.pieces[n], all[i*n:(i+1)*n:(i+1)*n])
	}
	return nil
}

// slabOf returns the slab that a piece is part of.
func (r *routes) slabOf(piece []int64) *cgotorch.HostSlab {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := uintptr(unsafe.Pointer(unsafe.SliceData(piece)))
	return r.slabs[slices.IndexFunc(r.slabs, func(slab *cgotorch.HostSlab) bool {
		memory := slab.Bytes()
		return first-uintptr(unsafe.Pointer(unsafe.SliceData(memory))) < uintptr(len(memory))
	})]
}

// piece takes memory for n numbers.
func (r *routes) piece(n int) ([]int64, error) {
	size := r.o.Tokens
	for size < n {
		size *= 2
	}
	if len(r.pieces[size]) == 0 {
		if err := r.allocate(size); err != nil {
			return nil, err
		}
	}
	free := r.pieces[size]
	p := free[len(free)-1]
	r.pieces[size] = free[:len(free)-1]
	return p[:n], nil
}

// notYet is in the last number of a piece until the copy has been there.
const notYet = math.MinInt64

// send enqueues the copy of a choice, on x's stream, or aside: then x's stream is to wait for it before it writes ids again.
func (r *routes) send(x *cgotorch.Exec, op string, layer int, ids *cgotorch.Tensor, aside bool, tag any) *sending {
	if x.Capturing() {
		x.Fail(op, fmt.Errorf("prefetcher: a choice is sent inside a capture, and its way to the host is no part of the graph: send it behind the launch: %w", cgotorch.ErrNotCapturable))
	}
	if of := ids.DType(); of != cgotorch.Int64 || ids.Numel() == 0 || !contiguous(ids) {
		x.Fail(op, &cgotorch.Error{Op: op, Code: cgotorch.CodeInvalidArgument, Message: fmt.Sprintf("the ids are %v with strides %v, want Int64, one for each token, without gaps: make them contiguous", ids, ids.Strides())})
	}
	n := int(ids.Numel())
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		x.Fail(op, fmt.Errorf("prefetcher: routes: %w", ErrClosed))
	}
	memory, err := r.piece(n)
	if err != nil {
		x.Fail(op, err)
	}
	sent := false
	defer func() {
		if !sent { // unwinding
			r.keep(memory)
		}
	}()
	atomic.StoreInt64(&memory[n-1], notYet)
	if aside {
		made := x.Record()
		x = x.On(r.aside)
		x.Wait(made) //edge:route-behind-choice TestExperts_Modes checked
		made.Close()
	}
	cgotorch.CopyTo(x, ids, memory)
	s := &sending{tag: tag, of: r, memory: memory, event: x.Record(), route: Route{Layer: layer}}
	s.owners.Add(1)
	if aside {
		s.owners.Add(1)
	}
	r.sent, sent = append(r.sent, s), true
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return s
}

// contiguous reports whether the elements lie row by row without gaps.
func contiguous(t *cgotorch.Tensor) bool {
	shape, strides, next := t.Shape(), t.Strides(), int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] != 1 && strides[i] != next {
			return false
		}
		next *= shape[i]
	}
	return true
}

// look reports whether the choice is there. It does not wait.
func (s *sending) look() bool {
	if s.arrived.Load() {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory == nil {
		return true
	}
	done, err := s.event.Poll()
	if err == nil && !done { //edge:route-memory-behind-copy TestRoutes gpu
		return false
	}
	if done {
		err = s.of.slabOf(s.memory).Await(s.event)
	}
	if s.route.Err = err; err == nil {
		s.route.Experts = append([]int64(nil), s.memory...)
	}
	s.release()
	s.of.takeBack(s.memory)
	s.memory = nil
	s.arrived.Store(true)
	return true
}

// release gives up the event for one of its owners: who looks, and who has x's stream wait for a copy aside.
func (s *sending) release() {
	if s.owners.Add(-1) == 0 {
		s.event.Close()
	}
}

func (r *routes) takeBack(piece []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep(piece)
}

// keep is takeBack with r.mu held.
func (r *routes) keep(piece []int64) {
	piece = piece[:cap(piece)]
	r.pieces[len(piece)] = append(r.pieces[len(piece)], piece)
}

// await waits, in the Do that runs it, until the choice is there.
func (s *sending) await() {
	s.of.mapped.RLock() // before awaited: who is told to leave the choice may go on to free its memory
	defer s.of.mapped.RUnlock()
	s.awaited.Store(true)
	s.watch(nil)
}

// wait is watch by who does not hold mapped.
func (s *sending) wait(until *atomic.Bool) bool {
	s.of.mapped.RLock()
	defer s.of.mapped.RUnlock()
	return s.watch(until)
}

// watch waits until the choice is there, and reports whether it is: first by looking at the memory, where it shows at once. The event is asked for when
// it has shown, and seldom before, since questions hold up whoever enqueues work meanwhile. With until, other goroutines are let run, which costs one
// that is locked to its thread, as a Do's is, more than it waits; and the wait ends where until says so.
func (s *sending) watch(until *atomic.Bool) bool {
	const seldom = 100 * time.Microsecond
	if s.look() {
		return true
	}
	s.mu.Lock()
	memory, event := s.memory, s.event
	s.mu.Unlock()
	if memory == nil {
		return true
	}
	last := (*int64)(unsafe.Pointer(&memory[len(memory)-1]))
	began := time.Now()
	for asked := began; ; {
		now := time.Now()
		if shown := atomic.LoadInt64(last) != notYet; shown || s.arrived.Load() || now.Sub(asked) > seldom {
			if s.look() {
				return true
			}
			asked = now
		}
		if now.Sub(began) > s.of.o.Poll {
			break
		}
		if until != nil {
			if until.Load() {
				return false
			}
			runtime.Gosched()
		}
	}
	for !s.look() {
		<-event.Done()
	}
	return true
}

func (r *routes) run() {
	defer close(r.ended)
	for {
		r.mu.Lock()
		var s *sending
		if len(r.sent) > 0 {
			s = r.sent[0]
			r.sent = r.sent[1:]
		}
		closed := r.closed
		r.mu.Unlock()
		switch {
		case s != nil:
			// Also when nobody receives it: the copy writes the memory. A Do that waits for it sees to it itself, on a thread that is awake.
			if s.wait(&s.awaited) && !closed {
				r.deliver(s)
			}
		case closed:
			return
		default:
			select {
			case <-r.wake:
			case <-r.dropped:
			}
		}
	}
}

// close ends the goroutine, and reports whether it had not been ended before.
func (r *routes) close() bool {
	r.mu.Lock()
	closed := r.closed
	r.closed = true
	r.mu.Unlock()
	if !closed {
		close(r.dropped)
	}
	<-r.ended
	return !closed
}

func (r *routes) free() error {
	r.mapped.Lock()
	defer r.mapped.Unlock()
	var errs []error
	for _, slab := range r.slabs {
		errs = append(errs, slab.Close())
	}
	return errors.Join(append(errs, r.aside.Close())...)
}
