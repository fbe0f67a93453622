package text

import (
	"github.com/streamtorch/streamtorch/cgotorch"
)

// mostCapturedPiece bounds the pieces of prompts that are captured. The device needs longer for
// larger ones than the host.
const mostCapturedPiece = 512

// captures reports whether the piece of n tokens behind `from` others is captured. The attention of
// later ones is split by what the host knows: see [decoder.mixBySplits].
func (b *batch) captures(from, n int) bool {
	return b.captured && n <= mostCapturedPiece && (from < leastPast || !b.d.flash)
}

// writePiece writes what runPiece needs into page-locked memory: the tokens and positions of rows,
// of which those beyond the piece are passed over, then 0, the number of tokens, the row of the
// last one, and its position. It is called outside a Do. It waits until the device has read those
// of the piece before.
func (b *batch) writePiece(stream *cgotorch.Stream, tokens []int64, from int) (numbers []int64, err error) {
	n := len(tokens)
	rows := roundRows(n)
	if b.piece == nil {
		if b.piece, err = cgotorch.NewHostSlab(stream.Device(), 8*(2*mostCapturedPiece+4)); err != nil {
			return nil, err
		}
	}
	if b.pieceCopy != nil {
		if err := b.piece.Await(b.pieceCopy); err != nil {
			return nil, err
		}
		b.pieceCopy.Close()
		b.pieceCopy = nil
	}
	b.piece.Touch(true)
	numbers = cgotorch.View[int64](b.piece)[:2*rows+4]
	clear(numbers)
	copy(numbers, tokens)
	for i := range rows {
		numbers[rows+i] = -1
		if i < n {
			numbers[rows+i] = int64(from + i)
		}
	}
	copy(numbers[2*rows:], []int64{0, int64(n), int64(n - 1), int64(from + n - 1)})
	return numbers, nil
}

// runPiece is [lane.prompt] for what writePiece has written. On CUDA it is captured for each number
// of rows and of blocks.
func (b *batch) runPiece(x *cgotorch.Exec, l *lane, numbers []int64, blocks []int, last bool) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		in := []*cgotorch.Tensor{x.Select(copied(x, numbers, len(numbers)), 0, 0)}
		b.pieceCopy = x.Record()
		for i, s := range l.spans {
			width := int(s.table.Shape()[2])
			in = append(in, x.Narrow(s.table, 2, 0, min(roundBlocks(blocks[i]), width)), s.before)
		}
		hidden := b.pieces.Run(x, in...)[0]
		if !last {
			return nil
		}
		return b.d.logits(x, hidden)
	})
}

// roundBlocks returns a power of two, at least 32.
func roundBlocks(n int) int {
	size := 32
	for size < n {
		size *= 2
	}
	return size
}

// pieceOf runs the rows of a piece through the layers. in[0] is what writePiece has written. For
// each span follow its table, Int64 [layers, 2, blocks], and the position before that. It returns
// the hidden state of the last token, [1, width].
func (b *batch) pieceOf(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
	rows := (int(in[0].Numel()) - 4) / 2
	part := func(from, n int) *cgotorch.Tensor { return x.Narrow(in[0], 0, from, n) }
	return []*cgotorch.Tensor{x.Tidy(func() *cgotorch.Tensor {
		l := &lane{seats: b.seats}
		r := cachedRows{
			tokens: part(0, rows), positions: part(rows, rows), rows: rows,
			ends: x.To(part(2*rows, 2), cgotorch.Int32), last: part(2*rows+3, 1),
		}
		for i, s := range b.spans {
			table := in[1+2*i]
			r.blocks = append(r.blocks, int(table.Shape()[2]))
			l.spans = append(l.spans, &laneSpan{span: s.span, table: table, before: in[2+2*i], ends: x.Zeros(cgotorch.Int32, 2)})
		}
		return x.IndexSelect(b.d.rows(x, l.cachedPass(x, r)), 0, part(2*rows+2, 1))
	})}
}
