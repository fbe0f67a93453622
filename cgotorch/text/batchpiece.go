package text

import (
	"errors"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// mostCapturedPiece bounds the pieces of prompts that are captured, and those that attend to pages
// without a copy. The device needs longer for larger ones than the host, and LibTorch's attention
// gains more than the copy takes.
const mostCapturedPiece = 512

// captures reports whether a piece of n tokens is captured.
func (b *batch) captures(n int) bool { return b.capturesPieces && n <= mostCapturedPiece }

// writePiece writes what runPiece needs into page-locked memory: the tokens and positions of rows,
// of which those beyond the piece are passed over, then the row of the last token, and its
// position. It is called outside a Do. It waits until the device has read those of the piece before
// the last one.
func (b *batch) writePiece(stream *cgotorch.Stream, tokens []int64, from int) (numbers []int64, err error) {
	b.latest = 1 - b.latest
	if numbers, err = b.piece[b.latest].next(stream, 2*mostCapturedPiece+2); err != nil {
		return nil, err
	}
	n, rows := len(tokens), leastOf(len(tokens), 64, 2)
	numbers = numbers[:2*rows+2]
	clear(numbers)
	copy(numbers, tokens)
	for i := range rows {
		numbers[rows+i] = -1
		if i < n {
			numbers[rows+i] = int64(from + i)
		}
	}
	copy(numbers[2*rows:], []int64{int64(max(0, n-1)), int64(from + n - 1)})
	return numbers, nil
}

// pieceInputs returns what writePiece has written, and for each span the table of a lane, Int64
// [layers, 2, blocks], and the position before that. All are of sizes that are captured.
func (b *batch) pieceInputs(x *cgotorch.Exec, l *lane, numbers []int64, blocks []int) []*cgotorch.Tensor {
	in := []*cgotorch.Tensor{x.Select(copied(x, numbers, len(numbers)), 0, 0)}
	b.piece[b.latest].copy = x.Record()
	for i, s := range l.spans {
		width := int(s.table.Shape()[2])
		in = append(in, x.Narrow(s.table, 2, 0, min(leastOf(blocks[i], 64, 16), width)), s.before)
	}
	return in
}

// runPiece is [lane.prompt] for what writePiece has written.
func (b *batch) runPiece(x *cgotorch.Exec, l *lane, numbers []int64, blocks []int, last bool) *cgotorch.Tensor {
	if b.pieces == nil {
		b.pieces = cgotorch.NewCaptured(b.pieceOf, cgotorch.CapturedOptions{WarmUp: 1, MaxGraphs: mostGraphs})
	}
	return x.Tidy(func() *cgotorch.Tensor {
		hidden := b.pieces.Run(x, b.pieceInputs(x, l, numbers, blocks)...)[0]
		if !last {
			return nil
		}
		return b.d.rowLogits(x, hidden, false)
	})
}

// pieceOf runs the rows of pieceInputs through the layers. It returns the hidden state of the last
// token, [1, width].
func (b *batch) pieceOf(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
	return []*cgotorch.Tensor{x.Tidy(func() *cgotorch.Tensor {
		p, last := b.piecePass(x, in)
		return x.IndexSelect(b.d.rows(x, p), 0, last)
	})}
}

// piecePass returns the pass over the rows of pieceInputs, and the row of the last token, Int64
// [1].
func (b *batch) piecePass(x *cgotorch.Exec, in []*cgotorch.Tensor) (p *rowsPass, last *cgotorch.Tensor) {
	rows := (int(in[0].Numel()) - 2) / 2
	part := func(from, n int) *cgotorch.Tensor { return x.Narrow(in[0], 0, from, n) }
	l := &lane{seats: b.seats}
	r := cachedRows{tokens: part(0, rows), positions: part(rows, rows), rows: rows, last: part(2*rows+1, 1)}
	for i, s := range b.spans {
		table := in[1+2*i]
		r.blocks = append(r.blocks, int(table.Shape()[2]))
		l.spans = append(l.spans, &laneSpan{span: s.span, table: table, before: in[2+2*i]})
	}
	return l.cachedPass(x, r), part(2*rows, 1)
}

// stepBeside is a step with a piece, whose logits [1, vocab] behind the last token it returns too.
// The layers read their weights once for both.
func (b *batch) stepBeside(x *cgotorch.Exec, f features, n int, blocks []int, l *lane, numbers []int64, ofPiece []int) (*cgotorch.HostRead, *cgotorch.Tensor) {
	if b.stepsWithPiece[f] == nil {
		run := func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
			return []*cgotorch.Tensor{x.Tidy(func() *cgotorch.Tensor { return b.besideOf(x, f, in) })}
		}
		b.stepsWithPiece[f] = cgotorch.NewCaptured(run, cgotorch.CapturedOptions{WarmUp: 4, MaxGraphs: mostGraphs})
	}
	logits := b.stepsWithPiece[f].Run(x, append(b.besideInputs(x, n, blocks), b.pieceInputs(x, l, numbers, ofPiece)...)...)[0]
	return b.tell(x, n), logits
}

// tryBeside runs a step with a piece of which all rows are passed over. So the kernels of such
// steps are compiled before the first request. Where that fails, steps and pieces keep passes of
// their own. It waits for the device.
func (b *batch) tryBeside(stream *cgotorch.Stream) error {
	numbers, err := b.writePiece(stream, nil, 0)
	if err == nil {
		err = stream.Do(func(x *cgotorch.Exec) error {
			x = plain(x)
			x.Tidy(func() *cgotorch.Tensor {
				ones := slices.Repeat([]int{1}, len(b.spans))
				b.besideOf(x, features{}, append(b.besideInputs(x, 1, ones), b.pieceInputs(x, b.lanes[0], numbers, ones)...))
				return nil
			})
			return nil
		})
	}
	return errors.Join(err, stream.Synchronize())
}

// besideInputs returns a table for each span, Int64 [seats, 1, 2, blocks], whose size tells that of
// a step of n seats with a piece: a power of two, at least 8.
func (b *batch) besideInputs(x *cgotorch.Exec, n int, blocks []int) []*cgotorch.Tensor {
	wide := slices.Clone(blocks)
	for i, s := range b.spans {
		wide[i] = min(roundBlocks(blocks[i]), s.width)
	}
	in := b.stepInputs(x, min(leastOf(n, 8, 2), len(b.lanes)), wide)
	for i, table := range in {
		in[i] = x.Narrow(table, 1, 0, 1) // inputs are copied
	}
	return in
}

// besideOf runs besideInputs and pieceInputs through the layers, and samples for the seats.
func (b *batch) besideOf(x *cgotorch.Exec, f features, in []*cgotorch.Tensor) *cgotorch.Tensor {
	seats, piece := in[:len(b.spans)], in[len(b.spans):]
	n, counts := int(seats[0].Shape()[0]), make([]int, len(seats))
	for i, table := range seats {
		counts[i] = int(table.Shape()[3])
	}
	step := b.pass(x, 0, n, counts, false)
	prompt, last := b.piecePass(x, piece)
	rows := int(prompt.tokens.Numel())
	p := &rowsPass{
		tokens: x.Cat([]*cgotorch.Tensor{step.tokens, prompt.tokens}, 0), positions: x.Cat([]*cgotorch.Tensor{step.positions, prompt.positions}, 0),
		frequencies: b.frequencies,
	}
	p.attend = func(i int, l *decoderLayer, qkv *cgotorch.Tensor, by rotation) *cgotorch.Tensor {
		part := func(of *rowsPass, from, count int) *cgotorch.Tensor {
			some := func(t *cgotorch.Tensor) *cgotorch.Tensor { return x.Narrow(t, 0, from, count) }
			return x.View(of.attend(i, l, some(qkv), rotation{some(by.cos), some(by.sin)}), int64(count), -1)
		}
		return x.Cat([]*cgotorch.Tensor{part(step, 0, n), part(prompt, n, rows)}, 0)
	}
	hidden := b.d.rows(x, p)
	behind := x.IndexSelect(x.Narrow(hidden, 0, n, rows), 0, last)
	logits := b.d.rowLogits(x, x.Cat([]*cgotorch.Tensor{x.Narrow(hidden, 0, 0, n), behind}, 0), false)
	b.pick(x, f, x.Narrow(logits, 0, 0, n))
	return x.Clone(x.Narrow(logits, 0, n, 1)) // the graph keeps no others
}
