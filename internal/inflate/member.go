package inflate

import (
	"encoding/binary"
	"fmt"
)

// A gzip file has one member or more. Each member is a header, deflate data and a trailer (RFC
// 1952).

const trailerBytes = 8

// trailer is the end of a member.
type trailer struct {
	crc, size uint32 // of the member's content. The size is modulo 2^32
}

func readTrailer(p []byte) trailer {
	return trailer{binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:])}
}

// mostHeaderBytes is the limit of a header. Without this limit a header could be of any length,
// because names and comments have no length field.
const mostHeaderBytes = 1 << 20

// headerBytes returns the length of the member header at the beginning of p. It returns 0 when p
// is too short to tell the length.
func headerBytes(p []byte) (int, error) {
	const fixed = 10
	if len(p) >= 1 && p[0] != 0x1f || len(p) >= 2 && p[1] != 0x8b {
		return 0, ErrNotGzip
	}
	if len(p) < fixed {
		return 0, nil
	}
	if p[2] != 8 {
		return 0, fmt.Errorf("%w: unknown compression method %d", ErrCorrupt, p[2])
	}
	flags, n := p[3], fixed
	if flags&0xe0 != 0 {
		return 0, fmt.Errorf("%w: reserved flags in a header", ErrCorrupt)
	}
	if flags&4 != 0 { // extra field
		if len(p) < n+2 {
			return 0, nil
		}
		n += 2 + int(binary.LittleEndian.Uint16(p[n:]))
	}
	for _, flag := range []byte{8, 16} { // name, comment
		if flags&flag == 0 {
			continue
		}
		for {
			if n >= mostHeaderBytes {
				return 0, fmt.Errorf("%w: a header without end", ErrCorrupt)
			}
			if n >= len(p) {
				return 0, nil
			}
			n++
			if p[n-1] == 0 {
				break
			}
		}
	}
	if flags&2 != 0 { // checksum of the header
		n += 2
	}
	if n > len(p) {
		return 0, nil
	}
	return n, nil
}
