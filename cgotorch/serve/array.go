package serve

import (
	"fmt"
	"slices"
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

// cut returns the Array without what lies behind a length in some dimensions of its entries.
func (a Array) cut(dims []bool, length int64) Array {
	if length == 0 || !slices.Contains(dims, true) {
		return a
	}
	shape := slices.Clone(a.Shape)
	for i, follows := range dims {
		if follows {
			shape[i+1] = length
		}
	}
	small := Array{DType: a.DType, Shape: shape, Data: make([]byte, int(product(shape))*a.DType.Size())}
	copyOut(small.Data, shape, a.Data, a.Shape, a.DType.Size())
	return small
}

// copyOut copies the beginning of each dimension of a larger shape.
func copyOut(to []byte, shape []int64, from []byte, larger []int64, element int) {
	if slices.Equal(shape[1:], larger[1:]) {
		copy(to, from)
		return
	}
	toRow, fromRow := int(product(shape[1:]))*element, int(product(larger[1:]))*element
	for i := range int(shape[0]) {
		copyOut(to[i*toRow:(i+1)*toRow], shape[1:], from[i*fromRow:], larger[1:], element)
	}
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
