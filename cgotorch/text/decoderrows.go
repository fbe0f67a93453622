package text

import "github.com/streamtorch/streamtorch/cgotorch"

// Note [Kernels of rows]
//
// Rows are the tokens of a step of several sequences, or a part of one prompt. A pass reads all
// weights once for all rows. With weights in bfloat16 or float16, up to 32 rows take the kernels of
// this library alone, on compute capability 9.0 or newer:
//
//	what the layer before left, and the norm    add_rms_norm     csrc/kernels/add_rms_norm.cc
//	queries, keys and values                    rows_linear      csrc/kernels/rows_linear.cc
//	attention over pages                        token_attention  csrc/kernels/token_attention.cc
//	output                                      rows_linear
//	added to the stream, and the norm           add_rms_norm
//	gate and up, and the activation             rows_linear
//	down                                        rows_linear
//
// Else rows_linear calls LibTorch's product, and gated for the activation (csrc/kernels/gated.cc).
// LibTorch also computes the attention of many rows of a prompt. Quantised weights are dequantised
// before each product.
//
// token_embedding comes before the first layer. add_rms_norm, rows_linear with the head, and
// token_likeliest or token_drawn come after the last. A step of one seat takes the kernels of a
// token, unless it is reproducible: Note [Kernels of a token].
//
// The rows of a prompt see the same pages, so they take in place of token_attention:
//
//	norms, rotations, keys and values to pages  rope_into_pages   csrc/kernels/rope_into_pages.cc
//	attention over pages, of up to 512 rows     prompt_attention  csrc/kernels/prompt_attention.cc
//	or with more rows, a copy of the pages, and flash attention   LibTorch
//
// A step with a piece of a prompt has both: the rows of the seats first, and those of the piece
// behind them. Only attention tells them apart.
//
// Where flash attention does not apply, as on the CPU or with a cap of scores, a mask says what
// each row sees. A single token goes the same way where the kernels of a token do not take the
// model.
//
// In a step without a piece the kernels of layers have programmatic edges: Note [Programmatic
// edges] in csrc/kernels/edges.h. token_embedding, draws and products of quantised weights have
// full ones. In a pass with rows of a prompt, only the attention of a step's tokens is early.
//
// LibTorch multiplies all rows of an expert together. In a step the kernels of a token compute
// experts row by row if the step is reproducible, if they lie in slots, or if LibTorch has no such
// product.
//
// A row of a step whose position is below 0 is passed over: it writes neither pages nor a token.

// rowsPass is one pass over rows, without gradients.
type rowsPass struct {
	tokens, positions *cgotorch.Tensor   // Int64 [rows]
	frequencies       []*cgotorch.Tensor // of each rotation
	early             bool               // kernels have programmatic edges, and read early
	// attend maps what the product of queries, keys and values gives to what the next product takes,
	// [rows, heads*head].
	attend func(i int, l *decoderLayer, qkv *cgotorch.Tensor, by rotation) *cgotorch.Tensor
	// experts adds what a layer's experts compute to the stream.
	experts func(l *decoderLayer, s *rowStream)
}

// rowStream is the residual stream of rows: sum + norm(late).
type rowStream struct {
	sum  *cgotorch.Tensor // [rows, width] in the wide dtype
	late *cgotorch.Tensor // [rows, width], or nil
	norm *cgotorch.Tensor // the weight of late's norm, or nil

	early bool // as in rowsPass
}

// rows maps tokens to the hidden states behind the last norm, [rows, width].
func (d *decoder) rows(x *cgotorch.Exec, p *rowsPass) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		sum, rotations := d.beginRows(x, p)
		s := &rowStream{sum: sum, early: p.early}
		for i, l := range d.layers {
			before := s.late
			s.late = x.Tidy(func() *cgotorch.Tensor {
				d.rowLayer(x, p, s, i, rotations[l.rope])
				return s.late
			})
			before.Close()
		}
		return d.addNorm(x, s, d.norm)
	})
}

// beginRows returns the embeddings of tokens, [rows, width] in the wide dtype, and the
// rotations of their positions.
func (d *decoder) beginRows(x *cgotorch.Exec, p *rowsPass) (*cgotorch.Tensor, []rotation) {
	if d.wide != cgotorch.Float32 {
		h := x.Embedding(d.embed, p.tokens, cgotorch.EmbeddingOptions{PaddingIndex: cgotorch.Set(d.c.pad)})
		return x.MulScalar(d.as(x, h, d.wide), d.c.embedScale), d.begin(x, p.frequencies, p.positions)
	}
	var scales []float64
	for _, r := range d.c.ropes {
		scales = append(scales, r.scale)
	}
	parts := x.Call("streamtorch::token_embedding", d.embed, p.tokens, p.positions, p.frequencies, scales, d.c.embedScale)[0].([]*cgotorch.Tensor)
	var rotations []rotation
	for i := range scales {
		rotations = append(rotations, rotation{cos: parts[1+2*i], sin: parts[2+2*i]})
	}
	return parts[0], rotations
}

// addNorm adds what is late to the stream. It returns the norm of the stream, in the dtype of the
// weights. A nil norm is none.
func (d *decoder) addNorm(x *cgotorch.Exec, s *rowStream, norm *cgotorch.Tensor) *cgotorch.Tensor {
	out := call(x, "streamtorch::add_rms_norm", s.sum, s.late, s.norm, norm, d.c.eps, d.c.normOffset, d.dtype, edgeOf(s.early))
	s.late, s.norm = nil, nil
	return out
}

// rowLayer adds attention and the feed-forward layer to the stream.
func (d *decoder) rowLayer(x *cgotorch.Exec, p *rowsPass, s *rowStream, i int, by rotation) {
	l := d.layers[i]
	mixed := x.Tidy(func() *cgotorch.Tensor {
		return p.attend(i, l, l.qkv.product(x, d.addNorm(x, s, l.beforeMix), "", p.early), by)
	})
	s.late, s.norm = l.out.product(x, mixed, "", p.early), l.afterMix
	if l.experts != nil {
		p.experts(l, s)
		return
	}
	s.late = x.Tidy(func() *cgotorch.Tensor {
		inner := l.gateUp.product(x, d.addNorm(x, s, l.beforeFeed), d.c.activation, p.early)
		return l.down.product(x, inner, "", p.early)
	})
	s.norm = l.afterFeed
}

// expertsTogether adds what a layer's experts compute to the stream, by one product for all rows of
// an expert. feed maps rows in the dtype of the weights, and the same before they were rounded.
func (d *decoder) expertsTogether(x *cgotorch.Exec, l *decoderLayer, s *rowStream, feed func(in, wide *cgotorch.Tensor) *cgotorch.Tensor) {
	d.addNorm(x, s, nil)
	s.late = x.Tidy(func() *cgotorch.Tensor {
		wide := d.normed(x, s.sum, l.beforeFeed)
		return feed(d.as(x, wide, d.dtype), wide)
	})
	s.norm = l.afterFeed
}

// expertsByRow is expertsTogether, by the kernels of a token for one row after another.
func (d *decoder) expertsByRow(x *cgotorch.Exec, l *decoderLayer, s *rowStream, arrived *cgotorch.Tensor) {
	d.addNorm(x, s, nil)
	x.Tidy(func() *cgotorch.Tensor {
		var all []*cgotorch.Tensor
		for i := range int(s.sum.Shape()[0]) {
			row := &tokenStream{sum: x.Narrow(s.sum, 0, i, 1)}
			d.tokenExperts(x, row, l, arrived)
			all = append(all, row.sum)
		}
		x.CopyInPlace(s.sum, x.Cat(all, 0))
		return nil
	})
}

// pass returns what a step of n seats needs, from seat `from` on. It reads and writes the pages of
// the first `blocks` blocks of each table. With `alike` the result of a row depends on the number
// of rows alone, and not on the other rows. On CUDA the pass does not wait for the device.
func (s *seats) pass(x *cgotorch.Exec, from, n int, blocks []int, alike bool) *rowsPass {
	d, row := s.d, func(t *cgotorch.Tensor) *cgotorch.Tensor { return x.Narrow(t, 0, from, n) }
	tables, before := make([]*cgotorch.Tensor, len(d.layers)), make([]*cgotorch.Tensor, len(d.layers))
	for i, span := range s.spans {
		live, first := x.Narrow(row(span.tables), 3, 0, blocks[i]), row(span.before)
		for k, layer := range span.layers {
			tables[layer], before[layer] = x.Select(live, 1, k), first
		}
	}
	p := &rowsPass{tokens: row(s.tokens), positions: row(s.positions), frequencies: s.frequencies, early: true}
	p.attend = func(i int, l *decoderLayer, qkv *cgotorch.Tensor, by rotation) *cgotorch.Tensor {
		return call(x, "streamtorch::token_attention", qkv, l.queryNorm, l.keyNorm, d.c.eps, d.c.normOffset, by.cos, by.sin, p.positions,
			s.pages.memory, tables[i], before[i], l.sinks, d.c.heads, l.window, d.c.queryScale, d.c.scoreCap, s.arrived, edgeOf(p.early))
	}
	p.experts = func(l *decoderLayer, stream *rowStream) {
		if x.Device().IsCUDA() && (alike || d.table != nil || d.dtype != cgotorch.BFloat16 || !l.experts.groupable()) {
			d.expertsByRow(x, l, stream, x.Narrow(s.arrived, 0, 0, 8*d.c.keyHeads))
			return
		}
		d.expertsTogether(x, l, stream, func(in, wide *cgotorch.Tensor) *cgotorch.Tensor { return l.experts.forward(x, in, wide, false) })
	}
	return p
}
