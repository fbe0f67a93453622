package prefetcher

import (
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Routes brings what routers choose on the device to the host without a wait: each choice is copied to page-locked memory behind the work
// that makes it, and is received from a channel when its event is done.
type Routes struct {
	out chan Route
	end sync.WaitGroup

	mu      sync.Mutex
	sent    []sending // not received by the goroutine yet
	wake    chan struct{}
	closed  bool
	dropped chan struct{} // closed by Close
}

// Route is the choice of one layer.
type Route struct {
	Layer   int     // as given to Send
	Experts []int64 // one for each token
	Err     error   // in place of Experts: the device is lost
}

type sending struct {
	layer int
	read  *cgotorch.HostRead
}

// NewRoutes starts the goroutine that waits for the copies. The caller must Close it.
func NewRoutes() *Routes {
	r := &Routes{out: make(chan Route), wake: make(chan struct{}, 1), dropped: make(chan struct{})}
	r.end.Add(1)
	go r.deliver()
	return r
}

// Send enqueues the copy of ids, Int64 with one for each token, on x's stream and returns at once. It fails with [cgotorch.ErrInvalidArgument] for
// another dtype, and with [ErrClosed].
func (r *Routes) Send(x *cgotorch.Exec, layer int, ids *cgotorch.Tensor) {
	const op = "Routes.Send"
	if of := ids.DType(); of != cgotorch.Int64 {
		x.Fail(op, &cgotorch.Error{Op: op, Code: cgotorch.CodeInvalidArgument, Message: "the ids are " + of.String() + ", want Int64"})
	}
	read := x.ReadAsync(ids)
	r.mu.Lock()
	closed := r.closed
	if !closed {
		r.sent = append(r.sent, sending{layer, read})
	}
	r.mu.Unlock()
	if closed {
		read.Close()
		x.Fail(op, ErrClosed)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// C is the channel on which the choices come, in the order in which they were sent. It is closed by Close.
func (r *Routes) C() <-chan Route { return r.out }

func (r *Routes) deliver() {
	defer r.end.Done()
	defer close(r.out)
	for {
		s, ok := r.next()
		if !ok {
			return
		}
		route := Route{Layer: s.layer}
		route.Experts, route.Err = cgotorch.Elements[int64](s.read)
		s.read.Close()
		select {
		case r.out <- route:
		case <-r.dropped:
			return
		}
	}
}

func (r *Routes) next() (sending, bool) {
	for {
		r.mu.Lock()
		if len(r.sent) > 0 {
			s := r.sent[0]
			r.sent = r.sent[1:]
			r.mu.Unlock()
			return s, true
		}
		closed := r.closed
		r.mu.Unlock()
		if closed {
			return sending{}, false
		}
		select {
		case <-r.wake:
		case <-r.dropped:
		}
	}
}

// Close drops what has not been received and waits for a copy that is under way. Closing twice does nothing.
func (r *Routes) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	sent := r.sent
	r.sent = nil
	r.mu.Unlock()
	close(r.dropped)
	r.end.Wait()
	for _, s := range sent {
		s.read.Close()
	}
	return nil
}
