package cgotorch

import "fmt"

// DType is the type of a tensor's elements. The values are the numbers in LibTorch's ScalarType.
type DType int8

// The dtypes whose elements have a Go type: see [Element].
const (
	Uint8      DType = 0
	Int8       DType = 1
	Int16      DType = 2
	Int32      DType = 3
	Int64      DType = 4
	Float16    DType = 5
	Float32    DType = 6
	Float64    DType = 7
	Complex64  DType = 9
	Complex128 DType = 10
	Bool       DType = 11
	BFloat16   DType = 15
	Uint16     DType = 27
	Uint32     DType = 28
	Uint64     DType = 29
)

var dtypes = map[DType]struct {
	name string
	size int
}{
	Uint8: {"uint8", 1}, Int8: {"int8", 1}, Int16: {"int16", 2}, Int32: {"int32", 4}, Int64: {"int64", 8},
	Float16: {"float16", 2}, Float32: {"float32", 4}, Float64: {"float64", 8}, Complex64: {"complex64", 8},
	Complex128: {"complex128", 16}, Bool: {"bool", 1}, BFloat16: {"bfloat16", 2},
	Uint16: {"uint16", 2}, Uint32: {"uint32", 4}, Uint64: {"uint64", 8},
}

// Size returns the number of bytes of one element. For a dtype that has no name in this package
// it returns 0.
func (d DType) Size() int { return dtypes[d].size }

// String returns the name PyTorch uses, without "torch.".
func (d DType) String() string {
	if t, ok := dtypes[d]; ok {
		return t.name
	}
	return fmt.Sprintf("dtype(%d)", int8(d))
}

// ParseDType returns the dtype for which [DType.String] returns `name`. For an unknown name it
// fails with [ErrInvalidArgument].
func ParseDType(name string) (DType, error) {
	for d, t := range dtypes {
		if t.name == name {
			return d, nil
		}
	}
	return 0, &Error{Op: "ParseDType", Kind: ErrInvalidArgument, Message: fmt.Sprintf("no dtype is named %q; try float32, bfloat16 or uint8", name)}
}

// IsFloat reports whether d is a real floating-point dtype.
func (d DType) IsFloat() bool {
	return d == Float16 || d == BFloat16 || d == Float32 || d == Float64
}

// Element is a Go type that has a dtype.
type Element interface {
	uint8 | int8 | int16 | int32 | int64 | uint16 | uint32 | uint64 | float32 | float64 | bool | complex64 | complex128 |
		Float16Bits | BFloat16Bits
}

// DTypeOf returns the dtype whose elements have the Go type T.
func DTypeOf[T Element]() DType {
	var v T
	switch any(v).(type) {
	case uint8:
		return Uint8
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	case float32:
		return Float32
	case float64:
		return Float64
	case bool:
		return Bool
	case complex64:
		return Complex64
	case complex128:
		return Complex128
	case Float16Bits:
		return Float16
	default:
		return BFloat16
	}
}
