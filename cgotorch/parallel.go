package cgotorch

import (
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// ParallelOptions are the options of [Exec.Parallel]. The zero value runs the branches in
// parallel, on streams of the library's own.
type ParallelOptions struct {
	// Choice decides, for each shape and dtype of Inputs, whether the branches run in parallel or
	// serially on x's stream. nil means parallel.
	Choice *Choice
	Inputs []*Tensor // the tensors that the branches read; only Choice uses them
	Serial bool      // runs the branches one after another, without asking Choice

	// Streams are the streams of all branches except the first. nil means streams of the library's
	// own. A program sets Streams for a priority, for example. Streams must not contain a stream
	// twice, and must not contain x's stream. While the branches run, no other work may run on
	// Streams. If Streams is set, Transient has no effect.
	Streams []*Stream

	// With Transient the program promises two things. Only operators that save nothing for backward,
	// such as Cat and Add, read the results of the branches. Afterwards the program closes these
	// results. With this promise the memory of the results is reused at once. Without the promise a
	// captured step frees this memory only at its end. If the promise is wrong, a later branch can
	// overwrite results before they are read.
	Transient bool
}

// Parallel runs branches in parallel on the device and returns the result of each branch. The
// host calls the functions one after another and does not wait. The Do owns the results.
//
// The first branch runs on x's stream. Every other branch runs on a side stream, after x's work
// so far. x's later work, and every use of a result, runs after all branches. Backward runs in
// parallel too, each operator on the stream of its forward. Branches may call Parallel. In a
// captured function they become branches of the graph.
//
// Branches must be independent: no branch may write memory that another branch uses. A branch
// must use the Exec that it is given. Its result is the only tensor that it may hand out. All
// other tensors that a branch makes are freed, as by [Exec.Tidy].
//
// Parallel fails with [ErrInvalidArgument] if there are too few Streams, or if a stream is
// repeated. If a branch fails or panics, x's stream waits for the work that the branches have
// enqueued.
//
// Parallel branches are faster if two conditions hold. The kernels of one branch must leave a
// part of the device empty. The host, or a graph, must enqueue the kernels faster than the device
// runs them. Otherwise parallel branches are slower. [ParallelOptions.Choice] finds the faster
// way.
func (x *Exec) Parallel(o ParallelOptions, branches ...func(x *Exec) *Tensor) []*Tensor {
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

// A sideBranch is a branch that runs on a side stream.
type sideBranch struct {
	x      *Exec // the branch's Exec, on the side stream
	result *Tensor
}

// runParallel runs the branches on their streams and joins them.
func (x *Exec) runParallel(op string, o ParallelOptions, branches []func(x *Exec) *Tensor, results []*Tensor) {
	var sides []*sideBranch
	joined := 0
	defer func() { // if a branch has failed, x's stream must still wait for the enqueued work
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
			// A Parallel inside the first branch must not use the side streams of the other branches.
			// Otherwise it would free memory on these side streams while x's stream still reads this memory.
			// The other branches could then take this memory too early, because they wait only for x's work
			// before the first branch. See Note [Memory of branches].
			func() {
				defer x.s.stream.reserve(purpose{x.stream, false}, len(branches)-1)()
				results[0] = x.Alias(x.branch(op, fn))
			}()
			continue
		}
		b := &sideBranch{x: x.On(x.side(op, o, i-1))}
		b.x.parent, b.x.values = x, x.values
		b.x.Wait(fork) //edge:parallel-fork TestExec_Parallel checked
		x.must(op, ct.BranchBegin(b.x.c.Stream, x.c.Stream))
		sides = append(sides, b)
		b.result = b.x.branch(op, fn)
	}
	// Results on the program's own Streams are never transient. The program can enqueue other work on
	// these Streams, and this work need not wait for x's stream.
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

// joinUsed makes x's stream wait for every other stream that the Do has used. It is called after
// a backward has failed. LibTorch runs a backward on the streams of its forward, and x's stream
// waits for them only when the backward has reached its end.
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

// side returns the stream for side branch i, counted from 0.
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
