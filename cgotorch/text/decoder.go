package text

import (
	"errors"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/prefetcher/weights"
)

// decoder computes logits from tokens. All its families run through the same few methods: what
// differs stands in decoderConfig.
type decoder struct {
	kernelChoice
	c      *decoderConfig
	dtype  cgotorch.DType // of weights, products and cached keys
	wide   cgotorch.DType // of the residual stream, norms and rotations: float32, or float64
	edge   string         // between the kernels of a token, or "" without them: Note [Kernels of a token]
	embed  *cgotorch.Tensor
	layers []*decoderLayer
	norm   *cgotorch.Tensor
	head   *linear

	frequencies [2][]*cgotorch.Tensor // of each rotation, in short sequences and in long ones

	later []*linear // products whose weights become codes
	packs []*pack   // experts whose weights have 4 bits

	table  *weights.Table    // of experts in host memory, or nil
	host   map[string][]byte // that memory, by the names of the files
	room   expertRoom        // that experts have on the device
	filled int               // the version of the experts from which slots are filled

	byEngine func(x *cgotorch.Exec) bool // Table.ByEngine, or nil without a table
	fetches  bool                        // the host fetches the experts of this step
	predicts bool                        // and those that the next layer will probably pick

	Weights []nn.Named `state:",named"` // with the names of the files
	whole   []*cgotorch.Tensor
}

// decoderLayer has the tensors of a layer. A norm is nil if the family does not have it.
type decoderLayer struct {
	layerConfig

	beforeMix, afterMix, beforeFeed, afterFeed *cgotorch.Tensor
	queryNorm, keyNorm                         *cgotorch.Tensor
	qkv, out                                   *linear
	sinks                                      *cgotorch.Tensor
	gateUp, down                               *linear  // nil with experts
	experts                                    *experts // nil without
}

// pass is one forward pass over the rows of some sequences.
type pass struct {
	rows      int                // tokens, all sequences together
	experts   *weights.TablePass // brings the experts of layers from host memory, or nil
	training  bool               // gradients may be recorded
	rotations []rotation
	// attend maps the queries, keys and values of a layer, [rows, heads+2*keyHeads, head], to what
	// the queries see, [rows, heads*head].
	attend func(layer int, qkv *cgotorch.Tensor) *cgotorch.Tensor
}

// rotation has the cosines and sines of each row, [rows, 1, width] in the wide dtype. Element i and
// element i+width/2 are a pair, and turn by one angle. The sines of the first half are negative.
type rotation struct{ cos, sin *cgotorch.Tensor }

// frequenciesOf returns the frequencies of each rotation in a sequence of so many tokens: see
// [decoderConfig.long].
func (d *decoder) frequenciesOf(tokens int) []*cgotorch.Tensor {
	if d.c.long(tokens) {
		return d.frequencies[1]
	}
	return d.frequencies[0]
}

// begin returns the rotations of rows at these positions, Int64 [rows], for each kind of rotation.
func (d *decoder) begin(x *cgotorch.Exec, frequencies []*cgotorch.Tensor, positions *cgotorch.Tensor) (all []rotation) {
	at := x.View(x.To(positions, cgotorch.Float32), -1, 1, 1)
	for i, r := range d.c.ropes {
		angles := x.Mul(at, frequencies[i])
		all = append(all, rotation{d.scaled(x, x.Cos(angles), r.scale), d.scaled(x, x.Sin(angles), r.scale)})
	}
	return all
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
		h := d.as(x, x.Embedding(d.embed, tokens, cgotorch.EmbeddingOptions{PaddingIndex: cgotorch.Set(d.c.pad)}), d.wide)
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
		return d.capped(x, d.as(x, d.head.forward(x, hidden, false), d.wide), d.c.logitCap)
	})
}

// rowLogits is logits for the hidden states of d.rows.
func (d *decoder) rowLogits(x *cgotorch.Exec, hidden *cgotorch.Tensor, early bool) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		return d.capped(x, d.head.product(x, hidden, "float", early), d.c.logitCap)
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

// plus adds what a layer computes to the residual stream. LibTorch adds two dtypes more slowly than
// it converts one of them.
func (d *decoder) plus(x *cgotorch.Exec, h, out *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Add(h, d.as(x, out, d.wide))
}

// layer adds attention and the feed-forward layer to h [rows, width].
func (d *decoder) layer(x *cgotorch.Exec, p *pass, i int, l *decoderLayer, h *cgotorch.Tensor) *cgotorch.Tensor {
	mixed := x.Tidy(func() *cgotorch.Tensor {
		in := d.as(x, d.normed(x, h, l.beforeMix), d.dtype)
		out := l.out.forward(x, p.attend(i, d.project(x, p, l, in)), p.training)
		return d.plus(x, h, d.normed(x, out, l.afterMix))
	})
	defer mixed.Close()
	return x.Tidy(func() *cgotorch.Tensor {
		wide := d.normed(x, mixed, l.beforeFeed)
		in := d.as(x, wide, d.dtype)
		var out *cgotorch.Tensor
		if l.experts != nil {
			out = p.through(x, l.experts, in, wide)
		} else {
			out = l.down.forward(x, d.c.activate(x, l.gateUp.forward(x, in, p.training)), p.training)
		}
		return d.plus(x, mixed, d.normed(x, out, l.afterFeed))
	})
}

// project returns the queries, keys and values, [rows, heads+2*keyHeads, head]. The queries and
// keys are turned.
func (d *decoder) project(x *cgotorch.Exec, p *pass, l *decoderLayer, in *cgotorch.Tensor) *cgotorch.Tensor {
	c, rows := d.c, int64(p.rows)
	all := l.qkv.forward(x, in, p.training)
	qkv := x.View(all, rows, -1, int64(c.head))
	both := x.Narrow(qkv, 1, 0, c.heads+c.keyHeads)
	raw := both
	if c.headNorm != noNorm {
		query, key := x.Narrow(all, 1, 0, c.heads*c.head), x.Narrow(all, 1, c.heads*c.head, c.keyHeads*c.head)
		if c.headNorm == eachHead {
			query, key = x.View(query, rows, -1, int64(c.head)), x.View(key, rows, -1, int64(c.head))
		}
		heads := func(t, norm *cgotorch.Tensor) *cgotorch.Tensor {
			return x.View(d.normed(x, t, norm), rows, -1, int64(c.head))
		}
		raw = x.Cat([]*cgotorch.Tensor{heads(query, l.queryNorm), heads(key, l.keyNorm)}, 1)
	}
	if !p.training {
		d.rotate(x, raw, p.rotations[l.rope], both)
		return qkv
	}
	return x.Cat([]*cgotorch.Tensor{d.rotate(x, raw, p.rotations[l.rope], nil), x.Narrow(qkv, 1, c.heads+c.keyHeads, c.keyHeads)}, 1)
}

// rotate turns the first elements of each head of t [rows, n, head]. The result goes into `out`,
// which may be t, or into a new tensor if out is nil.
func (d *decoder) rotate(x *cgotorch.Exec, t *cgotorch.Tensor, by rotation, out *cgotorch.Tensor) *cgotorch.Tensor {
	t = d.as(x, t, d.wide)
	width := int(by.cos.Shape()[2])
	first, rest := x.Narrow(t, 2, 0, width), x.Narrow(t, 2, width, d.c.head-width)
	swapped := x.Roll(first, []int64{int64(width / 2)}, []int64{2})
	first = x.AddCMul(x.Mul(first, by.cos), swapped, by.sin, 1)
	if out == nil {
		return x.Cat([]*cgotorch.Tensor{d.as(x, first, d.dtype), d.as(x, rest, d.dtype)}, 2)
	}
	x.CopyInPlace(x.Narrow(out, 2, 0, width), first)
	if width < d.c.head {
		x.CopyInPlace(x.Narrow(out, 2, width, d.c.head-width), rest)
	}
	return out
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

// version counts the writes to the weights.
func (d *decoder) version() (n int) {
	for _, t := range d.whole {
		n += inside.Core.Version(t)
	}
	if d.table != nil {
		n += d.versionOfExperts()
	}
	return n
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

// slots returns how many experts of a layer have a slot, or 0 if all are on the device.
func (d *decoder) slots() int {
	if d.table == nil {
		return 0
	}
	return int(d.table.Layer(0).Slots[0].Shape()[0])
}
