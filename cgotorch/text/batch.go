package text

import (
	"errors"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// batch is the device's side of a [Batcher]: seats, their lanes, and the steps of all seats.
type batch struct {
	*seats
	lanes   []*lane
	told    *cgotorch.Tensor // as one of results
	results *results         // of steps
	first   *results         // of prompts
	steps   map[features]*cgotorch.Captured

	positions []int64 // as they lie on the device before the next step
	changed   bool    // the device has others
	host      staging // of positions

	capturesPieces bool                            // pieces of prompts are captured
	takesPieces    bool                            // steps take them
	pieces         *cgotorch.Captured              // see pieceOf
	stepsWithPiece map[features]*cgotorch.Captured // steps with pieces: see besideOf
	piece          [2]staging                      // of the last two, which take turns
	latest         int                             // the element of piece that the last piece used
}

// newBatch makes n empty seats beside the lane of a model.
func newBatch(m *Model, n int) (b *batch, err error) {
	l := m.lane
	b = &batch{steps: map[features]*cgotorch.Captured{}, stepsWithPiece: map[features]*cgotorch.Captured{}, positions: slices.Repeat([]int64{-1}, n)}
	err = m.stream.Do(func(x *cgotorch.Exec) error {
		x = plain(x)
		var spans []span
		for _, s := range l.seats.spans {
			spans = append(spans, s.span)
		}
		b.seats = newSeats(x, m.d, m.pages, spans, m.context, l.part, n)
		b.results, b.first = newResults(x, n), newResults(x, 1)
		b.told = x.Zeros(cgotorch.Float64, b.results.all[0].Shape()...)
		all := slices.Concat(b.seats.tensors(), b.results.all[:], b.first.all[:], []*cgotorch.Tensor{b.told})
		for i := range n {
			b.lanes = append(b.lanes, newLane(x, b.seats, i, b.first))
			all = append(all, b.lanes[i].tensors()...)
		}
		for _, t := range all { // none is kept if one of them fails
			x.Keep(t)
		}
		return nil
	})
	if err == nil {
		b.capturesPieces = m.stream.Device().IsCUDA() && m.d.promptKernel && m.d.c.experts.top == 0 && !checksFinite()
		_, err = b.host.next(m.stream, n)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.takesPieces = b.capturesPieces && n > 1 && b.tryBeside(m.stream) == nil
	return b, nil
}

// forgetSteps closes what is captured. Later steps are captured anew.
func (b *batch) forgetSteps() error {
	var errs []error
	for _, all := range []map[features]*cgotorch.Captured{b.steps, b.stepsWithPiece} {
		for _, step := range all {
			errs = append(errs, step.Close())
		}
		clear(all)
	}
	errs = append(errs, b.pieces.Close())
	b.pieces = nil
	return errors.Join(errs...)
}

func (b *batch) close() error {
	errs := []error{b.forgetSteps()}
	for i := range b.piece {
		errs = append(errs, b.piece[i].close())
	}
	for _, l := range b.lanes {
		errs = append(errs, l.close())
	}
	for _, r := range []*results{b.results, b.first} {
		if r != nil {
			errs = append(errs, r.close())
		}
	}
	errs = append(errs, b.told.Close(), b.seats.close(), b.host.close())
	return errors.Join(errs...)
}

// place says at which position a seat is before the next step. -1 lets steps pass over it.
func (b *batch) place(seat int, position int64) {
	if b.positions[seat] != position {
		b.positions[seat], b.changed = position, true
	}
}

// upload gives the device the positions that it lacks. It is called outside a Do.
func (b *batch) upload(stream *cgotorch.Stream) error {
	if !b.changed {
		return nil
	}
	numbers, err := b.host.next(stream, len(b.positions))
	if err != nil {
		return err
	}
	n := copy(numbers, b.positions)
	began, done, err := stream.CopyFrom(nil, cgotorch.HostCopy{To: b.seats.positions, From: b.host.slab.Bytes()[:8*n]})
	began.Close()
	b.host.copy, b.changed = done, err != nil
	return err
}

// step computes the next token of the first n seats, and moves their positions. It returns the read
// of what all seats are told. The work is captured on CUDA, for each n and each number of blocks. A
// single seat takes the kernels of a token, unless `alike` asks for those of rows.
func (b *batch) step(x *cgotorch.Exec, f features, n int, blocks []int, alike bool) *cgotorch.HostRead {
	d := b.d
	run := func(x *cgotorch.Exec, in ...*cgotorch.Tensor) {
		n, counts := int(in[0].Shape()[0]), make([]int, len(in))
		for i := range in {
			counts[i] = int(in[i].Shape()[3])
		}
		if l := b.lanes[0]; n == 1 && d.edge != "" && !alike {
			l.sample(x, f, d.token(x, l.tokenPass(x, counts)), x.Narrow(b.told, 0, 0, n))
			return
		}
		b.pick(x, f, b.logits(x, n, counts, alike))
	}
	in := b.stepInputs(x, n, blocks)
	d.withSlots(x, func() {
		if !d.fetchesFor(x, n) {
			capturedOf(b.steps, f, run).Run(x, in...)
			return
		}
		x.Tidy(func() *cgotorch.Tensor {
			run(x, in...)
			return nil
		})
	})
	return b.tell(x, n)
}

// stepInputs returns the first blocks of the tables of n seats, for each span.
func (b *batch) stepInputs(x *cgotorch.Exec, n int, blocks []int) (in []*cgotorch.Tensor) {
	for i, s := range b.spans {
		in = append(in, x.Narrow(x.Narrow(s.tables, 0, 0, n), 3, 0, blocks[i]))
	}
	return in
}

// pick samples the tokens behind the logits of the first seats, [n, vocab], and moves the seats.
func (b *batch) pick(x *cgotorch.Exec, f features, logits *cgotorch.Tensor) {
	first := func(t *cgotorch.Tensor) *cgotorch.Tensor { return x.Narrow(t, 0, 0, int(logits.Shape()[0])) }
	b.samplers.rows(x, 0, int(logits.Shape()[0])).pick(x, f, logits, first(b.tokens), first(b.seats.positions), first(b.told), "full")
}

// tell returns the read of what a step has told its first n seats.
func (b *batch) tell(x *cgotorch.Exec, n int) *cgotorch.HostRead {
	for i := range n {
		if b.positions[i] >= 0 {
			b.positions[i]++
		}
	}
	x.CopyInPlace(b.results.next(x), b.told)
	return b.results.read(x)
}

// logits maps the tokens of the first n seats to the logits of the next ones. `alike` asks for
// results of a row that do not depend on the other rows. A product on the CPU depends on them, so
// rows are computed one after another there. A product on CUDA depends on their number alone.
func (b *batch) logits(x *cgotorch.Exec, n int, blocks []int, alike bool) *cgotorch.Tensor {
	if !alike || x.Device().IsCUDA() {
		return b.d.rowLogits(x, b.d.rows(x, b.pass(x, 0, n, blocks, alike)), true)
	}
	var all []*cgotorch.Tensor
	for i := range n {
		if b.positions[i] < 0 {
			all = append(all, x.Zeros(b.d.wide, 1, int64(b.d.c.vocab)))
			continue
		}
		all = append(all, x.Tidy(func() *cgotorch.Tensor { return b.d.rowLogits(x, b.d.rows(x, b.pass(x, i, 1, blocks, alike)), true) }))
	}
	return x.Cat(all, 0)
}

// move gives seat `to` what steps know of seat `from`.
func (b *batch) move(x *cgotorch.Exec, from, to int) {
	//edge:batch-move-sampler TestBatcher_Answers
	all := b.samplers.tensors()
	all = append(all, b.tokens)
	for _, s := range b.spans {
		all = append(all, s.tables, s.before)
	}
	for _, t := range all {
		x.CopyInPlace(x.Narrow(t, 0, to, 1), x.Narrow(t, 0, from, 1))
	}
	own, other := b.lanes[to].sampler, b.lanes[from].sampler
	//edge:batch-move-seed TestBatcher_SeedOfSeat
	own.seed, own.fresh = other.seed, other.fresh
}

// sizeOf returns the number of rows of a captured step that has room for n.
func sizeOf(n, most int) int {
	size := 1
	for size < n {
		switch {
		case size < 4:
			size *= 2
		case size < 32:
			size += 4
		case size < 64:
			size += 8
		default:
			size += size / 4 / 16 * 16
		}
	}
	return min(size, most)
}

// blocksFor returns the number of blocks of a captured step whose longest row has n.
func blocksFor(n, most int) int {
	size := 16
	for size < n {
		size *= 2
	}
	return min(size, most)
}
