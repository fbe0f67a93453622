package optim

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// These are the constants of Wolfe's strong conditions, as in PyTorch.
const (
	enoughDescent   = 1e-4
	enoughCurvature = 0.9
)

// point is a point on the line that a search goes along.
type point struct {
	length, loss float64
	gradient     *cgotorch.Tensor
	slope        float64 // of the loss along the line
}

// at returns the point at a length. The parameters are afterwards as before.
func (s *search) at(start []*cgotorch.Tensor, direction *cgotorch.Tensor, length float64) point {
	s.move(length, direction)
	p := point{length: length}
	p.loss, p.gradient = s.evaluate()
	for i, t := range s.o.params {
		s.x.CopyInPlace(t, start[i]).Close()
	}
	p.slope = s.dot(p.gradient, direction)
	return p
}

// wolfe searches for a point that meets Wolfe's strong conditions. It first brackets such a point,
// and then makes the bracket smaller. It returns the best point after at most `most` evaluations,
// and the gradient there.
func (s *search) wolfe(direction *cgotorch.Tensor, length, loss float64, gradient *cgotorch.Tensor, slope float64, most int) (point, *cgotorch.Tensor) {
	start := make([]*cgotorch.Tensor, len(s.o.params))
	for i, p := range s.o.params {
		start[i] = s.x.Clone(p)
	}
	zero := point{0, loss, gradient, slope}
	bracket, tries := s.bracket(start, direction, zero, length, most)
	if len(bracket) == 1 {
		return bracket[0], bracket[0].gradient
	}
	largest := s.largest(direction)
	low, high := order(bracket)
	stuck := false
	for ; tries < most && math.Abs(bracket[1].length-bracket[0].length)*largest >= s.o.o.ChangeTolerance; tries++ {
		from, to := min(bracket[0].length, bracket[1].length), max(bracket[0].length, bracket[1].length)
		length := cubic(bracket[0], bracket[1], from, to)
		length, stuck = awayFromEnds(length, from, to, stuck)
		p := s.at(start, direction, length)
		switch {
		case p.loss > loss+enoughDescent*length*slope || p.loss >= bracket[low].loss:
			bracket[high] = p
			low, high = order(bracket)
			continue
		case math.Abs(p.slope) <= -enoughCurvature*slope:
			return p, p.gradient
		case p.slope*(bracket[high].length-bracket[low].length) >= 0:
			bracket[high] = bracket[low]
		}
		bracket[low] = p
	}
	return bracket[low], bracket[low].gradient
}

// bracket returns two points with a good point between them, or one good point. It also returns the
// number of tries after the first.
func (s *search) bracket(start []*cgotorch.Tensor, direction *cgotorch.Tensor, zero point, length float64, most int) (bracket []point, tries int) {
	previous, now := zero, s.at(start, direction, length)
	for ; tries < most; tries++ {
		switch {
		case now.loss > zero.loss+enoughDescent*now.length*zero.slope || tries > 1 && now.loss >= previous.loss:
			return []point{previous, now}, tries
		case math.Abs(now.slope) <= -enoughCurvature*zero.slope:
			return []point{now}, tries
		case now.slope >= 0:
			return []point{previous, now}, tries
		}
		next := cubic(previous, now, now.length+0.01*(now.length-previous.length), 10*now.length)
		previous, now = now, s.at(start, direction, next)
	}
	return []point{zero, now}, tries
}

// order returns the index of the point with the lower loss, and that of the other.
func order(bracket []point) (low, high int) {
	if bracket[0].loss <= bracket[1].loss {
		return 0, 1
	}
	return 1, 0
}

// cubic returns the length of the minimum of the cubic through two points, limited to [from, to].
func cubic(a, b point, from, to float64) float64 {
	d1 := a.slope + b.slope - 3*(a.loss-b.loss)/(a.length-b.length)
	square := d1*d1 - a.slope*b.slope
	if !(square >= 0) { // below 0, or NaN
		return (from + to) / 2
	}
	d2 := math.Sqrt(square)
	var at float64
	if a.length <= b.length {
		at = b.length - (b.length-a.length)*((b.slope+d2-d1)/(b.slope-a.slope+2*d2))
	} else {
		at = a.length - (a.length-b.length)*((a.slope+d2-d1)/(a.slope-b.slope+2*d2))
	}
	return min(max(at, from), to)
}

// awayFromEnds moves a length that is near an end of the bracket, if the length before it was near
// an end too. It reports whether the length is near an end and has not been moved.
func awayFromEnds(length, from, to float64, stuck bool) (float64, bool) {
	margin := 0.1 * (to - from)
	if min(to-length, length-from) >= margin {
		return length, false
	}
	if !stuck && length < to && length > from {
		return length, true
	}
	if math.Abs(length-to) < math.Abs(length-from) {
		return to - margin, false
	}
	return from + margin, false
}
