package cgotorch

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// FromSlice returns a tensor of the given shape on x's device, with a copy of `data`. For a CUDA
// device FromSlice waits until CUDA has read `data`. CUDA reads `data` after the stream's earlier
// work. For a copy that must not wait, use [CopyFrom] with a page-locked [HostSlab]. The Do owns
// the tensor.
//
// Without a shape the tensor has one dimension of len(data) elements. To make a scalar, use
// [Exec.Full]. FromSlice fails with [ErrInvalidArgument] if the shape does not hold len(data)
// elements.
func FromSlice[T Element](x *Exec, data []T, shape ...int64) *Tensor {
	if len(shape) == 0 {
		shape = []int64{int64(len(data))}
	}
	if n := numel(shape); n != int64(len(data)) && n > 0 && n < 1<<40 && slices.Min(shape) > 0 { // the core tells of other shapes
		x.check("FromSlice")
		x.s.fail(refuse("FromSlice", ErrInvalidArgument, "a tensor of shape %v has %d elements; the slice has %d", shape, n, len(data)))
	}
	return fromHost(x, "FromSlice", unsafe.Pointer(unsafe.SliceData(data)), len(data)*int(unsafe.Sizeof(*new(T))), DTypeOf[T](), shape)
}

// FromRows is [FromSlice] for rows: the result is [len(rows), len(rows[0])]. It fails with
// [ErrInvalidArgument] if the rows differ in length.
func FromRows[T Element](x *Exec, rows [][]T) *Tensor {
	columns := 0
	if len(rows) > 0 {
		columns = len(rows[0])
	}
	data := make([]T, 0, len(rows)*columns)
	for i, row := range rows {
		if len(row) != columns {
			x.check("FromRows")
			x.s.fail(refuse("FromRows", ErrInvalidArgument, "row %d has %d elements, and row 0 has %d", i, len(row), columns))
		}
		data = append(data, row...)
	}
	return FromSlice(x, data, int64(len(rows)), int64(columns))
}

// ToRows is [ToSlice] for a tensor of two dimensions: it returns its rows. It waits for x's stream.
func ToRows[T Element](x *Exec, t *Tensor) [][]T {
	if t.Dim() != 2 {
		x.check("ToRows")
		x.s.fail(refuse("ToRows", ErrInvalidArgument, "the tensor is %s, want two dimensions", t))
	}
	data := ToSlice[T](x, t)
	shape := t.Shape()
	rows := make([][]T, shape[0])
	for i := range rows {
		n := int(shape[1])
		rows[i] = data[i*n : (i+1)*n : (i+1)*n]
	}
	return rows
}

// FromBytes is [FromSlice] for elements that are given as raw bytes, in the machine's byte order.
// An empty shape makes a scalar.
func FromBytes(x *Exec, data []byte, dtype DType, shape []int64) *Tensor {
	return fromHost(x, "FromBytes", unsafe.Pointer(unsafe.SliceData(data)), len(data), dtype, shape)
}

func fromHost(x *Exec, op string, data unsafe.Pointer, bytes int, dtype DType, shape []int64) *Tensor {
	x.check(op)
	var h *ct.Tensor
	x.must(op, ct.TensorFromHost(x.c, data, int64(bytes), int32(dtype), shape, &h))
	return x.s.own(h)
}

// ToSlice returns the elements in row-major order. It waits for x's stream. It fails with
// [ErrInvalidArgument] if T is not the Go type of the tensor's dtype.
func ToSlice[T Element](x *Exec, t *Tensor) []T {
	x.check("ToSlice")
	x.open("ToSlice", t)
	x.elementsAre("ToSlice", DTypeOf[T](), t)
	data := make([]T, t.Numel())
	toHost(x, "ToSlice", t, unsafe.Pointer(unsafe.SliceData(data)), len(data)*int(unsafe.Sizeof(*new(T))))
	return data
}

// elementsAre fails if t has another dtype than `want`.
func (x *Exec) elementsAre(op string, want DType, t *Tensor) {
	if got := t.DType(); got != want {
		x.s.fail(&Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Shapes: t.String(),
			Message: fmt.Sprintf("the elements are %v, asked for as %v: convert with x.To", got, want)})
	}
}

// ToBytes returns the elements as raw bytes, in row-major order and in the machine's byte order.
// It waits for x's stream.
func ToBytes(x *Exec, t *Tensor) []byte {
	x.check("ToBytes")
	x.open("ToBytes", t)
	data := make([]byte, t.Numel()*int64(t.DType().Size()))
	toHost(x, "ToBytes", t, unsafe.Pointer(unsafe.SliceData(data)), len(data))
	return data
}

func toHost(x *Exec, op string, t *Tensor, data unsafe.Pointer, bytes int) {
	x.must(op, ct.TensorToHost(x.c, t.h, data, int64(bytes)), t)
	runtime.KeepAlive(t)
}

// Item returns the value of a tensor of one element. It waits for x's stream. A float64 holds
// integers exactly up to 2^53 only: [ToSlice] reads all values of all dtypes.
func (x *Exec) Item(t *Tensor) float64 {
	x.check("Exec.Item")
	x.open("Exec.Item", t)
	var v float64
	x.must("Exec.Item", ct.TensorItem(x.c, t.h, &v), t)
	runtime.KeepAlive(t)
	return float64(v)
}

// CopyFrom enqueues a copy of `data` into t. It waits if t is on a CUDA device and `data` is not
// page-locked: then it returns when CUDA has read `data`. A [HostSlab] can be page-locked.
// Page-locked `data` must stay unchanged until the copy is done. To know when the copy is done,
// record an event after the call.
//
// t must be contiguous and hold len(data) elements of T's dtype. Otherwise CopyFrom fails with
// [ErrInvalidArgument].
func CopyFrom[T Element](x *Exec, t *Tensor, data []T) {
	x.sameDType("CopyFrom", DTypeOf[T](), t)
	defer runtime.KeepAlive(t)
	x.must("CopyFrom", ct.TensorCopyFrom(x.c, t.h, unsafe.Pointer(unsafe.SliceData(data)), int64(len(data)*int(unsafe.Sizeof(*new(T))))), t)
}

// sameDType fails if t is closed, or if t's dtype is not the given dtype.
func (x *Exec) sameDType(op string, dtype DType, t *Tensor) {
	x.check(op)
	x.open(op, t)
	if of := t.DType(); of != dtype {
		x.s.fail(&Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Shapes: t.String(),
			Message: fmt.Sprintf("the elements are %v, the tensor's %v", dtype, of)})
	}
}

// CopyTo enqueues a copy of t's elements into `data`. If `data` is not page-locked, CopyTo waits
// for x's stream. A [HostSlab] can be page-locked. Page-locked `data` must be neither read nor
// written until the copy is done. To know when the copy is done, record an event after the call.
//
// t must be contiguous and hold len(data) elements of T's dtype. Otherwise CopyTo fails with
// [ErrInvalidArgument].
func CopyTo[T Element](x *Exec, t *Tensor, data []T) {
	x.sameDType("CopyTo", DTypeOf[T](), t)
	defer runtime.KeepAlive(t)
	x.must("CopyTo", ct.TensorCopyTo(x.c, t.h, unsafe.Pointer(unsafe.SliceData(data)), int64(len(data)*int(unsafe.Sizeof(*new(T))))), t)
}

// HostCopy is a copy that [Stream.CopyFrom] enqueues.
type HostCopy struct {
	To   *Tensor // the target
	From []byte  // the new elements of To, as raw bytes
}

// CopyFrom makes the stream wait for the events in `behind`, and then enqueues the copies one
// after another. It is called outside a Do. If a target is on a CUDA device and the copy's bytes
// are not page-locked, CopyFrom waits until CUDA has read these bytes. Earlier work that made or
// used the target tensors must be on this stream, or this stream must wait for that work.
//
// CopyFrom returns two timing events. `began` is recorded before the first copy, and `done` after
// the last copy. Close frees them early, as those of [Stream.Record]. If CopyFrom fails, some of
// the copies may already be enqueued.
func (s *Stream) CopyFrom(behind []*Event, copies ...HostCopy) (began, done *Event, err error) {
	// All copies are enqueued by one call of the core. Four copies by one call take a third of the
	// time of four calls, if other work of the host has emptied the CPU's caches.
	const op = "Stream.CopyFrom"
	var pinned runtime.Pinner // the core gets addresses as numbers, which Go does not adjust when it moves a stack
	defer pinned.Unpin()
	each := make([]ct.HostCopy, 0, len(copies))
	for _, c := range copies {
		if c.To == nil || c.To.h == nil {
			return nil, nil, closedTensor(op)
		}
		pinned.Pin(unsafe.SliceData(c.From))
		each = append(each, ct.HostCopy{Tensor: uintptr(unsafe.Pointer(c.To.h)), Data: uintptr(unsafe.Pointer(unsafe.SliceData(c.From))), Bytes: uintptr(len(c.From))})
	}
	h, err := s.lock(op)
	if err != nil {
		return nil, nil, err
	}
	defer s.turn.give() // the turn is taken before the events, as in Wait
	events := make([]uintptr, 0, len(behind))
	for i, e := range behind {
		if e == nil || slices.Contains(behind[:i], e) {
			continue // a goroutine must not lock an RWMutex for reading twice
		}
		h, err := e.lock(op)
		if err != nil {
			return nil, nil, err
		}
		defer e.mu.RUnlock()
		events = append(events, uintptr((unsafe.Pointer(h))))
	}
	var first, last *ct.Event
	err = direct(op, h, func(x ct.Exec) *ct.Status {
		return ct.CopiesFrom(x, events, each, &first, &last)
	}, func() (ts []*Tensor) {
		for _, c := range copies {
			ts = append(ts, c.To)
		}
		return ts
	})
	runtime.KeepAlive(copies)
	if err != nil {
		return nil, nil, err
	}
	return ownEvent(first), ownEvent(last), nil
}

// CopyTo enqueues a copy of the elements of t into `data`, as raw bytes. It is called outside a
// Do. If `data` is not page-locked, CopyTo waits for the stream. Page-locked `data` must be
// neither read nor written until the copy is done. t must be contiguous and hold len(data) bytes.
// Otherwise CopyTo fails with [ErrInvalidArgument].
func (s *Stream) CopyTo(t *Tensor, data []byte) error {
	const op = "Stream.CopyTo"
	if t == nil || t.h == nil {
		return closedTensor(op)
	}
	h, err := s.lock(op)
	if err != nil {
		return err
	}
	defer s.turn.give()
	defer runtime.KeepAlive(t)
	return direct(op, h, func(x ct.Exec) *ct.Status {
		return ct.TensorCopyTo(x, t.h, unsafe.Pointer(unsafe.SliceData(data)), int64(len(data)))
	}, func() []*Tensor { return []*Tensor{t} })
}

// direct makes a call of the core outside a Do, on a stream that the caller has locked. The
// function `of` returns the tensors that an error of the call describes.
func direct(op string, h *ct.Stream, call func(x ct.Exec) *ct.Status, of func() []*Tensor) error {
	runtime.LockOSThread() // ct.ThreadID and the function `call` must run on one thread
	defer runtime.UnlockOSThread()
	x := ct.Exec{Stream: h, Thread: ct.ThreadID(), Autocast: -1}
	x.Site = uint64(callSite())
	status := call(x)
	if status == nil {
		return nil
	}
	e := statusError(op, status)
	e.Shapes = describeTensors(of())
	return e
}

func closedTensor(op string) *Error {
	return refuse(op, ErrClosed, "the tensor is nil or closed")
}

// FromDevice enqueues a copy of t into new memory of x's device. The elements of the copy have
// the same order in memory as the elements of t. The copy is not recorded for backward.
// FromDevice waits if t is on the CPU and x runs on a CUDA device: then it returns when CUDA has
// read the elements. The Do owns the copy. t may be closed when FromDevice has returned.
//
// An operator accepts only tensors of x's device, but FromDevice accepts a tensor of another
// device. Only x's stream orders the copy, so x's stream must first wait for the work that writes
// t. A stream can wait for an event of another device.
//
// FromDevice fails with [ErrInvalidArgument] for a tensor with gaps (a strided view). It also
// fails if t is on a CUDA device and x runs on the CPU. In this case read t on its own device,
// with [ToSlice] or [Exec.ReadAsync].
func (x *Exec) FromDevice(t *Tensor) *Tensor {
	const op = "Exec.FromDevice"
	x.check(op)
	x.open(op, t)
	var h *ct.Tensor
	x.must(op, ct.TensorFromDevice(x.c, t.h, &h), t)
	runtime.KeepAlive(t)
	return x.s.own(h)
}
