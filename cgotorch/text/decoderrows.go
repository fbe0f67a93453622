package text

import "github.com/streamtorch/streamtorch/cgotorch"

// Note [Kernels of rows]
//
// A step of several sequences reads all weights once for all of them. LibTorch computes the
// products, four in a layer. Four kernels of this library stand between them:
//
//	what the layer before left, and the norm    add_rms_norm     csrc/kernels/add_rms_norm.cc
//	queries, keys and values                    LibTorch
//	attention over pages                        token_attention  csrc/kernels/token_attention.cc
//	output                                      LibTorch
//	added to the stream, and the norm           add_rms_norm
//	gate and up                                 LibTorch
//	activation                                  gated            csrc/kernels/gated.cc
//	down                                        LibTorch
//
// All edges are full, because LibTorch's kernels declare nothing. A layer with experts computes
// them row by row with the kernels of a token where these take them, because rows pick different
// experts. A row whose position is below 0 is passed over: it writes neither pages nor a token.

// rowsPass is what a step of some seats knows of them.
type rowsPass struct {
	from, n int  // the first seat, and how many
	alike   bool // the result of a row does not depend on the other rows
	seats   *seats
	tables  []*cgotorch.Tensor // of each layer, Int64 [n, 2, blocks]
	before  []*cgotorch.Tensor // of each layer, Int64 [n]
}

// pass returns what a step of n seats needs, from seat `from` on. It reads and writes the pages of
// the first `blocks` blocks of each table.
func (s *seats) pass(x *cgotorch.Exec, from, n int, blocks []int) *rowsPass {
	p := &rowsPass{from: from, n: n, seats: s}
	layers := len(s.d.layers)
	p.tables, p.before = make([]*cgotorch.Tensor, layers), make([]*cgotorch.Tensor, layers)
	for i, span := range s.spans {
		live := x.Narrow(x.Narrow(span.tables, 0, from, n), 3, 0, blocks[i])
		before := x.Narrow(span.before, 0, from, n)
		for k, layer := range span.layers {
			p.tables[layer], p.before[layer] = x.Select(live, 1, k), before
		}
	}
	return p
}

// rows maps the tokens of seats to the logits of the next ones, [n, vocab] in the wide dtype.
func (d *decoder) rows(x *cgotorch.Exec, p *rowsPass) *cgotorch.Tensor {
	tokens, positions := x.Narrow(p.seats.tokens, 0, p.from, p.n), x.Narrow(p.seats.positions, 0, p.from, p.n)
	sum, turns := d.beginRows(x, tokens, positions, p.seats.frequencies)
	s := &rowStream{sum: sum}
	for i, l := range d.layers {
		d.rowLayer(x, p, s, l, func(qkv *cgotorch.Tensor) *cgotorch.Tensor {
			by := turns[l.rope]
			return call(x, "streamtorch::token_attention", qkv, l.queryNorm, l.keyNorm, d.c.eps, d.c.normOffset, by.cos, by.sin, positions,
				p.seats.pages.memory, p.tables[i], p.before[i], l.sinks, d.c.heads, l.window, d.c.queryScale, d.c.scoreCap, p.seats.arrived, "full")
		})
	}
	in := d.addNorm(x, s, d.norm)
	return d.capped(x, d.as(x, d.head.forward(x, in, false), d.wide), d.c.logitCap)
}

// beginRows returns the embeddings of tokens, [n, width] in the wide dtype, and the turns of their
// positions.
func (d *decoder) beginRows(x *cgotorch.Exec, tokens, positions *cgotorch.Tensor, frequencies []*cgotorch.Tensor) (*cgotorch.Tensor, []turn) {
	if d.wide != cgotorch.Float32 {
		h := x.Embedding(d.embed, tokens, cgotorch.EmbeddingOptions{PaddingIndex: cgotorch.Set(d.c.pad)})
		return x.MulScalar(d.as(x, h, d.wide), d.c.embedScale), d.begin(x, frequencies, positions)
	}
	var scales []float64
	for _, r := range d.c.ropes {
		scales = append(scales, r.scale)
	}
	parts := x.Call("streamtorch::token_embedding", d.embed, tokens, positions, frequencies, scales, d.c.embedScale)[0].([]*cgotorch.Tensor)
	var turns []turn
	for i := range scales {
		turns = append(turns, turn{cos: parts[1+2*i], sin: parts[2+2*i]})
	}
	return parts[0], turns
}

// rowStream is the residual stream of rows: sum + norm(late).
type rowStream struct {
	sum  *cgotorch.Tensor // [n, width] in the wide dtype
	late *cgotorch.Tensor // [n, width], or nil
	norm *cgotorch.Tensor // the weight of late's norm, or nil
}

// addNorm adds what is late to the stream. It returns the norm of the stream, in the dtype of the
// weights. A nil norm is none.
func (d *decoder) addNorm(x *cgotorch.Exec, s *rowStream, norm *cgotorch.Tensor) *cgotorch.Tensor {
	out := call(x, "streamtorch::add_rms_norm", s.sum, s.late, s.norm, norm, d.c.eps, d.c.normOffset, d.dtype)
	s.late, s.norm = nil, nil
	return out
}

// rowLayer adds attention and the feed-forward layer to the stream.
func (d *decoder) rowLayer(x *cgotorch.Exec, p *rowsPass, s *rowStream, l *decoderLayer, attend func(qkv *cgotorch.Tensor) *cgotorch.Tensor) {
	mixed := x.Tidy(func() *cgotorch.Tensor { return attend(l.qkv.forward(x, d.addNorm(x, s, l.beforeMix), false)) })
	s.late, s.norm = l.out.forward(x, mixed, false), l.afterMix
	if l.experts != nil {
		d.rowExperts(x, p, s, l)
		return
	}
	s.late = x.Tidy(func() *cgotorch.Tensor {
		gateUp := l.gateUp.forward(x, d.addNorm(x, s, l.beforeFeed), false)
		return l.down.forward(x, call(x, "streamtorch::gated", gateUp, d.c.activation, d.c.clampLimit, d.c.clampAlpha), false)
	})
	s.norm = l.afterFeed
}

// rowExperts adds what a layer's experts compute to the stream. That does not wait for the device
// on CUDA.
func (d *decoder) rowExperts(x *cgotorch.Exec, p *rowsPass, s *rowStream, l *decoderLayer) {
	d.addNorm(x, s, nil)
	if x.Device().IsCUDA() && (p.alike || d.table != nil || d.dtype != cgotorch.BFloat16 || !l.experts.groupable()) {
		arrived := x.Narrow(p.seats.arrived, 0, 0, 8*d.c.keyHeads)
		var all []*cgotorch.Tensor
		for i := range p.n {
			row := &tokenStream{sum: x.Narrow(s.sum, 0, i, 1)}
			d.tokenExperts(x, row, l, arrived)
			all = append(all, row.sum)
		}
		s.sum = x.Cat(all, 0)
		return
	}
	s.late = x.Tidy(func() *cgotorch.Tensor {
		wide := d.normed(x, s.sum, l.beforeFeed)
		return l.experts.forward(x, d.as(x, wide, d.dtype), wide, false)
	})
	s.norm = l.afterFeed
}
