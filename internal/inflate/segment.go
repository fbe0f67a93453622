package inflate

// #include "cgotorch_inflate.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/streamtorch/streamtorch/internal/arena"
)

// Note [Inflating in parallel]
//
// A gzip file is cut into chunks of equal compressed length. For each chunk, a goroutine looks for
// the first block that begins in it. It inflates from there to the first block that begins in the
// next chunk, with a window it does not know. A copy out of that window stays a place in it, in
// 16-bit elements, until 32 KiB have been written without such a place.
//
// The reader then goes through the chunks in order. It knows the window at the end of each chunk,
// and so the bytes at the next chunk's places. It also knows where the next chunk's first block
// really begins. That may be another block than the one found: its bytes looked like a block, or
// the real block cannot be recognised. The chunk is then inflated again from the right place.
//
// The content between two restart points is a segment. All segments are inflated as if nothing were
// known before them, also where the window is known. So it is known which bytes of the window each
// segment needs, and no more than those are stored in the index.

// limits says how a file is cut. Tests make the limits so small that small files have many chunks
// and segments.
type limits struct {
	chunk   int64 // compressed bytes
	spacing int   // inflated bytes after which the next block begins a new segment
	most    int   // inflated bytes after which a segment ends without the end of a block
}

var usual = limits{chunk: 2 << 20, spacing: 512 << 10, most: 2 << 20}

const (
	firstNarrow = 768 << 10
	firstWide   = 96 << 10
)

// segment is the content between two restart points, or a part of it that is no more than
// limits.most bytes.
type segment struct {
	begin  place
	lead   byte // of a stored block: the byte in which its header lies
	stored bool // begin is the last bit where the header of a stored block can lie
	whole  bool // it begins at a restart point

	wide   []uint16 // its first bytes
	narrow []byte   // its other bytes
	ends   []end    // of members
	end    why      // atBoundary, atMember, atEnd. isFull: the segment goes on
	open   *stream  // goes on with the segment then, to the first block at stop
	stop   uint64
	next   place  // behind it
	err    error  // the error behind the segment
	read   func() // called when its bytes have been read, or nil

	buffers *buffers // the source of the memory
	memory  output   // the memory of wide and narrow

	// The results of settle.
	head  []byte     // wide, resolved
	parts []checksum // of the content up to each of ends, and behind the last
	sum   checksum   // of all
	runs  []byte     // the window's bytes that the segment needs, see appendRuns
	done  chan struct{}
}

func (s *segment) bytes() int { return len(s.wide) + len(s.narrow) }

// footprint is the memory of the segment, in bytes.
func (s *segment) footprint() int { return 2*len(s.memory.wide) + len(s.memory.narrow) }

// free gives the segment's memory back, and ends a stream that would have gone on with it.
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

// take returns n bytes or somewhat more.
func (b *buffers) take(n int) []byte {
	piece := b.memory.Take(n)
	return piece[:cap(piece)]
}

// takeWide returns n elements or somewhat more.
func (b *buffers) takeWide(n int) []uint16 {
	piece := b.take(2 * n)
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(piece))), len(piece)/2)
}

// giveWide takes back the result of takeWide.
func (b *buffers) giveWide(wide []uint16) {
	b.memory.Give(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(wide))), 2*cap(wide)))
}

// grown returns a full output with more room.
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

// segment inflates from the stream's place to the next restart point at stopBit or behind it, or
// b.spacing bytes away.
func (s *stream) segment(b *buffers, begin place, stopBit uint64) *segment {
	seg := &segment{begin: begin, whole: true, buffers: b}
	wide := output{wide: b.takeWide(window + firstWide + room), at: window, unknown: window}
	unknownWindow(wide.wide)
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
	seg.memory.wide, seg.wide = wide.wide, wide.wide[window:wide.at]
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

// narrow inflates the rest of a segment whose last 32 KiB are known.
func (s *stream) narrow(b *buffers, seg *segment, wide []uint16, stopBit uint64) (err error) {
	o := output{narrow: b.take(window + firstNarrow + room), at: window}
	for i, element := range wide[len(wide)-window:] {
		o.narrow[i] = byte(element)
	}
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

// addEnds adds the ends of members in an output that follows that many bytes.
func (seg *segment) addEnds(ends []end, before int) {
	for _, e := range ends {
		seg.ends = append(seg.ends, end{before + e.at - window, e.trailer})
	}
}

// continued inflates the part of a segment that follows another part, of which the last bytes are
// given.
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

// settle completes a segment, now that the window before it is known.
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

// checksum returns the checksum of a part of a settled segment.
func (s *segment) checksum(from, to int) checksum {
	head := len(s.head)
	a := checksumOf(s.head[min(from, head):min(to, head)])
	return a.then(checksumOf(s.narrow[max(from-head, 0):max(to-head, 0)]))
}

// needs returns the bytes of the window that the segment needs. A segment shorter than a window
// does not tell the needs of the bytes behind it: all of the window is kept then.
func (s *segment) needs(before *[window]byte) []byte {
	var used [window]bool
	if s.begin.member {
		return nil // nothing reaches behind the beginning of a member
	}
	if s.bytes() < window {
		for i := range used {
			used[i] = true
		}
		return appendRuns(nil, before, &used)
	}
	for _, element := range s.wide {
		if int(element) >= int(C.CTD_INFLATE_UNKNOWN) {
			used[int(element)-int(C.CTD_INFLATE_UNKNOWN)] = true
		}
	}
	return appendRuns(nil, before, &used)
}

// tail moves the window behind the segment. The wide elements need not be resolved yet.
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
