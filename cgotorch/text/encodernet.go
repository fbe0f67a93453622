package text

import (
	"fmt"
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// encoderNet maps the tokens of a batch to hidden states: a bidirectional or a causalNet.
type encoderNet interface {
	// places returns the positions of the tokens, as hidden takes them.
	places(l *encoderLayout) []int64
	// hidden returns [rows, width].
	hidden(x *cgotorch.Exec, b *encoderBatch) *cgotorch.Tensor
	// mostCaptured returns how many rows a batch that is captured may have: see [rowsOfHost]. It is 0
	// if attention does not take LibTorch's flash attention, or if a row depends on how many there
	// are.
	mostCaptured() int
	// free closes the tensors that are not in an encoderWeights.
	free() error
}

// bidirectional is an encoder in which each token of a text sees all others, or those near it.
type bidirectional struct {
	c     *encoderConfig
	flash bool // attention takes LibTorch's flash attention

	embed, positions, kinds *parameter // of the tables; nil if there is none
	distances               *parameter // biases of scores, or nil
	embedNorm, finalNorm    *layerNorm
	layers                  []*encoderLayer
	frequencies             []*cgotorch.Tensor
}

type encoderLayer struct {
	encoderLayerConfig
	qkv, out, up, down *product
	mixNorm, feedNorm  *layerNorm // behind attention and the feed-forward layer, or before them
}

// newBidirectional lists the tensors of an encoder.
func newBidirectional(c *encoderConfig, w *encoderWeights, flash bool) *bidirectional {
	n := c.names
	e := &bidirectional{c: c, flash: flash, embed: w.table(n.embed, c.vocab, c.width)}
	if c.positions > 0 {
		e.positions = w.table(n.positions, c.positions, c.width)
	}
	if c.kinds > 0 {
		e.kinds = w.table(n.kinds, c.kinds, c.width)
	}
	if c.buckets > 0 {
		e.distances = w.table("encoder.relative_attention_bias", c.buckets, c.heads)
	}
	e.embedNorm = w.norm(w.dtype, n.embedNorm, c.width, c.eps, c.normBias)
	for i, l := range c.layers {
		prefix := fmt.Sprintf(n.layer, i)
		var names []string
		for _, name := range n.qkv {
			names = append(names, prefix+name)
		}
		layer := &encoderLayer{encoderLayerConfig: l, qkv: w.linear(w.dtype, names, c.width, 3*c.width, c.mixBias)}
		layer.out = w.linear(w.dtype, []string{prefix + n.out}, c.width, c.width, c.mixBias)
		inner := c.inner
		if c.preNorm {
			inner *= 2 // the gate
		}
		layer.up = w.linear(w.dtype, []string{prefix + n.up}, c.width, inner, c.feedBias)
		layer.down = w.linear(w.dtype, []string{prefix + n.down}, c.inner, c.width, c.feedBias)
		if i > 0 || !c.preNorm {
			layer.mixNorm = w.norm(w.dtype, prefix+n.mixNorm, c.width, c.eps, c.normBias)
		}
		layer.feedNorm = w.norm(w.dtype, prefix+n.feedNorm, c.width, c.eps, c.normBias)
		e.layers = append(e.layers, layer)
	}
	if n.finalNorm != "" {
		e.finalNorm = w.norm(w.dtype, n.finalNorm, c.width, c.eps, c.normBias)
	}
	return e
}

// prepare makes the frequencies of rotations. It waits for the device.
func (e *bidirectional) prepare(stream *cgotorch.Stream) error {
	return stream.Do(func(x *cgotorch.Exec) error {
		for _, r := range e.c.ropes {
			e.frequencies = append(e.frequencies, x.Keep(r.frequencies(plain(x), e.c.context)))
		}
		return nil
	})
}

func (e *bidirectional) free() error {
	for _, t := range e.frequencies {
		t.Close()
	}
	return nil
}

func (e *bidirectional) mostCaptured() int {
	if !e.flash {
		return 0
	}
	return rowsOfHost(e.c.width, e.c.inner, e.c.preNorm)
}

func (e *bidirectional) places(l *encoderLayout) []int64 {
	return l.positions(e.c.firstPosition, e.c.afterPad, e.c.pad)
}

func (e *bidirectional) hidden(x *cgotorch.Exec, b *encoderBatch) *cgotorch.Tensor {
	h := x.Tidy(func() *cgotorch.Tensor { return e.begin(x, b) })
	rotations, masks := e.rotations(x, b), e.masks(x, b)
	for _, l := range e.layers {
		if e.c.preNorm {
			h = then(h, x.Tidy(func() *cgotorch.Tensor { return e.pre(x, b, l, h, rotations, masks) }))
		} else {
			h = then(h, x.Tidy(func() *cgotorch.Tensor { return e.post(x, b, l, h, masks) }))
		}
	}
	return e.finalNorm.forward(x, h)
}

// begin returns the embeddings of the tokens.
func (e *bidirectional) begin(x *cgotorch.Exec, b *encoderBatch) *cgotorch.Tensor {
	look := func(table *parameter, at *cgotorch.Tensor) *cgotorch.Tensor {
		return x.Embedding(table.Tensor, at, cgotorch.EmbeddingOptions{})
	}
	h := look(e.embed, b.tokens)
	switch {
	case e.kinds == nil:
	case b.kinds == nil:
		h = x.Add(h, x.Select(e.kinds.Tensor, 0, 0))
	default:
		h = x.Add(h, look(e.kinds, b.kinds))
	}
	if e.positions != nil {
		h = x.Add(h, look(e.positions, b.places))
	}
	return e.embedNorm.forward(x, h)
}

// post is a layer whose norms come behind attention and the feed-forward layer.
func (e *bidirectional) post(x *cgotorch.Exec, b *encoderBatch, l *encoderLayer, h *cgotorch.Tensor, masks map[int]*cgotorch.Tensor) *cgotorch.Tensor {
	mixed := l.mixNorm.forward(x, l.out.added(x, e.attend(x, b, l, l.qkv.forward(x, h, "linear"), nil, masks), h))
	return l.feedNorm.forward(x, l.down.added(x, l.up.forward(x, mixed, e.c.activation), mixed))
}

// pre is a layer whose norms come before attention and the feed-forward layer.
func (e *bidirectional) pre(x *cgotorch.Exec, b *encoderBatch, l *encoderLayer, h *cgotorch.Tensor, rotations []rotation, masks map[int]*cgotorch.Tensor) *cgotorch.Tensor {
	in := l.mixNorm.forward(x, h)
	h = l.out.added(x, e.attend(x, b, l, l.qkv.forward(x, in, "linear"), rotations, masks), h)
	gated := x.Chunk(l.up.forward(x, l.feedNorm.forward(x, h), "linear"), 2, 1)
	return l.down.added(x, x.Mul(activate(x, e.c.activation, gated[0]), gated[1]), h)
}

// attend returns the attention of all texts, [rows, width]. `qkv` has their queries, keys and
// values, [rows, 3*width], and is changed by rotations.
func (e *bidirectional) attend(x *cgotorch.Exec, b *encoderBatch, l *encoderLayer, qkv *cgotorch.Tensor, rotations []rotation, masks map[int]*cgotorch.Tensor) *cgotorch.Tensor {
	c, rows := e.c, int64(b.rows)
	if len(rotations) > 0 {
		by := rotations[l.rope]
		heads := x.View(qkv, rows, 3*int64(c.heads), int64(c.head))
		both := x.Narrow(heads, 1, 0, 2*c.heads)
		wide := x.To(both, by.cos.DType())
		swapped := x.Roll(wide, []int64{int64(c.head / 2)}, []int64{2})
		x.CopyInPlace(both, x.AddCMul(x.Mul(wide, by.cos), swapped, by.sin, 1))
	}
	if e.flash {
		all := x.Unbind(x.View(qkv, rows, 3, int64(c.heads), int64(c.head)), 1)
		o := flashOptions{}
		if l.reach > 0 {
			o.window = l.reach + 1
		}
		return b.flash(x, all[0], all[1], all[2], o)
	}
	return b.each(x, func(g encoderGroup) *cgotorch.Tensor {
		part := x.View(x.Narrow(qkv, 0, g.from, g.count*g.length), int64(g.count), int64(g.length), 3, int64(c.heads), int64(c.head))
		all := x.Unbind(x.Permute(part, 2, 0, 3, 1, 4), 0)
		var mask *cgotorch.Tensor
		if m := masks[l.reach]; m != nil && (c.buckets > 0 || g.length > l.reach+1) {
			mask = x.Narrow(x.Narrow(m, 2, 0, g.length), 3, 0, g.length)
		}
		out := x.ScaledDotProductAttention(all[0], all[1], all[2], cgotorch.ScaledDotProductAttentionOptions{Mask: mask})
		return x.Reshape(x.Transpose(out, 1, 2), int64(g.count*g.length), int64(c.width))
	})
}

// rotations returns the rotations of all rows, for each kind of rotation.
func (e *bidirectional) rotations(x *cgotorch.Exec, b *encoderBatch) (all []rotation) {
	if len(e.frequencies) == 0 {
		return nil
	}
	at := x.View(x.To(b.places, cgotorch.Float32), -1, 1, 1)
	for _, f := range e.frequencies {
		angles := x.Mul(at, f)
		all = append(all, rotation{x.Cos(angles), x.Sin(angles)})
	}
	return all
}

// masks returns the tensors that attention adds to its scores, by the reach of layers. Each is for
// the longest text: [1, heads or 1, longest, longest]. Shorter texts take a corner of it.
func (e *bidirectional) masks(x *cgotorch.Exec, b *encoderBatch) map[int]*cgotorch.Tensor {
	masks := map[int]*cgotorch.Tensor{}
	dtype, n := e.embed.dtype, b.longest
	if e.flash {
		return masks
	}
	if e.c.buckets > 0 {
		places := make([]int64, 0, n*n)
		for i := range n {
			for k := range n {
				places = append(places, bucket(k-i, e.c.buckets))
			}
		}
		biases := x.Embedding(e.distances.Tensor, cgotorch.FromSlice(x, places, int64(n), int64(n)), cgotorch.EmbeddingOptions{})
		masks[0] = x.Unsqueeze(x.Contiguous(x.Permute(biases, 2, 0, 1), cgotorch.Contiguous), 0)
		return masks
	}
	at := x.Arange(cgotorch.Int64, 0, n, 1)
	for _, l := range e.layers {
		if l.reach > 0 && n > l.reach+1 && masks[l.reach] == nil {
			far := x.GtScalar(x.Abs(x.Sub(x.Unsqueeze(at, 1), at)), l.reach)
			masks[l.reach] = x.View(x.MaskedFill(x.Zeros(dtype, int64(n), int64(n)), far, math.Inf(-1)), 1, 1, int64(n), int64(n))
		}
	}
	return masks
}
