package inflate

import "hash/crc32"

// checksum is the CRC-32 of some bytes, and the number of these bytes.
type checksum struct {
	crc   uint32
	bytes int64
}

func checksumOf(p []byte) checksum { return checksum{crc32.ChecksumIEEE(p), int64(len(p))} }

// then returns the checksum of two texts, one after the other. c is the checksum of the first text,
// and `next` is the checksum of the second. To join them, the method shifts the CRC of the first
// text by the number of bytes of the second.
func (c checksum) then(next checksum) checksum {
	return checksum{multiply(power(next.bytes), c.crc) ^ next.crc, c.bytes + next.bytes}
}

// A CRC is a polynomial over GF(2), modulo the polynomial of CRC-32. Bit 0 is the coefficient of
// its highest power, and bit 31 is the coefficient of x^0. The constant `one` is x^0.
const one = uint32(1) << 31

// multiply returns the product of the polynomials a and b.
func multiply(a, b uint32) uint32 {
	product := uint32(0)
	for bit := one; ; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
			if a&(bit-1) == 0 {
				return product
			}
		}
		if bit == 1 {
			return product
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crc32.IEEE
		}
	}
}

// power returns the polynomial x^(8 * bytes).
func power(bytes int64) uint32 {
	result, square := one, one>>8 // x^0, x^8
	for ; bytes > 0; bytes >>= 1 {
		if bytes&1 != 0 {
			result = multiply(square, result)
		}
		square = multiply(square, square)
	}
	return result
}
