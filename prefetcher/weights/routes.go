package weights

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

// Note [Routes to the host]
//
// The expert ids of a layer are copied to page-locked memory on a side stream, after the router
// has computed them. The router's stream does not wait for this copy. The host looks at the last
// id in that memory. This id appears there about 6 us after the router's kernel. The host queries
// CUDA for the event only when the id has appeared, because each query delays launches on other
// threads.
//
// Waking a goroutine takes longer than these 6 us. So a Do that waits for a route reads the
// memory itself, and the goroutine of the routes leaves that route to the Do. The goroutine of
// the routes handles the routes for which no Do waits.
//
// A pre-gated model chooses the experts for its next sparse layer, and chooses those of the first
// sparse layer from the embeddings. In any other model the router of the next layer can be run
// early to get a guess. A wrong guess costs a copy and never changes a result.

// routes copies the routes of layers from the device to the host without a wait. A route is the
// expert ids of a layer's tokens. It is copied to page-locked memory, after the work that makes
// it. A goroutine waits for the routes in the order in which they were sent. The goroutine calls
// `deliver` for each route that has arrived.
type routes struct {
	device  cgotorch.Device
	o       ExpertsOptions
	deliver func(*route)
	side    *cgotorch.Stream // for copies that the sender's stream does not wait for

	mapped sync.RWMutex // read-locked while the function `watch` reads the slabs' memory

	mu      sync.Mutex
	sent    []*route // sent and not delivered
	slabs   []*cgotorch.HostSlab
	pieces  map[int][][]int64 // free pieces of the slabs, by length
	closed  bool
	wake    chan struct{}
	dropped chan struct{} // closed by the method `close`
	ended   chan struct{} // closed when the goroutine has ended
}

// route is the expert ids of a layer's tokens, on their way to the host.
type route struct {
	tag any // a value of the sender

	mu      sync.Mutex
	routes  *routes
	memory  []int64 // page-locked; nil when the route has arrived
	event   *cgotorch.Event
	owners  atomic.Int32
	arrived atomic.Bool
	awaited atomic.Bool // a Do waits for the route and handles it itself

	experts []int64 // one for each token, when the route has arrived
	err     error   // set in place of experts if the device is lost
}

func newRoutes(device cgotorch.Device, o ExpertsOptions, deliver func(*route)) (*routes, error) {
	if o.Tokens < 0 {
		return nil, fmt.Errorf("weights: ExpertsOptions.Tokens is %d; it must not be negative: %w", o.Tokens, ErrInvalidOptions)
	}
	if o.Tokens == 0 {
		o.Tokens = 64
	}
	if o.Poll == 0 {
		o.Poll = 2 * time.Millisecond
	}
	q := &routes{device: device, o: o, deliver: deliver, pieces: map[int][][]int64{},
		wake: make(chan struct{}, 1), dropped: make(chan struct{}), ended: make(chan struct{})}
	var err error
	if q.side, err = cgotorch.NewStream(device, cgotorch.StreamOptions{Name: "routes", HighPriority: true}); err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	if err := q.allocate(o.Tokens); err != nil {
		return nil, errors.Join(err, q.free())
	}
	go q.run()
	return q, nil
}

// allocate makes more page-locked memory for routes. It cuts the memory into pieces. A piece has
// room for n ids, and holds one route. q.mu is held, or no other goroutine has q.
func (q *routes) allocate(n int) error {
	const count = 32
	slab, err := cgotorch.NewHostSlab(q.device, 8*n*count)
	if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	q.slabs = append(q.slabs, slab)
	all := cgotorch.View[int64](slab)
	for i := range count {
		q.pieces[n] = append(q.pieces[n], all[i*n:(i+1)*n:(i+1)*n])
	}
	return nil
}

// slabOf returns the slab in which a piece lies.
func (q *routes) slabOf(piece []int64) *cgotorch.HostSlab {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := uintptr(unsafe.Pointer(unsafe.SliceData(piece)))
	return q.slabs[slices.IndexFunc(q.slabs, func(slab *cgotorch.HostSlab) bool {
		memory := slab.Bytes()
		return first-uintptr(unsafe.Pointer(unsafe.SliceData(memory))) < uintptr(len(memory))
	})]
}

// piece takes a free piece for n ids. If no piece is free, it allocates more.
func (q *routes) piece(n int) ([]int64, error) {
	size := q.o.Tokens
	for size < n {
		size *= 2
	}
	if len(q.pieces[size]) == 0 {
		if err := q.allocate(size); err != nil {
			return nil, err
		}
	}
	free := q.pieces[size]
	p := free[len(free)-1]
	q.pieces[size] = free[:len(free)-1]
	return p[:n], nil
}

// notYet is the last number of a piece until the copy has written its ids.
const notYet = math.MinInt64

// send enqueues the copy of `ids` to the host, and returns at once. `ids` is Int64, contiguous,
// with one id for each token. If `aside` is not set, the copy is enqueued on x's stream. If `aside`
// is set, the copy is enqueued on the side stream. Then x's stream must wait for the copy
// (awaitCopy) before it writes `ids` again. A route takes memory until it arrives. If no free
// memory is left, `send` page-locks more.
//
// The method `send` fails with [cgotorch.ErrInvalidArgument] if `ids` is empty, not Int64 or not
// contiguous. It fails with [cgotorch.ErrNotCapturable] in a capture, and with [cgotorch.ErrClosed]
// after the method `close`.
func (q *routes) send(x *cgotorch.Exec, op string, ids *cgotorch.Tensor, aside bool, tag any) *route {
	if x.Capturing() {
		x.Fail(op, fmt.Errorf("weights: expert ids are sent inside a capture, and their way to the host is no part of the graph: send them behind the launch: %w", cgotorch.ErrNotCapturable))
	}
	if of := ids.DType(); of != cgotorch.Int64 || ids.Numel() == 0 || !contiguous(ids) {
		x.Fail(op, &cgotorch.Error{Op: op, Kind: cgotorch.ErrInvalidArgument, Message: fmt.Sprintf("the ids are %s with strides %v, want Int64, one for each token, without gaps: make them contiguous", ids, ids.Strides())})
	}
	n := int(ids.Numel())
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		x.Fail(op, fmt.Errorf("weights: routes: %w", cgotorch.ErrClosed))
	}
	memory, err := q.piece(n)
	if err != nil {
		x.Fail(op, err)
	}
	sent := false
	defer func() {
		if !sent { // a failure unwinds
			q.keep(memory)
		}
	}()
	atomic.StoreInt64(&memory[n-1], notYet)
	if aside {
		made := x.Record()
		x = x.On(q.side)
		x.Wait(made) //edge:route-behind-ids TestExperts_Modes checked
		made.Close()
	}
	cgotorch.CopyTo(x, ids, memory)
	r := &route{tag: tag, routes: q, memory: memory, event: x.Record()}
	r.owners.Add(1)
	if aside {
		r.owners.Add(1)
	}
	q.sent, sent = append(q.sent, r), true
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return r
}

// contiguous reports whether the elements of t lie row by row without gaps.
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

// look reports whether the route has arrived. It does not wait.
func (r *route) look() bool {
	if r.arrived.Load() {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory == nil {
		return true
	}
	done, err := r.event.Poll()
	if err == nil && !done { //edge:route-memory-behind-copy TestRoutes gpu
		return false
	}
	if done {
		err = r.routes.slabOf(r.memory).Await(r.event)
	}
	if r.err = err; err == nil {
		r.experts = append([]int64(nil), r.memory...)
	}
	r.release()
	r.routes.takeBack(r.memory)
	r.memory = nil
	r.arrived.Store(true)
	return true
}

// awaitCopy makes x's stream wait for the copy of the ids. The copy is done, or nearly done.
// After this wait the stream may write the ids again. awaitCopy is called once for each route
// that was sent aside.
func (r *route) awaitCopy(x *cgotorch.Exec) {
	defer r.release()
	x.Wait(r.event) //edge:experts-behind-route TestExperts_Route_SameMemory checked
}

// release gives up the route's event for one owner. The owners are the method `look` and, for a
// route that was sent aside, the method awaitCopy. The last owner closes the event.
func (r *route) release() {
	if r.owners.Add(-1) == 0 {
		r.event.Close()
	}
}

func (q *routes) takeBack(piece []int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.keep(piece)
}

// keep adds a piece to the free pieces. q.mu is held.
func (q *routes) keep(piece []int64) {
	piece = piece[:cap(piece)]
	q.pieces[len(piece)] = append(q.pieces[len(piece)], piece)
}

// await waits until the route has arrived. The Do that runs the layer calls it.
func (r *route) await() {
	// The lock is taken before `awaited` is set. Once `awaited` is set, the goroutine of the routes
	// leaves this route to the Do. That goroutine may then end, and the method `free` may free the
	// memory.
	r.routes.mapped.RLock()
	defer r.routes.mapped.RUnlock()
	r.awaited.Store(true)
	r.watch(nil)
}

// wait calls the method `watch`, and holds the read lock of `mapped` during the call.
func (r *route) wait(until *atomic.Bool) bool {
	r.routes.mapped.RLock()
	defer r.routes.mapped.RUnlock()
	return r.watch(until)
}

// watch waits until the route has arrived, and reports whether it has. It reads the last id in the
// memory again and again. It queries the event when the id has appeared. Before that it queries the
// event only rarely, because queries delay the goroutines that enqueue work.
//
// If `until` is not nil, the wait also ends when `until` becomes true. Between two looks `watch`
// then lets other goroutines run. A Do passes nil. A Do is locked to its thread, so letting other
// goroutines run would cost more time than the wait.
func (r *route) watch(until *atomic.Bool) bool {
	const seldom = 100 * time.Microsecond
	if r.look() {
		return true
	}
	r.mu.Lock()
	memory, event := r.memory, r.event
	r.mu.Unlock()
	if memory == nil {
		return true
	}
	last := (*int64)(unsafe.Pointer(&memory[len(memory)-1]))
	began := time.Now()
	for asked := began; ; {
		now := time.Now()
		if shown := atomic.LoadInt64(last) != notYet; shown || r.arrived.Load() || now.Sub(asked) > seldom {
			if r.look() {
				return true
			}
			asked = now
		}
		if now.Sub(began) > r.routes.o.Poll {
			break
		}
		if until != nil {
			if until.Load() {
				return false
			}
			runtime.Gosched()
		}
	}
	for !r.look() {
		<-event.Done()
	}
	return true
}

// run delivers the routes. After the method `close`, it still waits for the routes that are on
// their way, because their copies write memory.
func (q *routes) run() {
	defer close(q.ended)
	for {
		q.mu.Lock()
		var r *route
		if len(q.sent) > 0 {
			r = q.sent[0]
			q.sent = q.sent[1:]
		}
		closed := q.closed
		q.mu.Unlock()
		switch {
		case r != nil:
			// A Do that waits for the route handles it itself, on a thread that is awake.
			if r.wait(&r.awaited) && !closed {
				q.deliver(r)
			}
		case closed:
			return
		default:
			select {
			case <-q.wake:
			case <-q.dropped:
			}
		}
	}
}

// close drops the routes that are not delivered. It waits for their copies and frees the memory.
// The side stream stays open while a Do uses it. A second call of `close` then closes the side
// stream.
func (q *routes) close() error {
	q.mu.Lock()
	closed := q.closed
	q.closed = true
	q.mu.Unlock()
	if closed {
		<-q.ended
		return q.side.Close()
	}
	close(q.dropped)
	<-q.ended
	return q.free()
}

func (q *routes) free() error {
	q.mapped.Lock()
	defer q.mapped.Unlock()
	var errs []error
	for _, slab := range q.slabs {
		errs = append(errs, slab.Close())
	}
	return errors.Join(append(errs, q.side.Close())...)
}
