package cgotorch

import (
	"fmt"
	"slices"
)

// A purpose says what side streams are used for. A backward runs the nodes of a branch on the
// side stream of that branch. The Overlap of this backward must therefore use other side streams.
type purpose struct {
	from    *Stream
	overlap bool
}

// sideStreams are the side streams that the Dos of one stream use for one purpose.
type sideStreams struct {
	streams []*Stream
	// `reserved` is the number of streams, from the first one on, that a running Parallel uses for
	// its own branches. A Parallel inside the first branch must not use these streams.
	reserved int
}

// reserve reserves the next n streams of a purpose, until the function `release` is called. A
// Parallel inside the first branch does not use reserved streams.
func (s *Stream) reserve(of purpose, n int) (release func()) {
	add := func(n int) {
		s.state.Lock()
		defer s.state.Unlock()
		s.sidesOf(of).reserved += n
	}
	add(n)
	return func() { add(-n) }
}

// sidesOf returns the side streams of a purpose. The caller holds s.state.
func (s *Stream) sidesOf(of purpose) *sideStreams {
	if s.sides == nil {
		s.sides = map[purpose]*sideStreams{}
	}
	if s.sides[of] == nil {
		s.sides[of] = &sideStreams{}
	}
	return s.sides[of]
}

// side returns stream i of a purpose, counted from the first stream that is not reserved. Side
// streams are made once and closed with s. Only one Do uses them at a time, because Dos of one
// stream exclude each other.
func (s *Stream) side(of purpose, i int) (*Stream, error) {
	s.state.Lock()
	defer s.state.Unlock()
	sides := s.sidesOf(of)
	i += sides.reserved
	what := "side"
	if of.overlap {
		what = "late gradients"
	}
	for len(sides.streams) <= i {
		made, err := NewStream(s.device, StreamOptions{Name: fmt.Sprintf("%s, %s %d", of.from.name, what, len(sides.streams)+1)})
		if err != nil {
			return nil, err
		}
		sides.streams = append(sides.streams, made)
	}
	return sides.streams[i], nil
}

// ours reports whether x's stream is the stream of x's Do or one of that stream's side streams. If
// so, all work on the memory of the side streams comes before the event that closeSides records.
func (x *Exec) ours() bool {
	s := x.s.stream
	if x.stream == s {
		return true
	}
	s.state.Lock()
	defer s.state.Unlock()
	for _, sides := range s.sides {
		if slices.Contains(sides.streams, x.stream) {
			return true
		}
	}
	return false
}

// closeSides closes the side streams of s. The caller holds s.state. The side streams first wait
// for s, so that their memory is unused when their next owner begins.
func (s *Stream) closeSides() {
	if len(s.sides) == 0 {
		return
	}
	e, err := recordEvent("Stream.Close", s.h, 0)
	for _, sides := range s.sides {
		for _, side := range sides.streams {
			if err == nil {
				_ = side.Wait(e)
			}
			side.Close()
		}
	}
	e.Close()
	s.sides = nil
}
