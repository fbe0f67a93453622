package cgotorch

import (
	"fmt"
	"slices"
)

// A purpose is what side streams are for: those of branches are others than those of an Overlap, since backward runs branches' nodes again there.
type purpose struct {
	from    *Stream
	overlap bool
}

// side returns one of the streams that Dos of s fork to. They are made once and closed with s: nobody else uses them, since Dos of
// one stream exclude each other.
func (s *Stream) side(of purpose, i int) (*Stream, error) {
	s.state.Lock()
	defer s.state.Unlock()
	if s.sides == nil {
		s.sides = map[purpose][]*Stream{}
	}
	what := "side"
	if of.overlap {
		what = "late gradients"
	}
	for len(s.sides[of]) <= i {
		made, err := NewStream(s.device, StreamOptions{Name: fmt.Sprintf("%s, %s %d", of.from.name, what, len(s.sides[of])+1)})
		if err != nil {
			return nil, err
		}
		s.sides[of] = append(s.sides[of], made)
	}
	return s.sides[of][i], nil
}

// ours reports whether x's stream is its Do's, or a side stream of the Do's: all that is done with memory of its own side streams then comes
// before what s.closeSides records.
func (x *Exec) ours() bool {
	s := x.s.stream
	if x.stream == s {
		return true
	}
	s.state.Lock()
	defer s.state.Unlock()
	for _, sides := range s.sides {
		if slices.Contains(sides, x.stream) {
			return true
		}
	}
	return false
}

// closeSides closes s's side streams, with s.state held. Who gets them next finds their memory in use by nobody else: they wait for s first.
func (s *Stream) closeSides() {
	if len(s.sides) == 0 {
		return
	}
	e, err := recordEvent("Stream.Close", s.h, 0)
	for _, sides := range s.sides {
		for _, side := range sides {
			if err == nil {
				_ = side.Wait(e)
			}
			side.Close()
		}
	}
	e.Close()
	s.sides = nil
}
