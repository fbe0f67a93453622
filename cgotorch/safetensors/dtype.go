package safetensors

import (
	"fmt"
	"math/bits"
)

// bitsOf holds the number of bits of one element of each dtype.
var bitsOf = map[string]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
	"F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
	"F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// byteSize returns the number of bytes of the elements of a tensor. It fails if the dtype or the
// shape is not valid.
func byteSize(dtype string, shape []int64) (int64, error) {
	size, ok := bitsOf[dtype]
	if !ok {
		return 0, fmt.Errorf("dtype %q is not one of the format's", dtype)
	}
	empty := false
	for _, n := range shape {
		if n < 0 {
			return 0, fmt.Errorf("shape %v has a negative size", shape)
		}
		empty = empty || n == 0
	}
	if empty {
		return 0, nil
	}
	for _, n := range shape {
		high, low := bits.Mul64(size, uint64(n))
		if high != 0 || low > 1<<62 {
			return 0, fmt.Errorf("shape %v of %s does not fit in memory", shape, dtype)
		}
		size = low
	}
	if size%8 != 0 {
		return 0, fmt.Errorf("shape %v of %s is no whole number of bytes", shape, dtype)
	}
	return int64(size / 8), nil
}
