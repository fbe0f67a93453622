package cgotorch

import (
	"fmt"
	"runtime"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// Overlap has a backward run the gradients of a convolution's, or a linear layer's, weights and bias on a side stream, while that of its input,
// which the layer before needs, runs on the Exec's. One of them often leaves a part of the device empty, most of all with small batches. Gradients
// are the same to the bit where the operators are deterministic. It is given to [BackwardOptions]:
//
//	x.BackwardWith(cgotorch.BackwardOptions{Overlap: overlap}, loss)
//
// Where these gradients go into parameters, at most through a cast, and each weight is used once, they are late: on CUDA the Exec's stream
// waits for them when the backward ends, not layer by layer. What they are made of is kept alive for as long, up to a fortieth of the memory
// allocated and one layer's; above that the Exec's stream waits for the oldest. Each side stream has an arena of its own besides. Other backwards into the same
// parameters are not to run at the same time.
//
// For each kind of layer, and each shape, the faster way is found out as a [Choice] does, for eager steps and for captured ones. Eager trials
// wait for each layer, so they underrate late gradients; in the rehearsal of a graph each kind is captured both ways, launched some times, and
// waited for. A layer for which memory runs out on the way runs on one stream from then
// on. Convolutions of one to three dimensions, transposed, grouped and dilated ones take part, and linear layers of at least one row, where
// both the input and the weights need gradients; gradients that are differentiated again, and layers inside branches of [Exec.Parallel], do
// not. The CPU has no two streams that run at once, so there only Always has an effect, for tests.
//
// An Overlap may be used from any goroutine.
type Overlap struct {
	h      *ct.Overlap
	choice *Choice
	always bool
	sides  int // streams beside the Exec's
}

// OverlapOptions are the options of [NewOverlap].
type OverlapOptions struct {
	Always  bool              // side by side from a layer's second call on, whatever is faster
	Streams int               // that a backward runs on, the Exec's among them; 2 to 16; 0 means 2. Late gradients of layers take the others in turn
	Log     func(text string) // is told of each decision, with the times of both ways and the reason; nil for nobody
}

// OverlapStats counts since the Overlap was made.
type OverlapStats struct {
	Layers        int           // kinds of layers, and shapes, that have run on more than one stream
	SideBySide    int           // calls on more than one stream; a captured call counts once
	Late          int           // of them, those whose weights' gradients are late
	Saved         time.Duration // on the device by SideBySide, as measured when that was chosen; 0 with Always
	Kept          int64         // bytes that late gradients kept alive and nobody else did, at most; the side streams' arenas come on top
	Serial        int           // calls on one
	ShortOfMemory int           // layers that went back to one stream because memory ran out
}

const maxOverlapStreams = 16

// NewOverlap returns an Overlap that has decided nothing yet. The garbage collector frees it. Linear layers take part if
// their forward ran after the first NewOverlap of the process. It fails with [ErrInvalidArgument] for too few or too many
// Streams.
func NewOverlap(o OverlapOptions) (*Overlap, error) {
	if err := ready(); err != nil {
		return nil, err
	}
	const op = "NewOverlap"
	if o.Streams == 0 {
		o.Streams = 2
	}
	if o.Streams < 2 || o.Streams > maxOverlapStreams {
		return nil, &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(),
			Message: fmt.Sprintf("Options.Streams is %d, want 2 to %d, or 0 for 2", o.Streams, maxOverlapStreams)}
	}
	p := &Overlap{always: o.Always, sides: o.Streams - 1}
	if err := check(op, ct.OverlapNew(cbool(o.Always), &p.h)); err != nil {
		return nil, err
	}
	p.choice = &Choice{o: ChoiceOptions{Log: o.Log}, h: ct.OverlapChoice(p.h)}
	runtime.AddCleanup(p, func(h *ct.Overlap) { ct.OverlapFree(h) }, p.h)
	return p, nil
}

// Decisions are those made so far, in the order in which they were made.
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
	return OverlapStats{Layers: int(c.Layers), SideBySide: int(c.Beside), Late: int(c.Late), Saved: time.Duration(float64(c.SavedUS) * 1e3),
		Kept: c.KeptBytes, Serial: int(c.Serial), ShortOfMemory: int(c.ShortOfMemory)}
}

// String is one line with the counts.
func (s OverlapStats) String() string {
	return fmt.Sprintf("%d layers on two streams, %d calls, %d of them late, %v saved, %d bytes kept longer, %d calls on one; %d layers short of memory",
		s.Layers, s.SideBySide, s.Late, s.Saved.Round(time.Microsecond), s.Kept, s.Serial, s.ShortOfMemory)
}

// overlap calls backward with side streams that begin behind x's work so far, and joins them.
func (x *Exec) overlap(op string, p *Overlap, backward func(sides []*ct.Stream)) {
	if p.h == nil {
		x.Fail(op, &Error{Op: op, Kind: ErrInvalidArgument, Caller: caller(), Message: "the Overlap was not made by NewOverlap"})
	}
	before := p.Stats().SideBySide
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
			g.beside = g.beside || p.Stats().SideBySide > before
			if ct.ChoiceOpen(p.choice.h, 1) != 0 {
				x.undecided()
			}
		}
		p.choice.tell()
		runtime.KeepAlive(p)
	}()
	backward(handles)
}
