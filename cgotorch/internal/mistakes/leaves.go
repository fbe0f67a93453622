package mistakes

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch/internal/place"
)

// Note [Leaves of no optimizer]
//
// A layer inside a closure is seen by no optimizer, and nobody notices that it is not trained. So
// the first Step of an optimizer begins a watch on the Do's stream, and its second Step ends it. In
// between, each operator notes the kept leaves among its arguments that require a gradient. The
// second Step tells of those that have a gradient and belong to no optimizer. Without a watch
// an operator only compares the number of observers with 0.

// Leaves holds the leaves that operators have used. T is a tensor.
type Leaves[T comparable] struct {
	stray func(T) bool // a leaf that is in no optimizer
	uses  []use[T]
	seen  map[T]bool
}

// use is the first use of a leaf.
type use[T comparable] struct {
	leaf   T
	op, at string
}

// mostLeaves bounds the work of a watch.
const mostLeaves = 100

// NewLeaves begins a watch. `stray` reports whether a tensor requires a gradient, is a leaf, and
// belongs to no optimizer.
func NewLeaves[T comparable](stray func(T) bool) *Leaves[T] {
	return &Leaves[T]{stray: stray, seen: map[T]bool{}}
}

// See notes the leaves among the arguments of a call.
func (l *Leaves[T]) See(op string, kept []T) {
	for _, t := range kept {
		if l.seen[t] || len(l.uses) >= mostLeaves || !l.stray(t) {
			continue
		}
		l.seen[t] = true
		l.uses = append(l.uses, use[T]{t, op, place.Caller()})
	}
}

// Strays describes the leaves for which `still` is true, or returns "".
func (l *Leaves[T]) Strays(still func(T) bool) string {
	text, more := "", 0
	for _, u := range l.uses {
		switch {
		case !still(u.leaf):
		case text == "":
			text = fmt.Sprintf("%v, which %s uses at %s", u.leaf, u.op, u.at)
		default:
			more++
		}
	}
	if more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}
