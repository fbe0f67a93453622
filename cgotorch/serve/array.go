package serve

import (
	"fmt"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Array is a tensor in Go memory. Its elements are raw bytes, in row-major order and in the
// machine's byte order.
type Array struct {
	DType cgotorch.DType
	Shape []int64
	Data  []byte
	// Files are encoded images in place of the other fields, one for each entry. They are for an
	// input with a [Spec.Decoder].
	Files [][]byte
}

// Of returns an Array of the elements, without a copy. Without a shape it has one dimension. The
// Array is valid as long as `data`.
func Of[T cgotorch.Element](data []T, shape ...int64) Array {
	if len(shape) == 0 {
		shape = []int64{int64(len(data))}
	}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), len(data)*int(unsafe.Sizeof(*new(T))))
	return Array{DType: cgotorch.DTypeOf[T](), Shape: shape, Data: bytes}
}

// Elements returns a copy of the elements. It fails with [cgotorch.ErrInvalidArgument] if T is not
// the Go type of the Array's dtype, or if Data has a part of an element.
func Elements[T cgotorch.Element](a Array) ([]T, error) {
	size := int(unsafe.Sizeof(*new(T)))
	if want := cgotorch.DTypeOf[T](); a.DType != want || len(a.Data)%size != 0 {
		return nil, fmt.Errorf("serve: the Array has %d bytes of %v, asked for as %v; ask for the Array's own dtype: %w", len(a.Data), a.DType, want, cgotorch.ErrInvalidArgument)
	}
	data := make([]T, len(a.Data)/size)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), len(a.Data)), a.Data)
	return data, nil
}
