package cgotorch

import (
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// ParallelOptions are the options of [Exec.ParallelWith]; the zero value runs the branches side by side, on streams of the library's own.
type ParallelOptions struct {
	// Choice decides, for each shape and dtype of Inputs, whether the branches run side by side or one after another on x's stream. nil means
	// side by side.
	Choice *Choice
	Inputs []*Tensor // what the branches read; only Choice looks at them
	InTurn bool      // one after another, whatever Choice would find

	// Streams are what all branches but the first run on, one each, in place of the library's own: with a priority, say. They are unequal and not x's own, and nothing else may run on them meanwhile. Transient has no effect then.
	Streams []*Stream

	// Transient says that the results are read by operators that backward needs no values of, such as Cat and Add, and then closed: their
	// memory is then reused at once, where a captured step otherwise gives it back at its end. Said wrongly, a later branch may overwrite
	// values that are still to be read.
	Transient bool
}

// Parallel runs branches side by side on the device and returns their results, each of its own branch. The first branch runs on x's stream,
// every other one on a side stream, which begins behind x's work so far; x's later work, and what reads a result, comes behind all of them.
// The host calls the functions one after another and does not wait. Backward runs side by side too, each operator on the stream of its
// forward. Branches may hold Parallels; in a captured function they become branches of the graph.
//
// Branches must be independent: none may write what another one uses. Each is to use the Exec that it is given and hand on nothing
// but its result; other tensors that it makes are freed, as by [Exec.Tidy]. Where a branch fails, or panics, x's stream waits for those
// before it first. It fails with [ErrInvalidArgument] for too few or repeated Streams.
//
// It pays where the kernels of one branch leave a part of the device empty, and the host, or a graph, enqueues them faster than they run;
// elsewhere it costs. [ParallelOptions.Choice] finds out.
func (x *Exec) Parallel(branches ...func(x *Exec) *Tensor) []*Tensor {
	return x.ParallelWith(ParallelOptions{}, branches...)
}

// ParallelWith is [Exec.Parallel] with options.
func (x *Exec) ParallelWith(o ParallelOptions, branches ...func(x *Exec) *Tensor) []*Tensor {
	const op = "Exec.Parallel"
	x.checkThread(op)
	if o.Streams != nil && len(o.Streams) < len(branches)-1 {
		x.Fail(op, &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(),
			Message: fmt.Sprintf("ParallelOptions.Streams has %d streams for %d branches: it needs one for each but the first", len(o.Streams), len(branches))})
	}
	for i, s := range o.Streams {
		if s == x.stream || slices.Contains(o.Streams[:i], s) {
			x.Fail(op, &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(),
				Message: fmt.Sprintf("ParallelOptions.Streams has %v twice, or it is what the branches fork from", s)})
		}
	}
	w := way{second: len(branches) > 1 && !o.InTurn}
	if w.second && o.Choice != nil {
		for _, t := range o.Inputs {
			x.open(op, t)
		}
		w = x.choose(op, o.Choice, o.Inputs, len(branches))
	}
	defer w.end()
	x = x.measured(w)
	return x.tidy(func() []*Tensor {
		results := make([]*Tensor, len(branches))
		if w.second {
			x.sideBySide(op, o, branches, results)
		} else {
			for i, branch := range branches {
				results[i] = x.Alias(x.branch(op, branch))
			}
		}
		w.completed = true
		return results
	})
}

// branch calls fn and frees what it makes but its result.
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

func (x *Exec) sideBySide(op string, o ParallelOptions, branches []func(x *Exec) *Tensor, results []*Tensor) {
	var sides []*sideBranch
	joined := 0
	defer func() { // where a branch has failed: x's stream is not to run ahead of what was enqueued
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
			// What the other branches run on began, to LibTorch's allocator, at this fork: a Parallel in here that used it would leave memory
			// there that they take while x's stream still reads it (Note [Memory of branches]).
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
	// Streams that were given are used by others too, between whose work there is no fork.
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

// joinUsed makes x's stream wait for every other one that the Do has used, behind a backward that has failed: LibTorch, which runs it on the
// streams of its forward, joins them only at its end.
func (x *Exec) joinUsed(op string) {
	if x.work != nil {
		return // nobody will launch it
	}
	for _, s := range x.s.used {
		if h, err := s.handle(op); err == nil {
			_ = awaitStream(op, x.c.Stream, h)
		}
	}
}

// side is the stream for the branch of that number among those on side streams.
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
