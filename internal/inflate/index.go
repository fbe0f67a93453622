package inflate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sort"
)

// Index holds the places in a gzip file where inflating can begin. A Reader that reads the file
// once makes the index, see [Reader.Index]. An index does not change afterwards.
type Index struct {
	fileSize int64
	size     int64
	points   []point
}

// point is the beginning of a segment. See Note [Inflating in parallel].
type point struct {
	place
	offset int64    // offset in the content of the segment's first byte
	sum    checksum // checksum of the content up to the next point
	runs   []byte   // bytes of the window before the point that inflating needs, see appendRuns
}

// Size returns the number of bytes of the inflated content.
func (x *Index) Size() int64 { return x.size }

// FileSize returns the number of bytes of the gzip file itself.
func (x *Index) FileSize() int64 { return x.fileSize }

// Segments returns the number of segments, at least 1. A segment is a part of the content that
// can be inflated without the other parts. It has at most a few MiB, unless the compressor made a
// larger block.
func (x *Index) Segments() int { return len(x.points) }

// SegmentAt returns the number of the segment that holds the byte at `offset`. If `offset` is
// after the end of the content, it returns the number of the last segment.
func (x *Index) SegmentAt(offset int64) int {
	return max(sort.Search(len(x.points), func(i int) bool { return x.points[i].offset > offset })-1, 0)
}

// end returns the offset in the content at which segment i ends.
func (x *Index) end(i int) int64 {
	if i+1 < len(x.points) {
		return x.points[i+1].offset
	}
	return x.size
}

// appendRuns encodes the used bytes of a window as runs, and appends them to `to`. The element of a
// used byte in `used` is 1, and that of another byte is 0. A run is a row of adjacent used bytes.
// It is encoded as the number of unused bytes before it, the number of its bytes, and its bytes.
func appendRuns(to []byte, known, used *[window]byte) []byte {
	for at := 0; at < window; {
		unused := bytes.IndexByte(used[at:], 1)
		if unused < 0 {
			break
		}
		begin := at + unused
		count := bytes.IndexByte(used[begin:], 0)
		if count < 0 {
			count = window - begin
		}
		to = binary.AppendUvarint(to, uint64(unused))
		to = binary.AppendUvarint(to, uint64(count))
		to = append(to, known[begin:][:count]...)
		at = begin + count
	}
	return to
}

// fill writes runs into the window `to`. The bytes of the window that are in no run become 0.
// fill reports whether the runs are well formed.
func fill(to []byte, runs []byte) bool {
	clear(to)
	for at := uint64(0); len(runs) > 0; {
		skip, n := binary.Uvarint(runs)
		if n <= 0 || skip > uint64(window)-at {
			return false
		}
		runs, at = runs[n:], at+skip
		count, n := binary.Uvarint(runs)
		if n <= 0 || count > uint64(window)-at || count > uint64(len(runs)-n) {
			return false
		}
		copy(to[at:], runs[n:][:count])
		runs, at = runs[n:][count:], at+count
	}
	return true
}

// These limits bound the memory that a false index can take. A point is a place where inflating
// can begin. An encoded point has at least leastPoint bytes. An index may have one point for each
// leastSegment bytes of the gzip file, and leastSegments more. A Reader makes fewer points.
const leastPoint, leastSegment, leastSegments = 7, 256, 64

// expansion is a limit: one byte of deflate data inflates to fewer bytes than this.
const expansion = 1100

// AppendBinary appends the encoded index to `to` and returns the result. For photographs the
// encoded index has about a thousandth of the gzip file's size, for text a hundredth.
func (x *Index) AppendBinary(to []byte) ([]byte, error) {
	to = binary.AppendUvarint(to, uint64(x.fileSize))
	to = binary.AppendUvarint(to, uint64(x.size))
	to = binary.AppendUvarint(to, uint64(len(x.points)))
	var bit uint64
	var offset int64
	for _, p := range x.points {
		kind := uint64(0)
		if p.member {
			kind = 1
		}
		to = binary.AppendUvarint(to, (p.bit-bit)<<1|kind)
		to = binary.AppendUvarint(to, uint64(p.offset-offset))
		to = binary.LittleEndian.AppendUint32(to, p.sum.crc)
		to = binary.AppendUvarint(to, uint64(len(p.runs)))
		to = append(to, p.runs...)
		bit, offset = p.bit, p.offset
	}
	return to, nil
}

// UnmarshalBinary reads the result of AppendBinary. It fails with [ErrIndex] for data that is not
// an encoded index. Only inflating shows whether the index fits a file, so UnmarshalBinary cannot
// check that.
func (x *Index) UnmarshalBinary(from []byte) error {
	bad := func(what string) error { return fmt.Errorf("%w: %s", ErrIndex, what) }
	short := false
	number := func() uint64 {
		v, n := binary.Uvarint(from)
		if n <= 0 {
			short = true
			return 0
		}
		from = from[n:]
		return v
	}
	fileSize, size, count := number(), number(), number()
	const most = 1 << 56
	if short || fileSize > most || size > most || size > fileSize*expansion {
		return bad("its sizes are out of range")
	}
	if count == 0 || count > uint64(len(from))/leastPoint+1 {
		return bad("it ends early")
	}
	if count > fileSize/leastSegment+leastSegments {
		return bad("it has too many points")
	}
	y := Index{fileSize: int64(fileSize), size: int64(size), points: make([]point, count)}
	var bit, offset uint64
	var check [window]byte
	for i := range y.points {
		step, forward := number(), number()
		if short || len(from) < 4 {
			return bad("it ends early")
		}
		if step>>1 > most || forward > most || bit+step>>1 > fileSize*8 || offset+forward > size {
			return bad("a point lies behind the end")
		}
		if i > 0 && (step>>1 == 0 || forward > (step>>4+2)*expansion) || i == 0 && (step>>1 != 0 || forward != 0) {
			return bad("its points are not in order")
		}
		bit, offset = bit+step>>1, offset+forward
		p := &y.points[i]
		p.place, p.offset = place{bit, step&1 == 1}, int64(offset)
		if p.member && bit%8 != 0 {
			return bad("a member does not begin at a byte")
		}
		p.sum.crc = binary.LittleEndian.Uint32(from)
		from = from[4:]
		length := number()
		if short || length > uint64(len(from)) {
			return bad("it ends early")
		}
		p.runs, from = from[:length:length], from[length:]
		if !fill(check[:], p.runs) {
			return bad("a window is damaged")
		}
	}
	if len(from) > 0 {
		return bad("it is longer than it says")
	}
	for i := range y.points {
		y.points[i].sum.bytes = y.end(i) - y.points[i].offset
	}
	last := y.points[len(y.points)-1]
	if (size - uint64(last.offset)) > (fileSize-last.bit/8+1)*expansion {
		return bad("its size is out of range")
	}
	*x = y
	return nil
}

// Note [Index]
//
// The index holds places where inflating can begin, about one for every half MiB of the content.
// Inflating from a place copies only some bytes of the 32 KiB window before the place. The index
// holds these bytes alone, some 300 for photographs. For each place it also holds a CRC-32.
//
// The index is made while the archive is read for the first time. It depends on the archive
// alone, not on chance or the number of cores. Package imageloader keeps the index in a file.
// That file is used only while the size, the time and a hash of the archive are the same.
