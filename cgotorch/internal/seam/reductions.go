package seam

// A Reducer reduces gradients over ranks. A distributed.Gradients is one.
type Reducer interface {
	// Reductions returns a number for each gradient, which grows with each reduction. It is 0 if a
	// backward has added to the gradient since, and before the first reduction. The list is valid
	// until the next call.
	Reductions() []int64
}

// Reduced is the value of a parameter whose gradient `By` reduces, as its gradient Index.
type Reduced struct {
	By    Reducer
	Index int
}

// Reductions remembers which reductions of gradients the steps of an optimizer have used.
type Reductions struct{ used []reduction }

type reduction struct {
	by     Reducer
	number int64
}

// Look calls `stale` with the number of each of n tensors whose gradient was not reduced since the
// last Look that has noted it. n is the same in all calls. `notes` returns the values of a tensor,
// or nil for a tensor that does not count. Tensors of no Reducer do not count either. `note` says
// whether a step uses the gradients now.
func (l *Reductions) Look(n int, note bool, notes func(i int) *Values, stale func(i int)) {
	var by Reducer
	var now []int64
	for i := range n {
		r, ok := Find[Reduced](notes(i))
		if !ok {
			continue
		}
		if r.By != by {
			by, now = r.By, r.By.Reductions()
		}
		if l.used == nil {
			l.used = make([]reduction, n)
		}
		last := reduction{r.By, now[r.Index]}
		if last.number == 0 || l.used[i] == last {
			stale(i)
		}
		if note {
			l.used[i] = last
		}
	}
}
