package data

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Sample is one sample: a value for each field, by the field's name. A value is one of these:
//
//   - a number of the field's dtype, such as float32, for a field without Shape
//   - a slice of such numbers, such as []float32, in row-major order
//   - a string, for a field with Text
//
// An int or []int stands for any dtype of integers. A float64 or []float64 stands for float32 too.
type Sample map[string]any

// value returns sample i of the column.
func (c *Column) value(i int) any {
	b := c.sample(i)
	if c.Text {
		return string(b)
	}
	scalar := len(c.Shape) == 0
	switch c.DType {
	case cgotorch.Uint8:
		return copied[uint8](b, scalar)
	case cgotorch.Int8:
		return copied[int8](b, scalar)
	case cgotorch.Int16:
		return copied[int16](b, scalar)
	case cgotorch.Int32:
		return copied[int32](b, scalar)
	case cgotorch.Int64:
		return copied[int64](b, scalar)
	case cgotorch.Uint16:
		return copied[uint16](b, scalar)
	case cgotorch.Uint32:
		return copied[uint32](b, scalar)
	case cgotorch.Uint64:
		return copied[uint64](b, scalar)
	case cgotorch.Float32:
		return copied[float32](b, scalar)
	case cgotorch.Float64:
		return copied[float64](b, scalar)
	case cgotorch.Bool:
		return copied[bool](b, scalar)
	case cgotorch.Complex64:
		return copied[complex64](b, scalar)
	case cgotorch.Complex128:
		return copied[complex128](b, scalar)
	case cgotorch.Float16:
		return copied[cgotorch.Float16Bits](b, scalar)
	default:
		return copied[cgotorch.BFloat16Bits](b, scalar)
	}
}

// copied returns memory as one number or as a new slice.
func copied[T cgotorch.Element](memory []byte, scalar bool) any {
	if scalar {
		var v T
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), memory)
		return v
	}
	values := make([]T, len(memory)/int(unsafe.Sizeof(*new(T))))
	copy(bytesOf(values), memory)
	return values
}

// appendValue adds the value of one sample to the column. N stays as it is.
func (c *Column) appendValue(s Sample) error {
	v, ok := s[c.Name]
	if !ok {
		return fmt.Errorf("data: the sample has no value %q: %w", c.Name, ErrBadRow)
	}
	at := len(c.Data)
	elements := 0
	if text, isText := v.(string); isText && c.Text {
		c.grow(len(text))
		copy(c.Data[at:], text)
		c.ends = append(c.ends, len(c.Data))
		return nil
	}
	if !c.Text {
		elements, ok = c.appendNumbers(v)
	}
	if c.Text || !ok {
		return fmt.Errorf("data: field %s: the sample's value is a %T; give values of the field's dtype: %w", c.Field, v, ErrBadRow)
	}
	unit := c.unit()
	if bytes := len(c.Data) - at; c.variable() && unit > 0 && bytes%unit == 0 && bytes <= maxSample {
		c.ends = append(c.ends, len(c.Data))
		return nil
	} else if !c.variable() && bytes == unit {
		return nil
	}
	return fmt.Errorf("data: field %s: the sample's value has %d elements; give as many as the field's shape has: %w", c.Field, elements, ErrBadRow)
}

// appendNumbers adds the elements of a value. It returns false if their type does not fit.
func (c *Column) appendNumbers(v any) (elements int, ok bool) {
	switch v := v.(type) {
	case int:
		return 1, c.appendInts([]int{v})
	case []int:
		return len(v), c.appendInts(v)
	case float64:
		return 1, c.appendFloats([]float64{v})
	case []float64:
		return len(v), c.appendFloats(v)
	}
	memory, dtype, elements := numbersOf(v)
	if elements < 0 || dtype != c.DType {
		return 0, false
	}
	at := len(c.Data)
	c.grow(len(memory))
	copy(c.Data[at:], memory)
	return elements, true
}

// numbersOf returns the memory of a number or of a slice of numbers. The elements of an []int count
// as int64. For another type the number of elements is -1.
func numbersOf(v any) (memory []byte, dtype cgotorch.DType, elements int) {
	if ints, ok := v.([]int); ok {
		return bytesOf(ints), cgotorch.Int64, len(ints)
	}
	for _, try := range []func(any) ([]byte, cgotorch.DType, int){
		elementsOf[float32], elementsOf[int64], elementsOf[uint8], elementsOf[int32], elementsOf[bool], elementsOf[int8], elementsOf[int16],
		elementsOf[uint16], elementsOf[uint32], elementsOf[uint64], elementsOf[float64], elementsOf[complex64], elementsOf[complex128],
		elementsOf[cgotorch.Float16Bits], elementsOf[cgotorch.BFloat16Bits],
	} {
		if memory, dtype, elements = try(v); elements >= 0 {
			return memory, dtype, elements
		}
	}
	return nil, 0, -1
}

// elementsOf returns the memory of a T or a []T. For another type the number of elements is -1.
func elementsOf[T cgotorch.Element](v any) ([]byte, cgotorch.DType, int) {
	switch v := v.(type) {
	case T:
		return bytesOf([]T{v}), cgotorch.DTypeOf[T](), 1
	case []T:
		return bytesOf(v), cgotorch.DTypeOf[T](), len(v)
	}
	return nil, 0, -1
}

func (c *Column) appendFloats(values []float64) bool {
	at, size := len(c.Data), c.DType.Size()
	if c.DType != cgotorch.Float32 && c.DType != cgotorch.Float64 {
		return false
	}
	c.grow(len(values) * size)
	if c.DType == cgotorch.Float64 {
		copy(c.Data[at:], bytesOf(values))
		return true
	}
	for i, v := range values {
		put(c.Data[at+4*i:], float32(v))
	}
	return true
}

func (c *Column) appendInts(values []int) bool {
	at, size := len(c.Data), c.DType.Size()
	c.grow(len(values) * size)
	for i, v := range values {
		if !putInt(c.DType, c.Data[at+i*size:], int64(v)) {
			return false
		}
	}
	return true
}

// put writes a number to memory of any alignment.
func put[T cgotorch.Element](memory []byte, v T) {
	copy(memory, unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)))
}

// names returns the names of the fields, for messages.
func names(fields []Field) string {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = f.String()
	}
	return strings.Join(all, ", ")
}
