package cgotorch

import (
	"fmt"
	"runtime"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// An Overlap lets a backward compute the gradients of a layer's weights and bias on a side
// stream. The gradient of the layer's input, which the layer before needs, runs on the Exec's
// stream meanwhile. One of both often leaves a part of the device empty, most of all with small
// batches. Gradients are the same to the bit where the operators are deterministic. An Overlap
// is an option of [Exec.BackwardWith]:
//
//	x.BackwardWith(cgotorch.BackwardOptions{Overlap: overlap}, loss)
//
// # Layers that take part
//
// Convolutions of one to three dimensions take part: transposed, grouped and dilated ones too.
// So do linear layers of at least one row. Both the input and the weights must need gradients.
// Gradients that are differentiated again take no part. Layers inside branches of
// [Exec.Parallel] take no part either.
//
// The CPU does not run two streams at once. There only Always has an effect, for tests.
//
// # Late gradients
//
// Gradients are late where they go into parameters, at most through a cast, and each weight is
// used once. On CUDA the Exec's stream then waits for them when the backward ends, and not
// layer by layer. Other backwards into the same parameters must not run at the same time.
//
// The inputs of late gradients stay alive until then. They take at most a fortieth of the
// allocated memory, and one layer's more. Above that the Exec's stream waits for the oldest.
// Each side stream has an arena of its own besides.
//
// # Decisions
//
// The faster way is measured for each kind and shape of layer as a [Choice] does, for eager and
// for captured steps. Eager trials wait for each layer, so they underrate late gradients. In
// the warm-up of a graph each kind is captured both ways, launched some times, and waited for.
// A layer that runs out of memory on the way runs on one stream from then on.
//
// An Overlap may be used from any goroutine.
type Overlap struct {
	h      *ct.Overlap
	choice *Choice
	always bool
	sides  int // streams besides the Exec's
}

// OverlapOptions are the options of [NewOverlap].
type OverlapOptions struct {
	// Always runs gradients in parallel from a layer's second call on, without a measurement.
	Always bool
	// Streams is the number of streams of a backward, the Exec's among them: 2 to 16; 0 means 2.
	// Late gradients of layers go to the other streams in rotation.
	Streams int
	// Log is called with each decision, the times of both ways and the reason. nil calls nothing.
	Log func(text string)
}

// OverlapStats counts since the Overlap was made.
type OverlapStats struct {
	Layers int // kinds and shapes of layers that have run on more than one stream
	// Calls on more than one stream. A captured call counts once.
	Parallel int
	Late     int // of these calls, those whose weights' gradients are late
	// Time on the device that these calls saved, as measured for the decision; 0 with Always.
	Saved time.Duration
	// The most bytes that late gradients alone kept alive, without the arenas of the side streams.
	Kept   int64
	Serial int // calls on one stream
	// Layers that went back to one stream because memory ran out.
	ShortOfMemory int
}

const maxOverlapStreams = 16

// NewOverlap returns an Overlap that has decided nothing yet. The garbage collector frees it.
// It fails with [ErrInvalidArgument] for too few or too many Streams.
//
// Linear layers take part if their forward ran after the first NewOverlap of the process.
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
			"Options.Streams is %d, want 2 to %d, or 0 for 2", o.Streams, maxOverlapStreams)
	}
	p := &Overlap{always: o.Always, sides: o.Streams - 1}
	if err := check(op, ct.OverlapNew(cbool(o.Always), &p.h)); err != nil {
		return nil, err
	}
	p.choice = &Choice{o: ChoiceOptions{Log: o.Log}, h: ct.OverlapChoice(p.h)}
	runtime.AddCleanup(p, func(h *ct.Overlap) { ct.OverlapFree(h) }, p.h)
	return p, nil
}

// Decisions returns the decisions so far, in the order in which they were made.
func (p *Overlap) Decisions() []Decision {
	if p.choice == nil {
		return nil
	}
	defer runtime.KeepAlive(p)
	return p.choice.Decisions()
}

// Stats returns the counts so far.
func (p *Overlap) Stats() OverlapStats {
	var c ct.OverlapCounts
	_ = check("Overlap.Stats", ct.OverlapCount(p.h, &c))
	runtime.KeepAlive(p)
	return OverlapStats{Layers: int(c.Layers), Parallel: int(c.Beside), Late: int(c.Late), Saved: time.Duration(float64(c.SavedUS) * 1e3),
		Kept: c.KeptBytes, Serial: int(c.Serial), ShortOfMemory: int(c.ShortOfMemory)}
}

// String returns one line with the counts.
func (s OverlapStats) String() string {
	return fmt.Sprintf("%d layers on two streams, %d calls, %d of them late, %v saved, %d bytes kept longer, %d calls on one; %d layers short of memory",
		s.Layers, s.Parallel, s.Late, s.Saved.Round(time.Microsecond), s.Kept, s.Serial, s.ShortOfMemory)
}

// overlap calls backward with side streams that begin behind x's work so far, and joins them.
func (x *Exec) overlap(op string, p *Overlap, backward func(sides []*ct.Stream)) {
	if p.h == nil {
		x.Fail(op, refuse(op, ErrInvalidArgument, "the Overlap was not made by NewOverlap"))
	}
	before := p.Stats().Parallel
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
	defer func() { // also where the backward fails
		for _, side := range sides {
			_ = x.await(op, side)
		}
		if g := x.work; g != nil && !p.always {
			g.parallel = g.parallel || p.Stats().Parallel > before
			if ct.ChoiceOpen(p.choice.h, 1) != 0 {
				x.undecided()
			}
		}
		p.choice.tell()
		runtime.KeepAlive(p)
	}()
	backward(handles)
}
