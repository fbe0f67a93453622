package cgotorch

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// HostRead is a copy of a tensor to host memory; see [Exec.ReadAsync]. It may be used from any
// goroutine.
type HostRead struct {
	event *Event // behind the copy

	mu   sync.RWMutex // locked for writing by Close alone
	host *Tensor      // on the CPU, page-locked
}

// ReadAsync enqueues a copy of t's elements to page-locked host memory. It does not wait: a
// program can read the loss of every step, one step late, and the device always has work. The
// first reads of a size allocate that memory, which may wait. t may be closed or changed
// afterwards.
//
// The result outlives the Do. The caller must Close it.
func (x *Exec) ReadAsync(t *Tensor) *HostRead {
	const op = "Exec.ReadAsync"
	x.check(op)
	x.open(op, t)
	var h *ct.Tensor
	x.must(op, ct.TensorRead(x.c, t.h, &h), t)
	runtime.KeepAlive(t)
	host := &Tensor{h: h}
	host.cleanup = runtime.AddCleanup(host, freeTensor, h)
	r := &HostRead{host: host}
	recorded := false
	defer func() {
		if !recorded {
			host.Close()
		}
	}()
	r.event = x.Record() //edge:read-behind-copy TestCheckStreams_HostReads checked
	recorded = true
	return r
}

// Done returns a channel that is closed when the elements have arrived; see [Event.Done].
func (r *HostRead) Done() <-chan struct{} {
	if r == nil {
		return alreadyDone
	}
	return r.event.Done()
}

// Item waits until the copy is done and returns the value of a tensor of one element. It fails
// with [ErrInvalidArgument] for another tensor, with [ErrDeviceLost], and with [ErrClosed].
func (r *HostRead) Item() (float64, error) {
	const op = "HostRead.Item"
	var v float64
	err := r.read(op, func(host *Tensor) error { return check(op, ct.TensorHostItem(host.h, &v)) })
	return float64(v), err
}

// Elements waits until the copy is done and returns the elements in row-major order. It fails
// with [ErrInvalidArgument] when T is not the tensor's dtype, with [ErrDeviceLost], and with
// [ErrClosed].
func Elements[T Element](r *HostRead) (data []T, err error) {
	const op = "Elements"
	err = r.read(op, func(host *Tensor) error {
		if got, want := host.DType(), DTypeOf[T](); got != want {
			return &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Shapes: host.String(),
				Message: fmt.Sprintf("the elements are %v, asked for as %v", got, want)}
		}
		data = make([]T, host.Numel())
		if len(data) > 0 {
			copy(data, unsafe.Slice((*T)(ct.TensorHostData(host.h)), len(data)))
		}
		return nil
	})
	return data, err
}

// read waits for the copy and calls fn with the tensor.
func (r *HostRead) read(op string, fn func(host *Tensor) error) error {
	if r == nil || r.host == nil {
		return refuse(op, ErrInvalidArgument, "the read is nil, or was not made by ReadAsync")
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.host.Closed() {
		return refuse(op, ErrClosed, "the read is closed")
	}
	if err := r.event.synchronize(op); err != nil { //edge:read-waits TestCheckStreams_HostReads checked
		return err
	}
	defer runtime.KeepAlive(r.host)
	return fn(r.host)
}

// Close frees the memory, which no other read uses before the copy is done. It waits for an
// Item or Elements of another goroutine. Closing twice does nothing.
func (r *HostRead) Close() error {
	if r == nil || r.host == nil {
		return nil
	}
	r.mu.Lock()            //edge:read-close-waits TestHostRead_CloseWaitsForReads
	defer r.mu.Unlock()    //edge:read-close-waits also
	r.host.Close()         //edge:read-memory-freed TestReadAsync
	return r.event.Close() //edge:read-event-freed TestReadAsync
}
