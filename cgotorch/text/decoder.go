package text

import (
	"errors"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
)

// decoder computes logits from tokens. All its families run through the same few methods: what
// differs stands in decoderConfig.
type decoder struct {
	c      *decoderConfig
	dtype  cgotorch.DType // of weights, products and cached keys
	wide   cgotorch.DType // of the residual stream, norms and rotations: float32, or float64
	embed  *cgotorch.Tensor
	layers []*decoderLayer
	norm   *cgotorch.Tensor
	head   *cgotorch.Tensor

	frequencies [2][]*cgotorch.Tensor // of each rotation, in short sequences and in long ones

	Weights []nn.Named `state:",named"` // with the names of the files
	whole   []*cgotorch.Tensor
}

// decoderLayer has the tensors of a layer. A norm is nil if the family does not have it.
type decoderLayer struct {
	layerConfig
	c *decoderConfig

	beforeMix, afterMix, beforeFeed, afterFeed *cgotorch.Tensor
	queryNorm, keyNorm                         *cgotorch.Tensor
	qkv, out                                   *linear
	sinks                                      *cgotorch.Tensor
	gateUp, down                               *linear  // nil with experts
	experts                                    *experts // nil without
}

// pass is one forward pass over the rows of some sequences.
type pass struct {
	rows     int  // tokens, all sequences together
	training bool // gradients may be recorded
	turns    []turn
	attend   func(layer int, query, key, value *cgotorch.Tensor) *cgotorch.Tensor
}

// turn has the cosines and sines of each row, [rows, 1, width/2] in the wide dtype.
type turn struct{ cos, sin *cgotorch.Tensor }

// frequenciesOf returns the frequencies of each rotation in a sequence of so many tokens: see
// [decoderConfig.long].
func (d *decoder) frequenciesOf(tokens int) []*cgotorch.Tensor {
	if d.c.long(tokens) {
		return d.frequencies[1]
	}
	return d.frequencies[0]
}

// begin returns the turns of rows at these positions, Int64 [rows], for each kind of rotation.
func (d *decoder) begin(x *cgotorch.Exec, frequencies []*cgotorch.Tensor, positions *cgotorch.Tensor) (turns []turn) {
	for i, r := range d.c.ropes {
		angles := x.Unsqueeze(x.Mul(x.Unsqueeze(x.To(positions, cgotorch.Float32), 1), frequencies[i]), 1)
		turns = append(turns, turn{d.scaled(x, x.Cos(angles), r.scale), d.scaled(x, x.Sin(angles), r.scale)})
	}
	return turns
}

func (d *decoder) scaled(x *cgotorch.Exec, t *cgotorch.Tensor, factor float64) *cgotorch.Tensor {
	if factor != 1 {
		t = x.MulScalar(t, factor)
	}
	return d.as(x, t, d.wide)
}

// as returns t in a dtype.
func (d *decoder) as(x *cgotorch.Exec, t *cgotorch.Tensor, dtype cgotorch.DType) *cgotorch.Tensor {
	if t.DType() == dtype {
		return t
	}
	return x.To(t, dtype)
}

// hidden maps tokens, Int64 [rows], to the hidden states behind the last norm, [rows, width].
func (d *decoder) hidden(x *cgotorch.Exec, p *pass, tokens *cgotorch.Tensor) *cgotorch.Tensor {
	h := x.Tidy(func() *cgotorch.Tensor {
		h := d.as(x, x.Embedding(d.embed, tokens, cgotorch.EmbeddingOptions{}), d.wide)
		if d.c.embedScale != 1 {
			h = x.MulScalar(h, d.c.embedScale)
		}
		return h
	})
	for i, l := range d.layers {
		h = then(h, x.Tidy(func() *cgotorch.Tensor { return d.layer(x, p, i, l, h) }))
	}
	return then(h, x.Tidy(func() *cgotorch.Tensor { return d.as(x, d.normed(x, h, d.norm), d.dtype) }))
}

// logits maps hidden states [rows, width] to float32 [rows, vocab], or float64.
func (d *decoder) logits(x *cgotorch.Exec, hidden *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		return d.capped(x, d.as(x, x.Linear(hidden, d.head, nil), d.wide), d.c.logitCap)
	})
}

// capped bounds t smoothly to -limit and limit. limit 0 is none.
func (d *decoder) capped(x *cgotorch.Exec, t *cgotorch.Tensor, limit float64) *cgotorch.Tensor {
	if limit == 0 {
		return t
	}
	return x.MulScalar(x.Tanh(x.DivScalar(t, limit)), limit)
}

// normed is the norm of the family over the last dimension. A nil weight is no norm.
func (d *decoder) normed(x *cgotorch.Exec, h, weight *cgotorch.Tensor) *cgotorch.Tensor {
	if weight == nil {
		return h
	}
	h = d.as(x, h, d.wide)
	if d.c.normOffset {
		weight = x.AddScalar(weight, 1)
	}
	return call(x, "aten::rms_norm", h, weight.Shape(), weight, d.c.eps)
}

// plus adds what a layer computes to the residual stream. On the CPU LibTorch adds two dtypes ten
// times more slowly than it converts one of them.
func (d *decoder) plus(x *cgotorch.Exec, h, out *cgotorch.Tensor) *cgotorch.Tensor {
	if !x.Device().IsCUDA() {
		out = d.as(x, out, d.wide)
	}
	return x.Add(h, out)
}

// layer adds attention and the feed-forward layer to h [rows, width].
func (d *decoder) layer(x *cgotorch.Exec, p *pass, i int, l *decoderLayer, h *cgotorch.Tensor) *cgotorch.Tensor {
	mixed := x.Tidy(func() *cgotorch.Tensor {
		in := d.as(x, d.normed(x, h, l.beforeMix), d.dtype)
		query, key, value := d.project(x, p, l, in)
		out := l.out.forward(x, p.attend(i, query, key, value), p.training)
		return d.plus(x, h, d.normed(x, out, l.afterMix))
	})
	defer mixed.Close()
	return x.Tidy(func() *cgotorch.Tensor {
		wide := d.normed(x, mixed, l.beforeFeed)
		in := d.as(x, wide, d.dtype)
		var out *cgotorch.Tensor
		if l.experts != nil {
			out = l.experts.forward(x, in, wide, p.training)
		} else {
			out = l.down.forward(x, d.c.activate(x, l.gateUp.forward(x, in, p.training)), p.training)
		}
		return d.plus(x, mixed, d.normed(x, out, l.afterFeed))
	})
}

// project returns the turned queries [rows, heads, head], and the keys and values [rows, keyHeads,
// head].
func (d *decoder) project(x *cgotorch.Exec, p *pass, l *decoderLayer, in *cgotorch.Tensor) (query, key, value *cgotorch.Tensor) {
	c := d.c
	all := x.SplitWithSizes(l.qkv.forward(x, in, p.training), []int64{int64(c.heads * c.head), int64(c.keyHeads * c.head), int64(c.keyHeads * c.head)}, 1)
	if c.headNorm == allHeads {
		all[0], all[1] = d.normed(x, all[0], l.queryNorm), d.normed(x, all[1], l.keyNorm)
	}
	heads := func(t *cgotorch.Tensor, n int) *cgotorch.Tensor {
		return x.Reshape(t, int64(p.rows), int64(n), int64(c.head))
	}
	query, key, value = heads(all[0], c.heads), heads(all[1], c.keyHeads), heads(all[2], c.keyHeads)
	if c.headNorm == eachHead {
		query, key = d.normed(x, query, l.queryNorm), d.normed(x, key, l.keyNorm)
	}
	width := c.ropes[l.rope].width
	both := d.turned(x, x.Cat([]*cgotorch.Tensor{query, key}, 1), p.turns[l.rope], width)
	split := x.SplitWithSizes(both, []int64{int64(c.heads), int64(c.keyHeads)}, 1)
	return split[0], split[1], value
}

// turned rotates the first elements of each head of t [rows, n, head]: element i and element
// i + width/2 are a pair.
func (d *decoder) turned(x *cgotorch.Exec, t *cgotorch.Tensor, by turn, width int) *cgotorch.Tensor {
	t = d.as(x, t, d.wide)
	first, second := x.Narrow(t, 2, 0, width/2), x.Narrow(t, 2, width/2, width/2)
	parts := []*cgotorch.Tensor{
		x.Sub(x.Mul(first, by.cos), x.Mul(second, by.sin)),
		x.Add(x.Mul(second, by.cos), x.Mul(first, by.sin)),
	}
	if width < d.c.head {
		parts = append(parts, x.Narrow(t, 2, width, d.c.head-width))
	}
	return d.as(x, x.Cat(parts, 2), d.dtype)
}

// activate maps gate and up, [rows, 2*inner], to [rows, inner].
func (c *decoderConfig) activate(x *cgotorch.Exec, gateUp *cgotorch.Tensor) *cgotorch.Tensor {
	inner := int(gateUp.Shape()[1]) / 2
	if c.activation == "clamped" { // the rows of gate and up alternate
		pairs := x.View(gateUp, -1, int64(inner), 2)
		gate, up := x.Clamp(x.Select(pairs, 2, 0), nil, c.clampLimit), x.Clamp(x.Select(pairs, 2, 1), -c.clampLimit, c.clampLimit)
		return x.Mul(x.AddScalar(up, 1), x.Mul(gate, x.Sigmoid(x.MulScalar(gate, c.clampAlpha))))
	}
	gate, up := x.Narrow(gateUp, 1, 0, inner), x.Narrow(gateUp, 1, inner, inner)
	if c.activation == "gelu_tanh" {
		return x.Mul(x.GELUTanh(gate), up)
	}
	return x.Mul(x.SiLU(gate), up)
}

// close frees the tensors.
func (d *decoder) close() error {
	var errs []error
	for _, n := range d.Weights {
		errs = append(errs, n.Tensor.Close())
	}
	for _, t := range slices.Concat(d.whole, d.frequencies[0], d.frequencies[1]) {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}
