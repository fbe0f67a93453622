package seam

import "sync/atomic"

// Reducers is the number of Reducers in the process that parameters have. While it is 0, steps ask
// nothing, so they take no longer than without this check.
var Reducers atomic.Int64

// A Reducer reduces gradients over ranks. A distributed.Gradients is one.
type Reducer interface {
	// Reductions returns a number for each gradient, which grows with each reduction. It is 0 if a
	// backward has added to the gradient since, and before the first reduction. The list is valid
	// until the next call.
	Reductions() []int64
}

// Reductions remembers which reductions of gradients the steps of an optimizer have used.
type Reductions struct{ used []reduction }

type reduction struct {
	by     Reducer
	number int64
}

// Look calls `stale` with the number of each of n tensors whose gradient was not reduced since the
// last Look that has noted it. n is the same in all calls. `tensor` returns a *cgotorch.Tensor, or
// nil for a tensor that does not count. Tensors of no Reducer do not count either. `note` says
// whether a step uses the gradients now.
func (l *Reductions) Look(n int, note bool, tensor func(i int) any, stale func(i int)) {
	if Reducers.Load() == 0 {
		return
	}
	var by Reducer
	var now []int64
	for i := range n {
		t := tensor(i)
		if t == nil {
			continue
		}
		r, k := ReducerOf(t)
		if r == nil {
			continue
		}
		if r != by {
			by, now = r, r.Reductions()
		}
		if l.used == nil {
			l.used = make([]reduction, n)
		}
		last := reduction{r, now[k]}
		if last.number == 0 || l.used[i] == last {
			stale(i)
		}
		if note {
			l.used[i] = last
		}
	}
}
