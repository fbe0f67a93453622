package data

import (
	"fmt"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Column is the samples of one field, one after another in memory.
type Column struct {
	Field
	N int // number of samples

	// Data is the elements in row-major order, in the machine's byte order. For samples of one shape
	// it is [N, Shape...].
	Data []byte

	ends []int // if the samples differ in length: the end of each sample in Data
}

// Of returns a column of numbers or of texts. An int becomes an int64. The shape is that of one
// sample, and none is a scalar. Texts have no shape, and are copied. A column of numbers uses the
// memory of `values`: do not change them. [NewTable] fails if `values` is not a whole number of
// samples.
func Of[T cgotorch.Element | int | string](name string, values []T, shape ...int64) Column {
	if texts, ok := any(values).([]string); ok {
		c := Column{Field: Field{Name: name, Text: true, Shape: shape}, N: len(texts)}
		for _, text := range texts {
			c.Data = append(c.Data, text...)
			c.ends = append(c.ends, len(c.Data))
		}
		return c
	}
	memory, dtype, _ := numbersOf(values)
	c := Column{Field: Field{Name: name, DType: dtype, Shape: shape}, Data: memory}
	if unit := c.unit(); unit > 0 {
		c.N = len(c.Data) / unit
	}
	return c
}

// OfRows returns a column whose samples differ in length. It copies the rows. An int becomes an
// int64.
func OfRows[T cgotorch.Element | int](name string, rows [][]T) Column {
	_, dtype, _ := numbersOf([]T(nil))
	c := Column{Field: Field{Name: name, DType: dtype, Shape: []int64{Variable}}, N: len(rows)}
	for _, row := range rows {
		c.Data = append(c.Data, bytesOf(row)...)
		c.ends = append(c.ends, len(c.Data))
	}
	return c
}

// Values returns the elements of a column in row-major order. They share the column's memory. Of a
// loader's batch they are valid until Release. Later they are those of another batch and, after the
// loader's Close, a read of them ends the process. A column of texts, or of another dtype than T's,
// is a mistake of the program: Values panics.
func Values[T cgotorch.Element](c Column) []T {
	if want := cgotorch.DTypeOf[T](); c.Text || c.DType != want {
		panic(fmt.Sprintf("data: Values: the column is %s, asked for as %v", c.Field, want))
	}
	return view[T](c.Data)
}

// Texts returns the texts of a column, or nil if it holds numbers. It copies the texts.
func (c Column) Texts() []string {
	if !c.Text {
		return nil
	}
	texts := make([]string, c.N)
	for i := range texts {
		texts[i] = string(c.sample(i))
	}
	return texts
}

// Tensor returns a tensor [N, Shape...] with a copy of the column, on x's device. Like
// [cgotorch.FromBytes] it waits until a CUDA device has read the column. The Do owns the tensor.
// It fails with [cgotorch.ErrInvalidArgument] for texts and for samples that differ in length.
func (c Column) Tensor(x *cgotorch.Exec) *cgotorch.Tensor {
	if c.variable() {
		x.Fail("Column.Tensor", fmt.Errorf("data: column %s is no tensor: %w", c.Field, cgotorch.ErrInvalidArgument))
	}
	return cgotorch.FromBytes(x, c.Data, c.DType, append([]int64{int64(c.N)}, c.Shape...))
}

// sample returns the memory of sample i.
func (c *Column) sample(i int) []byte {
	if c.ends == nil {
		unit := c.unit()
		return c.Data[i*unit : (i+1)*unit]
	}
	from := 0
	if i > 0 {
		from = c.ends[i-1]
	}
	return c.Data[from:c.ends[i]]
}

func (c *Column) check() error {
	if err := c.Field.check(); err != nil {
		return err
	}
	if c.variable() {
		if len(c.ends) != c.N || c.N > 0 && c.ends[c.N-1] != len(c.Data) {
			return fmt.Errorf("data: column %s: make columns of variable length with OfRows: %w", c.Field, ErrInvalidOptions)
		}
	} else if len(c.Data) != c.N*c.unit() {
		return fmt.Errorf("data: column %s has %d bytes, and a sample has %d: %w", c.Field, len(c.Data), c.unit(), ErrInvalidOptions)
	}
	return nil
}

// bytesOf returns `values` as bytes. An int has 8 bytes, because LibTorch needs a 64-bit machine.
func bytesOf[T cgotorch.Element | int](values []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(*new(T))))
}

// view returns `memory` as elements. The memory must be aligned for T.
func view[T cgotorch.Element](memory []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)/int(unsafe.Sizeof(*new(T))))
}

// aligned returns a piece of memory of length 0, aligned for every element.
func aligned(capacity int) []byte {
	words := make([]complex128, (capacity+15)/16)
	return bytesOf(words)[:0]
}
