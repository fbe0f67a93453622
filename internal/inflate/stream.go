package inflate

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/streamtorch/streamtorch/internal/ctd"
)

const (
	window = ctd.InflateWindow
	room   = ctd.InflateRoom
	more   = 128 << 10 // bytes that are read when the input has too few
)

// stream inflates a file from one place on. At the end of a member it goes on with the next
// member. It must be closed.
type stream struct {
	in      input
	handle  *ctd.Inflater
	bit     uint64 // position in the file of the next bit
	member  uint64 // bit at which the header of the latest member begins
	history int    // bytes that a match may reach back
	closed  func() // called by the function `close`, or nil
	io      ctd.Inflate
}

// place is the beginning of a block or a member.
type place struct {
	bit    uint64
	member bool // the place is the header of a member. Otherwise it is a block
}

// newStream returns a stream that begins at the place p.
func newStream(in input, p place) (*stream, error) {
	s := &stream{in: in, bit: p.bit, member: p.bit, history: window}
	if err := take(ctd.InflaterNew(&s.handle)); err != nil {
		return nil, err
	}
	if !p.member {
		return s, nil
	}
	s.history = 0
	if err := s.header(int64(p.bit / 8)); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// place returns the place of the stream after a run that returned `stopped`.
func (s *stream) place(stopped why) place {
	if stopped == atMember {
		return place{s.member, true}
	}
	return place{bit: s.bit}
}

func (s *stream) close() {
	ctd.InflaterFree(s.handle)
	s.handle = nil
	if s.closed != nil {
		s.closed()
		s.closed = nil
	}
}

// why is the reason why the method `run` stopped.
type why int

const (
	atBoundary why = iota + 1 // a block has ended, at stopBit or stopAt or later. See stream.run
	atMember                  // a member has ended, at stopBit or stopAt or later
	atEnd                     // the last member has ended
	isFull                    // the output has no room left
	isKnown                   // the last 32 KiB of a wide output are known, so narrow elements can follow
)

// output is the memory that a run writes to. It begins with a window, and the inflated elements
// follow.
type output struct {
	wide    []uint16 // either wide or narrow is nil
	narrow  []byte
	at      int
	unknown int
	ends    []end // ends of members
}

// end is the end of a member: its trailer, and the index of the first element after its content.
type end struct {
	at int
	trailer
}

// run inflates up to the end of a block. It passes over ends that come before bit number stopBit
// and before element number stopAt. It passes over ends of members in the same way.
func (s *stream) run(o *output, stopBit uint64, stopAt int) (why, error) {
	for {
		stopped, err := s.step(o, stopBit, stopAt)
		if err != nil {
			return 0, err
		}
		switch stopped {
		case ctd.InflateBoundary:
			return atBoundary, nil
		case ctd.InflateFull:
			return isFull, nil
		case ctd.InflateKnown:
			return isKnown, nil
		case ctd.InflateMore:
			if err := s.in.grow(more, int64(s.bit/8)); err != nil {
				return 0, err
			}
		case ctd.InflateFinal:
			ended, err := s.endMember(o)
			if err != nil {
				return 0, err
			}
			if ended {
				return atEnd, nil
			}
			if s.member >= stopBit || o.at >= stopAt {
				return atMember, nil
			}
		}
	}
}

// step makes one call into C.
func (s *stream) step(o *output, stopBit uint64, stopAt int) (int32, error) {
	base := uint64(s.in.begin) * 8
	s.io = ctd.Inflate{
		Bit: s.bit - base, At: uint64(o.at), History: uint64(min(s.history, window)), Unknown: uint64(o.unknown),
		StopBit: stopBit - min(stopBit, base), StopAt: uint64(max(stopAt, 0)),
	}
	var to unsafe.Pointer
	size := len(o.narrow)
	if o.wide != nil {
		s.io.Wide = 1
		to, size = unsafe.Pointer(unsafe.SliceData(o.wide)), len(o.wide)
	} else {
		to = unsafe.Pointer(unsafe.SliceData(o.narrow))
	}
	if s.in.last() {
		s.io.Last = 1
	}
	err := take(ctd.InflaterRun(s.handle, unsafe.SliceData(s.in.bytes), uintptr(len(s.in.bytes)), to, uintptr(size), &s.io))
	runtime.KeepAlive(s)
	s.history += int(s.io.At) - o.at
	s.bit, o.at, o.unknown = base+s.io.Bit, int(s.io.At), int(s.io.Unknown)
	return s.io.Stopped, err
}

// endMember reads the trailer of a member and the header of the next member. `ended` is true if
// there is no next member.
func (s *stream) endMember(o *output) (ended bool, err error) {
	at := int64(s.bit+7) / 8
	if err := s.need(at, trailerBytes); err != nil {
		return false, err
	}
	o.ends = append(o.ends, end{o.at, readTrailer(s.in.at(at))})
	at += trailerBytes
	s.bit, s.member = uint64(at)*8, uint64(at)*8
	s.history = 0
	if ended, err = s.onlyZeros(at); ended || err != nil {
		return ended, err
	}
	if err = s.header(at); errors.Is(err, ErrNotGzip) {
		err = ErrTrailing
	}
	return false, err
}

// header reads the member header at the offset `at`, and moves the stream to the first block
// after it.
func (s *stream) header(at int64) error {
	for {
		n, err := headerBytes(s.in.at(at))
		if err != nil {
			return err
		}
		if n > 0 {
			s.bit = uint64(at+int64(n)) * 8
			return nil
		}
		if s.in.last() {
			return ErrTruncated
		}
		if err := s.in.grow(more, at); err != nil {
			return err
		}
	}
}

// onlyZeros reports whether only zeros follow, up to the end of the file. Such zeros are padding.
// A gzip header at the offset `at` gives false. Any other data give an error.
func (s *stream) onlyZeros(at int64) (bool, error) {
	for {
		for i, b := range s.in.at(at) {
			if b == 0 {
				continue
			}
			if rest := s.in.at(at)[i:]; i == 0 && (len(rest) < 2 && !s.in.last() || len(rest) >= 2 && rest[0] == 0x1f && rest[1] == 0x8b) {
				return false, s.need(at, 2)
			}
			return false, ErrTrailing
		}
		if s.in.last() {
			return true, nil
		}
		at += int64(len(s.in.at(at)))
		if err := s.in.grow(more, at); err != nil {
			return false, err
		}
		if s.in.begin+int64(len(s.in.bytes)) == at {
			return false, fmt.Errorf("%w: no bytes at %d", ErrTruncated, at)
		}
	}
}

// need reads until the n bytes that begin at the offset `at` are in memory.
func (s *stream) need(at, n int64) error {
	for s.in.begin+int64(len(s.in.bytes)) < at+n {
		if s.in.last() {
			return ErrTruncated
		}
		if err := s.in.grow(more, at); err != nil {
			return err
		}
	}
	return nil
}

// unknownWindow is the window of a wide output of which no byte is known. Element i stands for byte
// i of the window.
var unknownWindow = func() []uint16 {
	wide := make([]uint16, window)
	for i := range wide {
		wide[i] = uint16(ctd.InflateUnknown + i)
	}
	return wide
}()

// resolve turns wide elements into bytes. `known` is the window before the first element. It may be
// nil if no element is a position.
func resolve(wide []uint16, known *[window]byte, to []byte) {
	if len(wide) > 0 {
		ctd.InflateResolve(&wide[0], uintptr(len(wide)), (*uint8)(unsafe.Pointer(known)), &to[0])
	}
}

// find looks for a place in the file where a block or a member may begin. It looks from bit
// number `from` on, and before bit number `to`. If `stored` is true, the place is the length
// field of a stored block. `ok` is false if there is no place.
func (in *input) find(from, to uint64) (p place, stored, ok bool) {
	base := uint64(in.begin) * 8
	var bit uint64
	kind := ctd.InflateFind(unsafe.SliceData(in.bytes), uintptr(len(in.bytes)), from-base, to-base, &bit)
	return place{base + bit, kind == ctd.InflateMember}, kind == ctd.InflateStored, kind != 0
}
