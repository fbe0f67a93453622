package cgotorch

import (
	"runtime"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// An Overlap lets a backward compute the gradients of a layer's weights and bias on a side
// stream. At the same time the Exec's stream computes the gradient of the layer's input. One of
// these computations alone often leaves a part of the device empty, most of all with small
// batches. If the operators are deterministic, the gradients have the same bits as without an
// Overlap. An Overlap is an option of [Exec.BackwardWith]:
//
//	x.BackwardWith(cgotorch.BackwardOptions{Overlap: overlap}, loss)
//
// An Overlap may be used from any goroutine.
//
// # Layers that take part
//
// Convolutions of one to three dimensions take part, also if they are transposed, grouped or
// dilated. Linear layers of at least one row take part too. Both the input and the weights of a
// layer must need gradients. A layer takes no part if its gradients are differentiated again, or
// if it lies inside a branch of [Exec.Parallel].
//
// The CPU does not run two streams at once. On the CPU an Overlap has an effect only with the
// option Always, which is there for tests.
//
// # Late gradients
//
// Some weight gradients are late: on CUDA the Exec's stream waits for them only when the backward
// ends, and not after each layer. The weight gradients of a layer are late on two conditions.
// They must go into parameters, directly or through a cast. Each weight must be used only once.
// Other backwards into the same parameters must not run at the same time.
//
// The inputs of late gradients stay alive until the Exec's stream waits for these gradients.
// These inputs take at most a fortieth of the allocated memory, plus the inputs of one layer.
// Above this limit the Exec's stream waits for the oldest late gradients. In addition, LibTorch's
// allocator holds separate memory for each side stream.
//
// # Decisions
//
// A layer's backward can run in two ways: on one stream, or on several streams. For each kind and
// shape of layer, the Overlap measures both ways and then uses the faster way, like a [Choice].
// Eager and captured steps are measured separately. The measured calls are trials. Eager trials
// wait for each layer, so they do not show the whole gain of late gradients. In the warm-up of a
// graph, each kind of layer is captured in both ways. Both captures are launched some times, and
// the host waits for them. If a layer runs out of memory during a trial, it runs on one stream
// from then on.
type Overlap struct {
	h      *ct.Overlap
	choice *Choice
	always bool
	sides  int // number of side streams
}

// OverlapOptions are the options of [NewOverlap].
type OverlapOptions struct {
	// Always runs the gradients of a layer in parallel from the layer's second call on, without a
	// measurement.
	Always bool
	// Streams is the number of streams that a backward uses, counting the Exec's stream. It is 2 to
	// 16, and 0 means 2. The late gradients of successive layers go to the side streams in rotation.
	Streams int
	// Log is called once for each decision. `text` has the decision, the times of both ways and the
	// reason. Log may be nil.
	Log func(text string)
}

const maxOverlapStreams = 16

// NewOverlap returns an Overlap that has decided nothing yet. The garbage collector frees the
// Overlap. NewOverlap fails with [ErrInvalidArgument] if Streams is neither 0 nor 2 to 16.
//
// A linear layer takes part only if its forward ran after the first NewOverlap of the process.
func NewOverlap(o OverlapOptions) (*Overlap, error) {
	if err := ready(); err != nil {
		return nil, err
	}
	const op = "NewOverlap"
	if o.Streams == 0 {
		o.Streams = 2
	}
	if o.Streams < 2 || o.Streams > maxOverlapStreams {
		return nil, refuse(op, ErrInvalidArgument,
			"OverlapOptions.Streams is %d, want 2 to %d, or 0 for 2", o.Streams, maxOverlapStreams)
	}
	p := &Overlap{always: o.Always, sides: o.Streams - 1}
	if err := check(op, ct.OverlapNew(cbool(o.Always), &p.h)); err != nil {
		return nil, err
	}
	p.choice = &Choice{log: o.Log, h: ct.OverlapChoice(p.h)}
	runtime.AddCleanup(p, func(h *ct.Overlap) { ct.OverlapFree(h) }, p.h)
	return p, nil
}

// counts returns the counts of calls since the Overlap was made.
func (p *Overlap) counts() (c ct.OverlapCounts) {
	_ = check("Overlap", ct.OverlapCount(p.h, &c))
	runtime.KeepAlive(p)
	return c
}

// overlap calls the function `backward` with side streams that wait for x's work so far. Afterwards
// it makes x's stream wait for the side streams.
func (x *Exec) overlap(op string, p *Overlap, backward func(sides []*ct.Stream)) {
	if p.h == nil {
		x.Fail(op, refuse(op, ErrInvalidArgument, "the Overlap was not made by NewOverlap"))
	}
	before := p.counts().Parallel
	fork := x.Record()
	defer fork.Close()
	var sides []*Exec
	var handles []*ct.Stream
	for i := range p.sides {
		s, err := x.s.stream.side(purpose{x.stream, true}, i)
		if err != nil {
			x.Fail(op, err)
		}
		side := x.On(s)
		side.Wait(fork)
		sides, handles = append(sides, side), append(handles, side.c.Stream)
	}
	defer func() { // also runs if the backward fails
		for _, side := range sides {
			_ = x.await(op, side)
		}
		if g := x.work; g != nil && !p.always {
			g.parallel = g.parallel || p.counts().Parallel > before
			if ct.ChoiceOpen(p.choice.h, 1) != 0 {
				x.undecided()
			}
		}
		p.choice.tell()
		runtime.KeepAlive(p)
	}()
	backward(handles)
}
