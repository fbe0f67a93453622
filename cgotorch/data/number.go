package data

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Numbers of a text]
//
// The reader of decimal numbers gives exactly the results of strconv.ParseFloat, to the bit. It is
// about five times as fast, because most numbers of a table are short. A mantissa m below 2^53 and
// a power of ten up to 10^22 are exact as float64. One multiplication or division of them is
// therefore rounded once (Clinger, 1990).
//
// A float32 is rounded a second time, from the float64 d. That changes the result only where d
// lies beside the middle of two float32 numbers. The 29 bits of d that are lost show this. A
// mantissa up to 2^64 is wrong by at most one unit of d, and its product by two. A number for
// which this is not enough goes to strconv.

var powers = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// decimal is the number mantissa * 10^exponent, read from the beginning of a text.
type decimal struct {
	mantissa uint64
	exponent int
	negative bool
	plain    bool // it has an integer's form
}

// scanDecimal reads a decimal number at b[i]. It returns the place after the number. ok is false
// for a text in another form, and for a mantissa of more than 19 digits.
func scanDecimal(b []byte, i int) (d decimal, end int, ok bool) {
	if i < len(b) && (b[i] == '-' || b[i] == '+') {
		d.negative = b[i] == '-'
		i++
	}
	first := i
	for i < len(b) && b[i]-'0' < 10 {
		d.mantissa = 10*d.mantissa + uint64(b[i]-'0')
		i++
	}
	digits := i - first
	d.plain = true
	if i < len(b) && b[i] == '.' {
		d.plain = false
		i++
		point := i
		for i+8 <= len(b) && digits+i-point <= 11 {
			eight := binary.LittleEndian.Uint64(b[i:])
			if !eightDigits(eight) {
				break
			}
			d.mantissa = 100000000*d.mantissa + parseEight(eight)
			i += 8
		}
		for i < len(b) && b[i]-'0' < 10 {
			d.mantissa = 10*d.mantissa + uint64(b[i]-'0')
			i++
		}
		digits += i - point
		d.exponent = point - i
	}
	if digits == 0 || digits > 19 {
		return d, i, false
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		d.plain = false
		i++
		sign := 1
		if i < len(b) && (b[i] == '-' || b[i] == '+') {
			if b[i] == '-' {
				sign = -1
			}
			i++
		}
		first, e := i, 0
		for i < len(b) && b[i]-'0' < 10 && i-first < 5 {
			e = 10*e + int(b[i]-'0')
			i++
		}
		if i == first || i-first == 5 {
			return d, i, false
		}
		d.exponent += sign * e
	}
	return d, i, true
}

// eightDigits reports whether all eight bytes are digits.
func eightDigits(v uint64) bool {
	return v&0xf0f0f0f0f0f0f0f0 == 0x3030303030303030 && (v+0x0606060606060606)&0xf0f0f0f0f0f0f0f0 == 0x3030303030303030
}

// parseEight returns the value of eight digits, of which the first is the lowest byte.
func parseEight(v uint64) uint64 {
	v -= 0x3030303030303030
	v = v*10 + v>>8
	return ((v&0x000000ff000000ff)*(100+1000000<<32) + (v>>16&0x000000ff000000ff)*(1+10000<<32)) >> 32
}

// float64 returns the number. ok is false if the exact way does not reach it.
func (d decimal) float64() (v float64, ok bool) {
	if d.mantissa >= 1<<53 || d.exponent < -22 || d.exponent > 22 {
		return 0, false
	}
	return d.signed(d.scaled()), true
}

func (d decimal) scaled() float64 {
	if d.exponent < 0 {
		return float64(d.mantissa) / powers[-d.exponent]
	}
	return float64(d.mantissa) * powers[d.exponent]
}

func (d decimal) signed(v float64) float64 {
	if d.negative {
		return -v
	}
	return v
}

// int returns the number, which is plain and below 2^63.
func (d decimal) int() int64 {
	if d.negative {
		return -int64(d.mantissa)
	}
	return int64(d.mantissa)
}

// float32 is like float64, for the nearest float32.
func (d decimal) float32() (v float32, ok bool) {
	if d.exponent < -22 || d.exponent > 22 {
		return 0, false
	}
	const middle, lost = 1 << 28, 1<<29 - 1
	wide := d.scaled()
	near := int64(math.Float64bits(wide)&lost) - middle
	if wide != 0 && (wide < 0x1p-126 || wide > 0x1p127) || near >= -4 && near <= 4 {
		return 0, false
	}
	return float32(d.signed(wide)), true
}

// parse writes the number in `text` to memory, as an element of the dtype. It returns false if the
// text is no such number.
func parse(dtype cgotorch.DType, memory, text []byte) bool {
	switch dtype {
	case cgotorch.Bool:
		v, ok := parseBool(text)
		memory[0] = v
		return ok
	case cgotorch.Float32, cgotorch.Float64, cgotorch.Float16, cgotorch.BFloat16:
		return parseFloat(dtype, memory, text)
	case cgotorch.Complex64, cgotorch.Complex128:
		return false
	case cgotorch.Uint64:
		v, err := strconv.ParseUint(string(text), 10, 64)
		put(memory, v)
		return err == nil
	}
	if d, end, ok := scanDecimal(text, 0); ok && d.plain && end == len(text) && d.mantissa < 1<<63 {
		return putInt(dtype, memory, d.int())
	}
	v, err := strconv.ParseInt(string(text), 10, 64)
	return err == nil && putInt(dtype, memory, v)
}

func parseBool(text []byte) (v byte, ok bool) {
	switch string(text) {
	case "1", "true", "True", "TRUE":
		return 1, true
	case "0", "false", "False", "FALSE":
		return 0, true
	}
	return 0, false
}

func parseFloat(dtype cgotorch.DType, memory, text []byte) bool {
	d, end, ok := scanDecimal(text, 0)
	ok = ok && end == len(text)
	if dtype == cgotorch.Float64 {
		v, exact := d.float64()
		if !ok || !exact {
			if v, ok = parseSlowly(text, 64); !ok {
				return false
			}
		}
		put(memory, v)
		return true
	}
	v, exact := d.float32()
	if !ok || !exact {
		wide, ok := parseSlowly(text, 32)
		if !ok {
			return false
		}
		v = float32(wide)
	}
	switch dtype {
	case cgotorch.Float32:
		put(memory, v)
	case cgotorch.Float16:
		put(memory, cgotorch.ToFloat16(v))
	default:
		put(memory, cgotorch.ToBFloat16(v))
	}
	return true
}

// parseSlowly is strconv.ParseFloat without Go's forms of literals, such as 0x1p3 and 1_000. They
// are texts in a table, as in pandas.
func parseSlowly(text []byte, bits int) (float64, bool) {
	if bytes.ContainsAny(text, "xX_") {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(text), bits)
	return v, err == nil
}

// keeps reports whether a float32 or float64 keeps all digits of the number in a text. bits is 32
// or 64. Numbers that are kept are equal only if their texts are equal decimals. A float64 keeps
// each number that is no integer, because programs write the digits of a float64.
func keeps(text []byte, bits int) bool {
	if bits == 64 && bytes.ContainsAny(text, ".eE") {
		return true
	}
	v, err := strconv.ParseFloat(string(text), bits)
	if err != nil || v != v || math.IsInf(v, 0) {
		return err == nil
	}
	form := byte('e')
	if bits == 64 {
		form = 'f' // an integer's own digits
		if math.Abs(v) >= 1<<53 {
			return false
		}
	}
	digits, exponent := significant(text)
	kept, keptExponent := significant(strconv.AppendFloat(nil, v, form, -1, bits))
	return digits == kept && (exponent == keptExponent || digits == "")
}

// significant returns the digits of a decimal number without zeros at its ends, and the power of
// ten of its first digit.
func significant(text []byte) (digits string, exponent int) {
	mantissa := string(bytes.ToLower(bytes.TrimLeft(text, "+-")))
	if at := strings.IndexByte(mantissa, 'e'); at >= 0 {
		exponent, _ = strconv.Atoi(mantissa[at+1:])
		mantissa = mantissa[:at]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	all := strings.TrimLeft(whole+fraction, "0")
	exponent += len(all) - len(fraction)
	return strings.TrimRight(all, "0"), exponent
}

// putInt writes an integer to memory, as an element of a dtype of integers. It returns false if
// the integer is out of range.
func putInt(dtype cgotorch.DType, memory []byte, v int64) bool {
	switch dtype {
	case cgotorch.Uint8:
		memory[0] = byte(v)
		return v >= 0 && v <= math.MaxUint8
	case cgotorch.Int8:
		memory[0] = byte(v)
		return v >= math.MinInt8 && v <= math.MaxInt8
	case cgotorch.Int16:
		put(memory, int16(v))
		return v >= math.MinInt16 && v <= math.MaxInt16
	case cgotorch.Uint16:
		put(memory, uint16(v))
		return v >= 0 && v <= math.MaxUint16
	case cgotorch.Int32:
		put(memory, int32(v))
		return v >= math.MinInt32 && v <= math.MaxInt32
	case cgotorch.Uint32:
		put(memory, uint32(v))
		return v >= 0 && v <= math.MaxUint32
	case cgotorch.Int64:
		put(memory, v)
		return true
	case cgotorch.Uint64:
		put(memory, uint64(v))
		return v >= 0
	}
	return false
}
