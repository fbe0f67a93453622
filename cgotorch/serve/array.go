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
}

// Of returns an Array of the elements, without a copy. Without a shape it has one dimension. The
// Array is valid as long as `data`.
func Of[T cgotorch.Element](data []T, shape ...int64) Array {
	if len(shape) == 0 {
		shape = []int64{int64(len(data))}
	}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), len(data)*int(unsafe.Sizeof(*new(T))))
	return Array{cgotorch.DTypeOf[T](), shape, bytes}
}

// Elements returns a copy of the elements. It fails with [cgotorch.ErrInvalidArgument] if T is not
// the Go type of the Array's dtype, or if Data has a part of an element.
func Elements[T cgotorch.Element](a Array) ([]T, error) {
	size := int(unsafe.Sizeof(*new(T)))
	if want := cgotorch.DTypeOf[T](); a.DType != want || len(a.Data)%size != 0 {
		return nil, fmt.Errorf("serve: the Array has %d bytes of %v, asked for as %v: %w", len(a.Data), a.DType, want, cgotorch.ErrInvalidArgument)
	}
	data := make([]T, len(a.Data)/size)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), len(a.Data)), a.Data)
	return data, nil
}

// Input describes an input of the served function, for one entry of a batch.
type Input struct {
	Name  string
	DType cgotorch.DType
	Shape []int64 // without the first dimension, which is that of the batch
}

// bytes returns the bytes of one entry.
func (in Input) bytes() int {
	n := in.DType.Size()
	for _, d := range in.Shape {
		n *= int(d)
	}
	return n
}

// entries returns how many entries the Array has, or why it does not fit.
func (in Input) entries(a Array) (int, error) {
	switch {
	case a.DType != in.DType:
		return 0, in.refuse("is %v, want %v", a.DType, in.DType)
	case len(a.Shape) != len(in.Shape)+1 || !slices.Equal(a.Shape[1:], in.Shape) || a.Shape[0] < 1:
		return 0, in.refuse("has the shape %v, want %s", a.Shape, in.shape())
	case a.Shape[0] > int64(len(a.Data)) || int(a.Shape[0])*in.bytes() != len(a.Data):
		return 0, in.refuse("has %d bytes, want %d for each of %d entries", len(a.Data), in.bytes(), a.Shape[0])
	}
	return int(a.Shape[0]), nil
}

// shape returns the shape with n for the number of entries, such as [n 3 224 224].
func (in Input) shape() string {
	text := "[n"
	for _, d := range in.Shape {
		text += fmt.Sprint(" ", d)
	}
	return text + "]"
}

func (in Input) refuse(format string, args ...any) error {
	return fmt.Errorf("serve: input %q %s: %w", in.Name, fmt.Sprintf(format, args...), cgotorch.ErrInvalidArgument)
}
