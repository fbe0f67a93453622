package cgotorch

import "math"

// Float16Bits is an IEEE 754 half-precision number: 1 bit of sign, 5 of exponent, 10 of fraction.
type Float16Bits uint16

// BFloat16Bits is the upper half of a float32: 1 bit of sign, 8 of exponent, 7 of fraction.
type BFloat16Bits uint16

// ToBFloat16 rounds v to the nearest bfloat16 number. If two numbers are equally near, it takes
// the even number. NaN stays NaN.
func ToBFloat16(v float32) BFloat16Bits {
	bits := math.Float32bits(v)
	if v != v {
		return 0x7fc0
	}
	return BFloat16Bits((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float32 returns the same number, exactly.
func (b BFloat16Bits) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// ToFloat16 rounds v to the nearest half-precision number. If two numbers are equally near, it
// takes the even number. A number that is too large becomes infinite. NaN stays NaN.
func ToFloat16(v float32) Float16Bits {
	bits := math.Float32bits(v)
	sign := Float16Bits(bits >> 16 & 0x8000)
	magnitude := bits & 0x7fffffff
	switch {
	case magnitude > 0x7f800000:
		return sign | 0x7e00
	case magnitude >= 0x47800000: // 65536 and above
		return sign | 0x7c00
	case magnitude < 0x38800000: // below 2^-14, the smallest normal number: round to a multiple of 2^-24
		return sign | Float16Bits(math.RoundToEven(math.Abs(float64(v))*(1<<24)))
	}
	rebased := magnitude - (127-15)<<23
	return sign | Float16Bits((rebased+0xfff+rebased>>13&1)>>13) // a carry from rounding raises the exponent, up to infinity
}

// Float32 returns the same number, exactly.
func (h Float16Bits) Float32() float32 {
	sign := uint32(h&0x8000) << 16
	exponent := uint32(h >> 10 & 0x1f)
	fraction := uint32(h & 0x3ff)
	switch exponent {
	case 0:
		v := float32(fraction) / (1 << 24)
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
}
