package cgotorch

import (
	"fmt"
	"slices"
)

// A purpose is the use of side streams. Branches and an Overlap have different side streams,
// because backward runs the branches' nodes on the branches' streams again.
type purpose struct {
	from    *Stream
	overlap bool
}

// sideStreams are the streams that Dos of one stream fork to for one purpose.
type sideStreams struct {
	streams []*Stream
	// The number of first streams that a running Parallel keeps from Parallels in its first branch.
	reserved int
}

// reserve keeps the next n streams of a purpose from Parallels inside, until release is called.
func (s *Stream) reserve(of purpose, n int) (release func()) {
	add := func(n int) {
		s.state.Lock()
		defer s.state.Unlock()
		s.sidesOf(of).reserved += n
	}
	add(n)
	return func() { add(-n) }
}

// sidesOf returns the side streams of a purpose. s.state is held.
func (s *Stream) sidesOf(of purpose) *sideStreams {
	if s.sides == nil {
		s.sides = map[purpose]*sideStreams{}
	}
	if s.sides[of] == nil {
		s.sides[of] = &sideStreams{}
	}
	return s.sides[of]
}

// side returns stream i behind the reserved streams of a purpose. Side streams are made once
// and closed with s. Only one Do uses them at a time, because Dos of one stream exclude each
// other.
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

// ours reports whether x's stream is its Do's, or a side stream of it. All work on memory of
// its own side streams then comes before the event that s.closeSides records.
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

// closeSides closes s's side streams. s.state is held. They wait for s first, so that their
// next owner finds their memory unused.
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
