package optim

import (
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/internal/mistakes"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// known is the value of a tensor that an optimizer has, or that was told of as a stray.
type known struct{}

func markKnown(p *cgotorch.Tensor) {
	notes := inside.Core.Notes(p)
	*notes = seam.Without[known](*notes).With(known{}, seam.Everywhere)
}

func isKnown(t *cgotorch.Tensor) bool {
	_, is := seam.Find[known](*inside.Core.Notes(t))
	return is
}

// leafWatch follows the Dos of a stream between the first and the second Step of an optimizer.
type leafWatch struct {
	leaves atomic.Pointer[mistakes.Leaves[*cgotorch.Tensor]] // nil when the watch has ended
}

func (*leafWatch) Before(*cgotorch.Exec, string) {}
func (*leafWatch) End()                          {}

func (l *leafWatch) After(x *cgotorch.Exec, op string, kept []*cgotorch.Tensor) {
	if leaves := l.leaves.Load(); leaves != nil && !inside.Core.InGraph(x) {
		leaves.See(op, kept)
	}
}

// watchLeaves begins a watch on the stream of x's Do.
func (o *Optimizer) watchLeaves(x *cgotorch.Exec) {
	o.leaves = &leafWatch{}
	o.leaves.leaves.Store(mistakes.NewLeaves(func(t *cgotorch.Tensor) bool { return !isKnown(t) && inside.Core.IsLeaf(t) }))
	inside.Core.Observe(x, o.leaves)
}

// strayLeaves ends the watch. It describes the leaves that have a gradient and belong to no
// optimizer, or returns "".
func (o *Optimizer) strayLeaves(x *cgotorch.Exec) string {
	watch := o.leaves
	o.leaves = nil
	if watch == nil {
		return ""
	}
	leaves := watch.leaves.Swap(nil)
	if !inside.Core.Unobserve(x, watch) { // the first Step ran on another stream, whose Dos may run now
		return ""
	}
	return leaves.Strays(func(t *cgotorch.Tensor) bool {
		if t.Closed() || isKnown(t) || t.Grad() == nil {
			return false
		}
		markKnown(t)
		return true
	})
}
