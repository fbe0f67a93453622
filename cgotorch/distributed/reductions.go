package distributed

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

// Note [Gradients of one rank]
//
// A step by gradients that were not reduced lets the ranks train apart, and nothing else shows it.
// So a Gradients numbers its reductions, and the core counts what other backwards have added to
// each gradient. A step of package optim asks for both: see Reductions in package seam. Nothing
// asks for gradients that a program sets by itself after a reduction.

// watch makes steps ask r whether the gradients of its parameters were reduced.
func (r *Gradients) watch() {
	n := len(r.parameters)
	r.numbers, r.seen, r.missed, r.now = make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	for i, p := range r.parameters {
		notes := inside.Core.Notes(p)
		*notes = seam.Without[seam.Reduced](*notes).With(seam.Reduced{By: (*reductions)(r), Index: i}, seam.Everywhere)
	}
	r.group.state.Lock()
	defer r.group.state.Unlock()
	r.group.reducers = append(r.group.reducers, r)
}

func (r *Gradients) unwatch() {
	if r.numbers == nil {
		return
	}
	for _, p := range r.parameters {
		notes := inside.Core.Notes(p)
		if by, _ := seam.Find[seam.Reduced](*notes); by.By == (*reductions)(r) {
			*notes = seam.Without[seam.Reduced](*notes)
		}
	}
	r.group.state.Lock()
	defer r.group.state.Unlock()
	r.group.reducers = slices.DeleteFunc(slices.Clone(r.group.reducers), func(other *Gradients) bool { return other == r })
}

// reductions is a Gradients as a seam.Reducer.
type reductions Gradients

// Reductions returns the numbers of seam.Reducer.
func (r *reductions) Reductions() []int64 {
	ct.ReducerMissed(r.h, &r.missed[0])
	for i, n := range r.numbers {
		if r.now[i] = n; r.missed[i] != r.seen[i] {
			r.now[i] = 0
		}
	}
	return r.now
}

// mark notes that some gradients were reduced. A captured reduction is one at each launch.
func (r *Gradients) mark(x *cgotorch.Exec, which func(i int) bool) {
	if r.numbers == nil {
		return
	}
	var all []int
	for i := range r.numbers {
		if which(i) {
			all = append(all, i)
		}
	}
	if len(all) == 0 {
		return
	}
	note := func(*cgotorch.Exec) {
		ct.ReducerMissed(r.h, &r.missed[0])
		r.last++
		for _, i := range all {
			r.numbers[i], r.seen[i] = r.last, r.missed[i]
		}
	}
	note(x) // a step in the same capture asks too
	if x.Capturing() {
		x.EachLaunch(note)
	}
}

// alike notes that tensors have the same values on all ranks. They may be gradients.
func (g *Group) alike(x *cgotorch.Exec, ts []*cgotorch.Tensor) {
	g.state.Lock()
	all := g.reducers
	g.state.Unlock()
	for _, r := range all {
		r.mark(x, func(i int) bool {
			return slices.ContainsFunc(ts, func(t *cgotorch.Tensor) bool { return inside.Core.HasGrad(r.parameters[i], t) })
		})
	}
}
