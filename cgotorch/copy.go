package cgotorch

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// FromSlice returns a tensor of the given shape on x's device with a copy of data. On a CUDA
// device it waits until data is staged, behind earlier work of the stream. Copies that must not
// wait go through a [HostSlab] and [CopyFrom]. The Do owns the tensor.
//
// No shape means one dimension of len(data). [Exec.Full] makes a scalar. FromSlice fails with
// [ErrInvalidArgument] when the shape does not hold len(data) elements.
func FromSlice[T Element](x *Exec, data []T, shape ...int64) *Tensor {
	if len(shape) == 0 {
		shape = []int64{int64(len(data))}
	}
	return fromHost(x, unsafe.Pointer(unsafe.SliceData(data)), len(data)*int(unsafe.Sizeof(*new(T))), DTypeOf[T](), shape)
}

// FromBytes is [FromSlice] for elements given as raw bytes in the machine's byte order. An
// empty shape is a scalar.
func FromBytes(x *Exec, data []byte, dtype DType, shape []int64) *Tensor {
	return fromHost(x, unsafe.Pointer(unsafe.SliceData(data)), len(data), dtype, shape)
}

func fromHost(x *Exec, data unsafe.Pointer, bytes int, dtype DType, shape []int64) *Tensor {
	x.check("FromSlice")
	var h *ct.Tensor
	x.must("FromSlice", ct.TensorFromHost(x.c, data, int64(bytes), int32(dtype), shape, &h))
	return x.s.own(h)
}

// ToSlice waits for x's stream and returns the elements in row-major order. It fails with
// [ErrInvalidArgument] when T is not the tensor's dtype.
func ToSlice[T Element](x *Exec, t *Tensor) []T {
	x.check("ToSlice")
	x.open("ToSlice", t)
	if got, want := t.DType(), DTypeOf[T](); got != want {
		x.s.fail(&Error{Op: "ToSlice", Kind: ErrInvalidArgument, Caller: caller(), Shapes: t.String(),
			Message: fmt.Sprintf("the elements are %v, asked for as %v: convert with x.To", got, want)})
	}
	data := make([]T, t.Numel())
	toHost(x, t, unsafe.Pointer(unsafe.SliceData(data)), len(data)*int(unsafe.Sizeof(*new(T))))
	return data
}

// ToBytes waits for x's stream and returns the elements as raw bytes in row-major order and the
// machine's byte order.
func ToBytes(x *Exec, t *Tensor) []byte {
	x.check("ToBytes")
	x.open("ToBytes", t)
	data := make([]byte, t.Numel()*int64(t.DType().Size()))
	toHost(x, t, unsafe.Pointer(unsafe.SliceData(data)), len(data))
	return data
}

func toHost(x *Exec, t *Tensor, data unsafe.Pointer, bytes int) {
	x.must("ToSlice", ct.TensorToHost(x.c, t.h, data, int64(bytes)), t)
	runtime.KeepAlive(t)
}

// Item waits for x's stream and returns the value of a tensor of one element.
func (x *Exec) Item(t *Tensor) float64 {
	x.check("Exec.Item")
	x.open("Exec.Item", t)
	var v float64
	x.must("Exec.Item", ct.TensorItem(x.c, t.h, &v), t)
	runtime.KeepAlive(t)
	return float64(v)
}

// CopyFrom enqueues a copy of data into t. To a CUDA device it waits until data is staged,
// unless data is page-locked (see [HostSlab]). Page-locked data must stay unchanged until an
// event recorded behind the copy is done.
//
// t must be contiguous and hold len(data) elements of T's dtype. CopyFrom fails with
// [ErrInvalidArgument] for other tensors.
func CopyFrom[T Element](x *Exec, t *Tensor, data []T) {
	x.sameDType("CopyFrom", DTypeOf[T](), t)
	defer runtime.KeepAlive(t)
	x.must("CopyFrom", ct.TensorCopyFrom(x.c, t.h, unsafe.Pointer(unsafe.SliceData(data)), int64(len(data)*int(unsafe.Sizeof(*new(T))))), t)
}

// sameDType fails unless t can be used and its elements are of dtype.
func (x *Exec) sameDType(op string, dtype DType, t *Tensor) {
	x.check(op)
	x.open(op, t)
	if of := t.DType(); of != dtype {
		x.s.fail(&Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Shapes: t.String(),
			Message: fmt.Sprintf("the elements are %v, the tensor's %v", dtype, of)})
	}
}

// CopyTo enqueues a copy of t's elements into data. It waits for x's stream unless data is
// page-locked (see [HostSlab]). Page-locked data must be neither read nor written until an
// event recorded behind the copy is done.
//
// t must be contiguous and hold len(data) elements of T's dtype. CopyTo fails with
// [ErrInvalidArgument] for other tensors.
func CopyTo[T Element](x *Exec, t *Tensor, data []T) {
	x.sameDType("CopyTo", DTypeOf[T](), t)
	defer runtime.KeepAlive(t)
	x.must("CopyTo", ct.TensorCopyTo(x.c, t.h, unsafe.Pointer(unsafe.SliceData(data)), int64(len(data)*int(unsafe.Sizeof(*new(T))))), t)
}

// HostCopy is a copy that [Stream.CopyFrom] enqueues.
type HostCopy struct {
	To   *Tensor // the target
	From []byte  // the elements of To
}

// CopyFrom enqueues waits for the events in behind, and then the copies one after another,
// outside any Do. Each copy waits as the function [CopyFrom] does. The tensors must have been
// made and used so far in work that this stream waits for.
//
// CopyFrom returns timing events from before the first copy and behind the last. The caller
// closes both. Where CopyFrom fails some copies may be under way.
func (s *Stream) CopyFrom(behind []*Event, copies ...HostCopy) (began, done *Event, err error) {
	// All copies are one call into the core. With cold caches, behind other work of the host, it
	// takes a third of the time of four calls.
	const op = "Stream.CopyFrom"
	escape(copies) // their addresses become numbers, and stacks move
	each := make([]ct.HostCopy, 0, len(copies))
	for _, c := range copies {
		if c.To == nil || c.To.h == nil {
			return nil, nil, closedTensor(op)
		}
		each = append(each, ct.HostCopy{Tensor: uintptr(unsafe.Pointer(c.To.h)), Data: uintptr(unsafe.Pointer(unsafe.SliceData(c.From))), Bytes: uintptr(len(c.From))})
	}
	h, err := s.lock(op)
	if err != nil {
		return nil, nil, err
	}
	defer s.mu.Unlock() // which events are locked behind, as by Wait
	events := make([]uintptr, 0, len(behind))
	for i, e := range behind {
		if slices.Contains(behind[:i], e) {
			continue // a lock for reading must not be taken twice
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

// CopyTo is the function [CopyTo] for bytes, the elements of t, outside any Do.
func (s *Stream) CopyTo(t *Tensor, data []byte) error {
	const op = "Stream.CopyTo"
	if t == nil || t.h == nil {
		return closedTensor(op)
	}
	h, err := s.lock(op)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	defer runtime.KeepAlive(t)
	return direct(op, h, func(x ct.Exec) *ct.Status {
		return ct.TensorCopyTo(x, t.h, unsafe.Pointer(unsafe.SliceData(data)), int64(len(data)))
	}, func() []*Tensor { return []*Tensor{t} })
}

// direct calls the core on a stream that is locked, without a Do.
func direct(op string, h *ct.Stream, call func(x ct.Exec) *ct.Status, of func() []*Tensor) error {
	runtime.LockOSThread() // between the two calls
	defer runtime.UnlockOSThread()
	x := ct.Exec{Stream: h, Thread: ct.ThreadID(), Autocast: -1}
	if theChecker.on.Load() {
		x.Site = uint64(callSite())
	}
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

var ( // hide from the compiler that nothing escapes
	neverTrue bool
	escaped   any
)

// escape makes the memory behind v lie on the heap, where nothing moves.
func escape(v any) {
	if neverTrue {
		escaped = v
	}
}

// FromDevice enqueues a copy of t in new memory of x's device, in t's memory order. It waits
// only where t lies on the CPU and x runs on a CUDA device: until the elements are staged. The
// Do owns the copy. t may be closed at once. Nothing is recorded for backward.
//
// t may lie on another device, which an operator's argument may not. x's stream alone orders
// the copy, so it must wait for t's elements first: events cross devices.
//
// FromDevice fails with [ErrInvalidArgument] for a tensor with gaps (a strided view). It also
// fails for a tensor on a CUDA device where x runs on the CPU: read it there, with [ToSlice] or
// [Exec.ReadAsync].
func (x *Exec) FromDevice(t *Tensor) *Tensor {
	const op = "Exec.FromDevice"
	x.check(op)
	x.open(op, t)
	var h *ct.Tensor
	x.must(op, ct.TensorFromDevice(x.c, t.h, &h), t)
	runtime.KeepAlive(t)
	return x.s.own(h)
}
