package cgotorch

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// Tensor is a handle of a LibTorch tensor. The methods of Tensor read metadata or close the
// handle. They never enqueue work. A closed or nil tensor has a nil shape and zero elements.
//
// Any number of goroutines may read a tensor at a time. But [Tensor.Close], [Tensor.Grad],
// [Tensor.SetGrad] and [Tensor.SetRequiresGrad] change it. While one of them runs, no other
// goroutine may use the tensor, and no Do that has it may run. Otherwise memory may be used after
// it is freed, which may end the process. Operators take no locks, because each of their arguments
// would need one.
type Tensor struct {
	h       *ct.Tensor
	owner   *scope // the scope of the tensor's Do; nil for a kept tensor
	cleanup runtime.Cleanup
	grad    *Tensor // handle of the gradient, closed with this handle

	notes *seam.Values // of other packages, on a parameter; nil for most tensors
}

func freeTensor(h *ct.Tensor) { ct.TensorFree(h) }

// take removes the handle from the tensor and returns it. The caller must free this handle and
// close the gradient's handle.
func (t *Tensor) take() *ct.Tensor {
	h := t.h
	if t.owner == nil {
		t.cleanup.Stop()
	}
	t.h, t.owner, t.grad = nil, nil, nil
	return h
}

// Close frees the handle. It may be called at any time at which no other goroutine uses the tensor.
// It never closes a result made from this tensor. The memory is freed when its last handle is
// closed. Memory that autograd has saved lives as long as its autograd graph. A second Close does
// nothing.
func (t *Tensor) Close() error {
	if t == nil || t.h == nil {
		return nil
	}
	grad := t.grad
	freeTensor(t.take()) //edge:tensor-freed TestKeep
	if grad != nil {
		return grad.Close()
	}
	return nil
}

// Closed reports whether the tensor has been closed or freed with its Do, or is nil.
func (t *Tensor) Closed() bool { return t == nil || t.h == nil }

// info describes a nil tensor as a closed one. So a module that asks for the shape of a nil input
// goes on to the operator, whose error names the argument.
func (t *Tensor) info() ct.TensorInfo {
	var info ct.TensorInfo
	if t == nil {
		return info
	}
	ct.TensorDescribe(t.h, &info)
	runtime.KeepAlive(t)
	return info
}

// Shape returns the number of elements along each dimension.
func (t *Tensor) Shape() []int64 { shape, _ := t.geometry(); return shape }

// Strides returns the distances, in elements, between neighbours along each dimension.
func (t *Tensor) Strides() []int64 { _, strides := t.geometry(); return strides }

func (t *Tensor) geometry() (shape, strides []int64) {
	if t.Closed() {
		return nil, nil
	}
	n := t.Dim()
	if n == 0 {
		return []int64{}, []int64{}
	}
	both := make([]int64, 2*n)
	ct.TensorGeometry(t.h, (*int64)(unsafe.Pointer(&both[0])), (*int64)(unsafe.Pointer(&both[n])))
	runtime.KeepAlive(t)
	return both[:n:n], both[n:]
}

// Dim returns the number of dimensions.
func (t *Tensor) Dim() int { return int(t.info().Dims) }

// Numel returns the number of elements.
func (t *Tensor) Numel() int64 { return t.info().Elements }

// DType returns the type of the elements.
func (t *Tensor) DType() DType { return DType(t.info().DType) }

// Device returns the device that the elements lie on.
func (t *Tensor) Device() Device { return deviceOf(t.info().Device) }

// RequiresGrad reports whether operators on this tensor are recorded for backward.
func (t *Tensor) RequiresGrad() bool { return t.info().RequiresGrad != 0 }

// SharesMemory reports whether both tensors lie in the same storage.
func (t *Tensor) SharesMemory(other *Tensor) bool {
	storage := t.info().Storage // 0 for a tensor without a storage, and for a closed tensor
	return storage != 0 && storage == other.info().Storage
}

// BumpVersion counts a write that LibTorch has not made itself. A later backward that needs the
// old value then fails.
func (t *Tensor) BumpVersion() { ct.TensorBumpVersion(t.h); runtime.KeepAlive(t) }

// Grad returns the gradient accumulated by [Exec.Backward], or nil if there is none. The gradient
// belongs to t, so do not close it. Each call returns the same Tensor until the gradient is
// removed.
func (t *Tensor) Grad() *Tensor {
	if t.h == nil {
		return nil
	}
	if t.grad == nil {
		t.grad = &Tensor{}
	}
	before := t.grad.h
	h := before
	ct.TensorGrad(t.h, &h)
	if h != before {
		if before != nil {
			t.grad.cleanup.Stop()
			t.grad.h = nil // whoever still holds this Tensor finds it closed
		}
		t.grad = &Tensor{h: h}
		if h != nil {
			t.grad.cleanup = runtime.AddCleanup(t.grad, freeTensor, h)
		}
	}
	runtime.KeepAlive(t)
	if h == nil {
		return nil
	}
	return t.grad
}

// SetRequiresGrad sets whether a leaf tensor of a floating dtype collects a gradient. For any
// other tensor it fails with [ErrInvalidArgument], and for a closed tensor with [ErrClosed].
func (t *Tensor) SetRequiresGrad(on bool) error {
	if t.h == nil {
		return refuse("Tensor.SetRequiresGrad", ErrClosed, "the tensor is closed")
	}
	defer runtime.KeepAlive(t)
	return check("Tensor.SetRequiresGrad", ct.TensorSetRequiresGrad(t.h, cbool(on)))
}

// SetGrad replaces the gradient by the tensor `grad`, which must have t's shape, dtype and
// device. A nil `grad` removes the gradient, without a kernel. SetGrad fails with
// [ErrInvalidArgument] if `grad` does not fit t, and with [ErrClosed] if t or `grad` is closed.
func (t *Tensor) SetGrad(grad *Tensor) error {
	if t.h == nil || grad != nil && grad.h == nil {
		return refuse("Tensor.SetGrad", ErrClosed, "the tensor, or the gradient, is closed")
	}
	defer runtime.KeepAlive(grad)
	var h *ct.Tensor
	if grad != nil {
		h = grad.h
	}
	defer runtime.KeepAlive(t)
	err := check("Tensor.SetGrad", ct.TensorSetGrad(t.h, h))
	if err == nil {
		t.Grad() // closes the handle of the old gradient
	}
	return err
}

// String returns the dtype and shape, such as "float32[2 3]".
func (t *Tensor) String() string {
	if t == nil {
		return "nil"
	}
	if t.h == nil {
		return "closed"
	}
	return describe(t.h)
}

func describeTensors(ts []*Tensor) string {
	handles := make([]*ct.Tensor, len(ts))
	for i, t := range ts {
		handles[i] = t.h
	}
	return describeAll(handles)
}

// describeAll lists the dtypes and shapes of tensors for an error. Of a long list it shows only
// the first tensors.
func describeAll(handles []*ct.Tensor) string {
	var texts []string
	for i, h := range handles {
		if i == 8 && len(handles) > 9 {
			texts = append(texts, "…")
			break
		}
		texts = append(texts, describe(h))
	}
	return strings.Join(texts, ", ")
}

func describe(h *ct.Tensor) string {
	if h == nil {
		return "nil"
	}
	var info ct.TensorInfo
	ct.TensorDescribe(h, &info)
	var b strings.Builder
	fmt.Fprint(&b, DType(info.DType), "[")
	if info.Dims > 0 {
		shape := make([]int64, info.Dims)
		ct.TensorGeometry(h, (*int64)(unsafe.Pointer(&shape[0])), nil)
		for i, n := range shape {
			if i > 0 {
				b.WriteByte(' ')
			}
			fmt.Fprint(&b, n)
		}
	}
	b.WriteByte(']')
	if d := deviceOf(info.Device); d.IsCUDA() {
		fmt.Fprint(&b, "@", d)
	}
	return b.String()
}

// HostSlice returns the elements of t in row-major order, as a slice of t's own memory. It does not
// wait, so enqueued work on t may still change the elements. The memory belongs to t and is valid
// until t is closed. A tensor that a Do has made is closed at the Do's end, unless it is kept.
// Afterwards the slice must not be read: other tensors lie in its memory, or none. [ToSlice]
// copies.
//
// t must lie on the CPU, have T's dtype, have elements, and have no gaps. Otherwise HostSlice
// fails with [ErrInvalidArgument]. For a closed tensor it fails with [ErrClosed].
func HostSlice[T Element](t *Tensor) ([]T, error) {
	const op = "HostSlice"
	if t.Closed() {
		return nil, refuse(op, ErrClosed, "the tensor is closed")
	}
	data := ct.TensorMemory(t.h)
	if got, want := t.DType(), DTypeOf[T](); got != want || data == nil {
		return nil, &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Shapes: t.String(),
			Message: fmt.Sprintf("want a dense tensor of %v on the CPU", want)}
	}
	return unsafe.Slice((*T)(data), t.Numel()), nil
}
