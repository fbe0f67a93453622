package cgotorch

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// ParallelOptions are the options of [Exec.ParallelWith]. The zero value runs the branches in
// parallel, on streams of the library's own.
type ParallelOptions struct {
	// Choice decides for each shape and dtype of Inputs whether the branches run in parallel, or
	// serially on x's stream. nil means parallel.
	Choice *Choice
	Inputs []*Tensor // read by the branches; only Choice looks at them
	Serial bool      // one branch after another, whatever Choice finds

	// Streams are the streams of all branches but the first, in place of the library's own: with a
	// priority, say. They are unequal, and x's own is not among them. Nothing else may run on them
	// meanwhile. Transient has no effect on them.
	Streams []*Stream

	// Transient promises that operators without saved values, such as Cat and Add, read the
	// results, which are then closed. Their memory is then reused at once. Without it a captured
	// step gives this memory back at its end. A wrong promise lets a later branch overwrite values
	// that are still to be read.
	Transient bool
}

// Parallel runs branches in parallel on the device and returns the result of each branch. The
// host calls the functions one after another and does not wait. The Do owns the results.
//
// The first branch runs on x's stream. Every other branch runs on a side stream, behind x's
// work so far. x's later work comes behind all branches, and so does every reader of a result.
// Backward runs in parallel too, each operator on the stream of its forward. Branches may call
// Parallel. In a captured function they become branches of the graph.
//
// Branches must be independent: no branch may write memory that another branch uses. Each must
// use the Exec that it is given and hand on nothing but its result. Other tensors that it makes
// are freed, as by [Exec.Tidy].
//
// Parallel fails with [ErrInvalidArgument] for too few or repeated Streams. Where a branch
// fails or panics, x's stream first waits for the branches before it.
//
// Parallel branches are faster where the kernels of one branch leave a part of the device
// empty. The host or a graph must also enqueue them faster than they run. Elsewhere they are
// slower. [ParallelOptions.Choice] finds the faster way.
func (x *Exec) Parallel(branches ...func(x *Exec) *Tensor) []*Tensor {
	return x.ParallelWith(ParallelOptions{}, branches...)
}

// ParallelWith is [Exec.Parallel] with options.
func (x *Exec) ParallelWith(o ParallelOptions, branches ...func(x *Exec) *Tensor) []*Tensor {
	const op = "Exec.Parallel"
	x.checkThread(op)
	if o.Streams != nil && len(o.Streams) < len(branches)-1 {
		x.Fail(op, refuse(op, ErrInvalidArgument,
			"ParallelOptions.Streams has %d streams for %d branches: it needs one for each but the first", len(o.Streams), len(branches)))
	}
	for i, s := range o.Streams {
		if s == x.stream || slices.Contains(o.Streams[:i], s) {
			x.Fail(op, refuse(op, ErrInvalidArgument,
				"ParallelOptions.Streams has %v twice, or it is what the branches fork from", s))
		}
	}
	w := way{parallel: len(branches) > 1 && !o.Serial}
	if w.parallel && o.Choice != nil {
		for _, t := range o.Inputs {
			x.open(op, t)
		}
		w = x.choose(op, o.Choice, o.Inputs, len(branches))
	}
	defer w.end()
	x = x.measured(w)
	return x.tidy(func() []*Tensor {
		results := make([]*Tensor, len(branches))
		if w.parallel {
			x.runParallel(op, o, branches, results)
		} else {
			for i, branch := range branches {
				results[i] = x.Alias(x.branch(op, branch))
			}
		}
		w.completed = true
		return results
	})
}

// branch calls fn and frees all tensors that fn makes, except its result.
func (x *Exec) branch(op string, fn func(x *Exec) *Tensor) *Tensor {
	return x.Tidy(func() *Tensor {
		t := fn(x)
		x.open(op, t)
		return t
	})
}

// A sideBranch is a branch on a side stream that x's stream does not wait for yet.
type sideBranch struct {
	x      *Exec // of the side stream
	result *Tensor
}

// runParallel runs the branches on their streams and joins them.
func (x *Exec) runParallel(op string, o ParallelOptions, branches []func(x *Exec) *Tensor, results []*Tensor) {
	var sides []*sideBranch
	joined := 0
	defer func() { // where a branch has failed, x's stream must not run ahead of the enqueued work
		for _, b := range sides[joined:] {
			_ = x.await(op, b.x) //edge:parallel-failed-join TestExec_Parallel_Failures checked
			var none *ct.Tensor
			_ = check(op, ct.BranchEnd(x.c, b.x.c.Stream, nil, 0, &none))
		}
	}()
	fork := x.Record()
	defer fork.Close()
	for i, fn := range branches {
		if i == 0 {
			// To LibTorch's allocator the other branches' streams began at this fork. A Parallel in
			// here that used them would leave memory there. The other branches would take this
			// memory while x's stream still reads it (Note [Memory of branches]).
			func() {
				defer x.s.stream.reserve(purpose{x.stream, false}, len(branches)-1)()
				results[0] = x.Alias(x.branch(op, fn))
			}()
			continue
		}
		b := &sideBranch{x: x.On(x.side(op, o, i-1))}
		b.x.parent = x
		b.x.Wait(fork) //edge:parallel-fork TestExec_Parallel checked
		x.must(op, ct.BranchBegin(b.x.c.Stream, x.c.Stream))
		sides = append(sides, b)
		b.result = b.x.branch(op, fn)
	}
	// The program uses its own Streams for other work too, without a fork between.
	transient := (o.Transient || !x.GradEnabled()) && o.Streams == nil && x.ours()
	for i, b := range sides {
		if err := x.await(op, b.x); err != nil { //edge:parallel-join TestExec_Parallel checked
			x.Fail(op, err)
		}
		var out *ct.Tensor
		joined++
		x.must(op, ct.BranchEnd(x.c, b.x.c.Stream, b.result.h, cbool(transient), &out))
		results[i+1] = x.s.own(out)
	}
}

// joinUsed makes x's stream wait for every other stream that the Do has used, behind a backward
// that has failed. LibTorch runs a backward on the streams of its forward and joins them only
// at its end.
func (x *Exec) joinUsed(op string) {
	if x.work != nil {
		return // the failed capture is never launched
	}
	for _, s := range x.s.used {
		if h, err := s.handle(op); err == nil {
			_ = awaitStream(op, x.c.Stream, h)
		}
	}
}

// side returns the stream for branch i of those on side streams.
func (x *Exec) side(op string, o ParallelOptions, i int) *Stream {
	if o.Streams != nil {
		return o.Streams[i]
	}
	s, err := x.s.stream.side(purpose{x.stream, false}, i)
	if err != nil {
		x.Fail(op, err)
	}
	return s
}
