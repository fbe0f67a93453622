package cgotorch

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// HostRead is a copy of a tensor in host memory, made by [Exec.ReadAsync]. It may be used from
// any goroutine.
type HostRead struct {
	event *Event // recorded after the copy

	mu   sync.RWMutex // only Close locks mu for writing
	host *Tensor      // on the CPU, page-locked
}

// ReadAsync enqueues a copy of t's elements to page-locked host memory. It does not wait for the
// copy. The first reads of each size allocate host memory, and this allocation may wait. With
// ReadAsync a program can read the loss of each step one step later, so that the device always
// has work. t may be closed or changed after the call.
//
// The HostRead outlives the Do. The caller must close it.
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

// Done returns a channel that is closed when the elements are in host memory: see [Event.Done].
func (r *HostRead) Done() <-chan struct{} {
	if r == nil {
		return alreadyDone()
	}
	return r.event.Done()
}

// Item returns the value of a tensor of one element. It waits until the copy is done. It fails
// with [ErrInvalidArgument] for a tensor with more or fewer elements. It fails with
// [ErrDeviceLost] if the device is lost, and with [ErrClosed] after Close.
func (r *HostRead) Item() (float64, error) {
	const op = "HostRead.Item"
	var v float64
	err := r.read(op, func(host *Tensor) error { return check(op, ct.TensorHostItem(host.h, &v)) })
	return float64(v), err
}

// Elements returns the elements in row-major order. It waits until the copy is done. It fails
// with [ErrInvalidArgument] if T is not the Go type of the tensor's dtype. It fails with
// [ErrDeviceLost] if the device is lost, and with [ErrClosed] after Close.
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

// Bytes returns the elements as raw bytes, in row-major order and in the machine's byte order. It
// waits until the copy is done. It fails with [ErrDeviceLost] if the device is lost, and with
// [ErrClosed] after Close.
func (r *HostRead) Bytes() (data []byte, err error) {
	err = r.read("HostRead.Bytes", func(host *Tensor) error {
		data = make([]byte, host.Numel()*int64(host.DType().Size()))
		if len(data) > 0 {
			copy(data, unsafe.Slice((*byte)(ct.TensorHostData(host.h)), len(data)))
		}
		return nil
	})
	return data, err
}

// read waits for the copy and calls fn with the tensor in host memory.
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

// Close frees the host memory. If the copy is not done yet, no other read uses this memory until
// the copy is done. Close waits until calls of Item and Elements on other goroutines have
// returned. A second Close does nothing.
func (r *HostRead) Close() error {
	if r == nil || r.host == nil {
		return nil
	}
	r.mu.Lock()            //edge:read-close-waits TestHostRead_CloseWaitsForReads
	defer r.mu.Unlock()    //edge:read-close-waits also
	r.host.Close()         //edge:read-memory-freed TestReadAsync
	return r.event.Close() //edge:read-event-freed TestReadAsync
}
