package inflate

import (
	"bytes"
	"math"
	"unsafe"

	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/ctd"
)

// Note [Inflating in parallel]
//
// A gzip file is cut into chunks of equal compressed length. For each chunk, a goroutine looks
// for the first block that begins in the chunk. The goroutine inflates from that block to the
// first block that begins in the next chunk. The window of a block is the 32 KiB of content
// before the block. A match may copy bytes from the window. But the goroutine does not have the
// window of its first block yet. For a byte from that window, the output holds the byte's
// position in the window. The output therefore has 16-bit elements, until 32 KiB have been
// written without such a position.
//
// The joiner then goes through the chunks in order. It knows the window at the end of each chunk.
// With that window it replaces the positions in the next chunk by bytes. The joiner also knows
// where the next chunk's first block really begins. The block that was found may be wrong: bytes
// that are no block may look like a block, or the real block may be one that cannot be found. The
// chunk is then inflated again from where the block really begins, up to a segment that fits.
//
// A restart point is a place where inflating can begin. The content between two restart points is
// a segment. Every segment is inflated as if the window before it were not known, even where the
// window is known. This shows which bytes of the window a segment needs. The index stores these
// bytes alone.

// limits says how a file is cut. Tests make the limits very small, so that small files have many
// chunks and segments.
type limits struct {
	chunk   int64 // compressed bytes of a chunk
	spacing int   // after this many inflated bytes, the next block begins a new segment
	most    int   // after this many inflated bytes, a segment ends even inside a block
}

var usual = limits{chunk: 2 << 20, spacing: 512 << 10, most: 2 << 20}

const (
	firstNarrow = 768 << 10
	firstWide   = 96 << 10
)

// segment is the content between two restart points, or a part of that content. It has at most
// limits.most bytes and a few more.
type segment struct {
	begin  place
	lead   uint16 // for a stored block: the 16 bits before its length field
	stored bool   // the segment begins with a stored block. Its header is at `begin` or at an earlier bit
	whole  bool   // the segment begins at a restart point

	wide    []uint16 // the first elements, some of them positions in the window
	unknown int      // the number of elements up to the last position
	narrow  []byte   // the bytes after wide
	ends    []end    // ends of members in the segment
	end     why      // why the segment ends. If it is isFull, a later part goes on with the content
	open    *stream  // after isFull: the stream that goes on, to the first block at bit number `stop`
	stop    uint64
	next    place  // the place after the segment
	err     error  // the error that follows the segment
	read    func() // called when the segment's bytes have been read, or nil

	buffers *buffers // the source of the memory
	memory  output   // the memory of wide and narrow

	// settle sets the fields below.
	head  []byte     // the bytes of `wide`, after its positions are replaced by bytes
	parts []checksum // checksums of the pieces into which `ends` cuts the content
	sum   checksum   // checksum of the whole segment
	runs  []byte     // the bytes of the window that the segment needs, see appendRuns
	done  chan struct{}
}

func (s *segment) bytes() int { return len(s.wide) + len(s.narrow) }

// footprint returns the bytes of memory that the segment takes.
func (s *segment) footprint() int { return 2*len(s.memory.wide) + len(s.memory.narrow) }

// free gives the segment's memory back. It also closes a stream that would have gone on with the
// segment.
func (s *segment) free() {
	s.buffers.giveWide(s.memory.wide)
	s.buffers.memory.Give(s.head)
	s.buffers.memory.Give(s.memory.narrow)
	s.wide, s.head, s.narrow, s.memory = nil, nil, nil, output{}
	if s.open != nil {
		s.open.close()
		s.open = nil
	}
}

// buffers is the source of the segments' memory.
type buffers struct {
	limits
	memory *arena.Arena
}

// take returns n bytes or a few more.
func (b *buffers) take(n int) []byte {
	piece := b.memory.Take(n)
	return piece[:cap(piece)]
}

// takeWide returns n elements or a few more.
func (b *buffers) takeWide(n int) []uint16 {
	piece := b.take(2 * n)
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(piece))), len(piece)/2)
}

// giveWide takes back the result of takeWide.
func (b *buffers) giveWide(wide []uint16) {
	b.memory.Give(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(wide))), 2*cap(wide)))
}

// grown moves a full output to larger memory.
func (b *buffers) grown(o output) output {
	most := window + b.most + room
	if o.wide != nil {
		larger := b.takeWide(min(2*len(o.wide), most))
		copy(larger, o.wide[:o.at])
		b.giveWide(o.wide)
		o.wide = larger
		return o
	}
	larger := b.take(min(2*len(o.narrow), most))
	copy(larger, o.narrow[:o.at])
	b.memory.Give(o.narrow)
	o.narrow = larger
	return o
}

// segment inflates from the stream's place up to a restart point. It passes over restart points
// that come before bit number stopBit and before b.spacing inflated bytes.
func (s *stream) segment(b *buffers, begin place, stopBit uint64) *segment {
	seg := &segment{begin: begin, whole: true, buffers: b}
	wide := output{wide: b.takeWide(window + firstWide + room), at: window, unknown: window}
	copy(wide.wide, unknownWindow)
	if s.history > 0 {
		s.history = window
	}
	var err error
	for {
		seg.end, err = s.run(&wide, stopBit, window+b.spacing)
		if err != nil || seg.end != isFull || wide.at >= window+b.most {
			break
		}
		wide = b.grown(wide)
	}
	seg.memory.wide, seg.wide, seg.unknown = wide.wide, wide.wide[window:wide.at], wide.unknown-window
	seg.addEnds(wide.ends, 0)
	if err == nil && seg.end == isKnown {
		err = s.narrow(b, seg, wide.wide[:wide.at], stopBit)
	}
	seg.next, seg.err = s.place(seg.end), err
	if seg.end == isFull && seg.err == nil {
		seg.open, seg.stop = s, stopBit
	}
	return seg
}

// narrow inflates the rest of seg as bytes. The last 32 KiB of `wide` are known bytes, so no
// unknown byte follows.
func (s *stream) narrow(b *buffers, seg *segment, wide []uint16, stopBit uint64) (err error) {
	o := output{narrow: b.take(window + firstNarrow + room), at: window}
	resolve(wide[len(wide)-window:], nil, o.narrow)
	before := len(seg.wide)
	for {
		seg.end, err = s.run(&o, stopBit, window+b.spacing-before)
		if err != nil || seg.end != isFull || o.at >= window+b.most {
			break
		}
		o = b.grown(o)
	}
	seg.memory.narrow, seg.narrow = o.narrow, o.narrow[window:o.at]
	seg.addEnds(o.ends, before)
	return err
}

// addEnds adds to seg the ends of members that an output has. The content of the output begins
// after the first `before` bytes of the segment.
func (seg *segment) addEnds(ends []end, before int) {
	for _, e := range ends {
		seg.ends = append(seg.ends, end{before + e.at - window, e.trailer})
	}
}

// continued inflates the next part of a segment. `before` holds the last 32 KiB of the content
// before this part.
func (s *stream) continued(b *buffers, before *[window]byte, stopBit uint64) *segment {
	seg := &segment{begin: place{bit: s.bit}, buffers: b}
	o := output{narrow: b.take(window + b.spacing + room), at: window}
	copy(o.narrow, before[:])
	seg.end, seg.err = s.run(&o, stopBit, window+b.spacing)
	seg.memory.narrow, seg.narrow, seg.next = o.narrow, o.narrow[window:o.at], s.place(seg.end)
	seg.addEnds(o.ends, 0)
	if seg.end == isFull && seg.err == nil {
		seg.open, seg.stop = s, stopBit
	}
	return seg
}

// settle sets those fields of s that depend on the window before the segment. `before` is this
// window.
func (s *segment) settle(before *[window]byte) {
	defer close(s.done)
	s.head = s.buffers.take(len(s.wide))[:len(s.wide)]
	resolve(s.wide, before, s.head)
	if s.whole {
		s.runs = s.needs(before)
	}
	at := 0
	for _, e := range s.ends {
		s.parts = append(s.parts, s.checksum(at, e.at))
		at = e.at
	}
	s.parts = append(s.parts, s.checksum(at, s.bytes()))
	for _, part := range s.parts {
		s.sum = s.sum.then(part)
	}
}

// checksum returns the checksum of the bytes `from` to `to` of a settled segment.
func (s *segment) checksum(from, to int) checksum {
	head := len(s.head)
	a := checksumOf(s.head[min(from, head):min(to, head)])
	return a.then(checksumOf(s.narrow[max(from-head, 0):max(to-head, 0)]))
}

// needs returns, as runs, those bytes of the window that the segment copies. Content after the
// segment may also copy from this window, if the segment is shorter than a window. The segment
// does not show which bytes that content copies. So for such a short segment, needs returns the
// whole window.
func (s *segment) needs(before *[window]byte) []byte {
	var used [window]byte
	if s.begin.member {
		return nil // no match reaches back before the beginning of a member
	}
	if s.bytes() < window {
		return appendRuns(nil, before, allUsed)
	}
	for _, element := range s.wide[:min(s.unknown, len(s.wide))] { // after a fault `unknown` may be larger
		if int(element) >= ctd.InflateUnknown {
			used[int(element)-ctd.InflateUnknown] = 1
		}
	}
	return appendRuns(nil, before, &used)
}

var allUsed = (*[window]byte)(bytes.Repeat([]byte{1}, window))

// tail changes *before: from the window before the segment to the window after the segment. The
// elements of s.wide may still be positions in the window before the segment.
func (s *segment) tail(before *[window]byte) {
	n := s.bytes()
	if len(s.narrow) >= window {
		copy(before[:], s.narrow[len(s.narrow)-window:])
		return
	}
	var after [window]byte
	keep := max(window-n, 0)
	copy(after[:keep], before[window-keep:])
	wide := s.wide[max(len(s.wide)+len(s.narrow)-window, 0):]
	resolve(wide, before, after[keep:keep+len(wide)])
	copy(after[keep+len(wide):], s.narrow)
	*before = after
}

const noStop = math.MaxUint64
