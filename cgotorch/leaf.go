package cgotorch

import (
	"fmt"
	"runtime"

	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// Note [Leaves of no optimizer]
//
// A layer inside a closure is seen by no optimizer, and nobody notices that it is not trained. So
// the first Step of an optimizer begins a watch on the Do's stream, and its second Step ends it. In
// between, each operator notes the kept leaves among its arguments that require a gradient. The
// second Step tells of those that have a gradient and belong to no optimizer. Outside of the watch
// an operator only compares a pointer with nil.

// leafRole is what optimizers and package distributed have noted on a parameter.
type leafRole struct {
	optimized bool         // an optimizer has it
	reducer   seam.Reducer // reduces its gradient over ranks; may be nil
	index     int          // of the gradient in the reducer
}

// leafRole returns the role of a tensor that gets one.
func (t *Tensor) leafRole() *leafRole {
	if t.role == nil {
		t.role = &leafRole{}
	}
	return t.role
}

func (t *Tensor) optimized() bool { return t.role != nil && t.role.optimized }

// leafWatch holds the leaves that operators have used.
type leafWatch struct {
	uses []leafUse
	seen map[*Tensor]bool
}

// leafUse is the first use of a leaf.
type leafUse struct {
	leaf   *Tensor
	op, at string
}

// mostLeaves bounds the work of a watch.
const mostLeaves = 100

// see notes the leaves among the arguments of a call.
func (l *leafWatch) see(c *call) {
	if c.x.work != nil {
		return
	}
	for _, t := range c.kept {
		if t.optimized() || l.seen[t] || len(l.uses) >= mostLeaves {
			continue
		}
		if info := t.info(); info.RequiresGrad != 0 && info.IsLeaf != 0 {
			l.seen[t] = true
			l.uses = append(l.uses, leafUse{t, c.op.name, caller()})
		}
	}
}

// watchLeaves begins a watch on the stream of x's Do.
func watchLeaves(x *Exec) {
	stream := x.s.stream
	if stream.leaves == nil {
		stream.leaves = &leafWatch{seen: map[*Tensor]bool{}}
	}
	x.s.care.leaves = stream.leaves
}

// strayLeaves ends the watch. It returns a text about the leaves that have a gradient and belong to
// no optimizer, or "".
func strayLeaves(x *Exec) string {
	watch := x.s.stream.leaves
	x.s.stream.leaves, x.s.care.leaves = nil, nil
	if watch == nil {
		return ""
	}
	text, more := "", 0
	for _, u := range watch.uses {
		switch {
		case u.leaf.Closed() || u.leaf.optimized() || u.leaf.Grad() == nil:
		case text == "":
			text = fmt.Sprintf("%s, which %s uses at %s", u.leaf, u.op, u.at)
		default:
			more++
		}
	}
	runtime.KeepAlive(watch)
	if more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}
