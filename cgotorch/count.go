package cgotorch

// #include "cgotorch.h"
import "C"

import "slices"

// pendingCounts are tensors that are to be counted up on one stream.
type pendingCounts struct {
	x  *Exec
	ts []*Tensor
}

// CountLater adds 1 to each element of t on x's stream, but not at once: in one kernel with the others of the Do, before its next Backward,
// before an event is recorded on the stream, before anything is read back to the host, and when the Do ends. A model has dozens of counters, and a kernel for each took 1 to 2 % of a
// step. t is kept, as a module's buffers are.
func (x *Exec) CountLater(t *Tensor) {
	const op = "Exec.CountLater"
	x.checkThread(op)
	x.open(op, t)
	s := x.s
	if len(s.counts) == 0 {
		x.AtEnd(func() { s.count(nil) })
	}
	for i := range s.counts {
		p := &s.counts[i]
		if p.x.c.stream != x.c.stream {
			continue
		}
		for _, other := range p.ts {
			if other == t { // twice in one kernel would be once
				s.count(x.c.stream)
				x.CountLater(t)
				return
			}
		}
		p.ts = append(p.ts, t)
		return
	}
	s.counts = append(s.counts, pendingCounts{x.NoGrad().NoAutocast(), []*Tensor{t}})
}

// handCounts leaves to x what CountLater has put off for a stream that x's stream waits for.
func (s *scope) handCounts(from *C.ct_stream, x *Exec) {
	var kept []pendingCounts
	var handed []*Tensor
	mine := -1
	for _, p := range s.counts {
		if p.x.c.stream == from {
			handed = append(handed, p.ts...)
			continue
		}
		if p.x.c.stream == x.c.stream {
			mine = len(kept)
		}
		kept = append(kept, p)
	}
	switch {
	case len(handed) == 0:
		return
	case mine >= 0 && !slices.ContainsFunc(handed, func(t *Tensor) bool { return slices.Contains(kept[mine].ts, t) }):
		kept[mine].ts = append(kept[mine].ts, handed...)
	default: // of two for one tensor, each has a kernel
		kept = append(kept, pendingCounts{x.NoGrad().NoAutocast(), handed})
	}
	s.counts = kept
}

// count does what CountLater has put off for the stream, nil for all.
func (s *scope) count(stream *C.ct_stream) {
	pending := s.counts
	s.counts = nil
	for _, p := range pending {
		if stream != nil && p.x.c.stream != stream {
			s.counts = append(s.counts, p)
			continue
		}
		open := p.ts[:0]
		for _, t := range p.ts {
			if !t.Closed() {
				open = append(open, t)
			}
		}
		if len(open) > 0 {
			p.x.ForeachAddScalarInPlace(open, 1)
		}
	}
}
