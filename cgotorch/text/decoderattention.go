package text

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// sees returns which keys a query sees, as numbers that are added to scores: 0 or -Inf, in the
// dtype of the queries, [1, 1, group*rows, keys]. Both positions are Int64. The queries that share
// a head of keys lie behind each other, as in [decoder.mix].
func (d *decoder) sees(x *cgotorch.Exec, queries, keys *cgotorch.Tensor, window int) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		distance := x.Sub(x.Unsqueeze(queries, 1), keys) // [rows, keys]
		hidden := x.LtScalar(distance, 0)
		if window > 0 {
			hidden = x.LogicalOr(hidden, x.GeScalar(distance, window))
		}
		n, m := distance.Shape()[0], distance.Shape()[1]
		mask := x.MaskedFill(x.Zeros(d.dtype, n, m), hidden, math.Inf(-1))
		group := int64(d.c.heads / d.c.keyHeads)
		return x.Reshape(x.Expand(x.Unsqueeze(mask, 0), group, n, m), 1, 1, group*n, m)
	})
}

// mix is attention. query is [batch, n, heads, head]; key and value are [batch, m, keyHeads, head];
// mask is what sees returns. The result is [batch*n, heads*head].
func (d *decoder) mix(x *cgotorch.Exec, l *decoderLayer, query, key, value, mask *cgotorch.Tensor) *cgotorch.Tensor {
	c, shape := d.c, query.Shape()
	batch, n, group := shape[0], shape[1], int64(c.heads/c.keyHeads)
	keyHeads, head := int64(c.keyHeads), int64(c.head)
	query = x.Permute(x.View(query, batch, n, keyHeads, group, head), 0, 2, 3, 1, 4)
	query = x.Reshape(query, batch, keyHeads, group*n, head)
	key, value = x.Transpose(key, 1, 2), x.Transpose(value, 1, 2)
	var out *cgotorch.Tensor
	if c.scoreCap == 0 && !c.sinks {
		out = x.ScaledDotProductAttention(query, key, value, cgotorch.ScaledDotProductAttentionOptions{Mask: mask, Scale: cgotorch.Set(c.queryScale)})
	} else {
		out = d.mixByHand(x, l, query, key, value, mask)
	}
	out = x.Permute(x.View(out, batch, keyHeads, group, n, head), 0, 3, 1, 2, 4)
	return x.Reshape(out, batch*n, keyHeads*group*head)
}

// mixByHand is attention with a soft cap or with sinks, which LibTorch's kernels do not have.
func (d *decoder) mixByHand(x *cgotorch.Exec, l *decoderLayer, query, key, value, mask *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		scores := x.MulScalar(d.as(x, x.MatMul(query, x.Transpose(key, 2, 3)), d.wide), d.c.queryScale)
		scores = x.Add(d.capped(x, scores, d.c.scoreCap), mask)
		if l.sinks == nil {
			return x.MatMul(d.as(x, x.Softmax(scores, -1), d.dtype), value)
		}
		shape := scores.Shape()
		group := int64(d.c.heads / d.c.keyHeads)
		sinks := x.View(d.as(x, l.sinks, d.wide), 1, int64(d.c.keyHeads), group, 1, 1)
		sinks = x.Reshape(x.Expand(sinks, shape[0], -1, -1, shape[2]/group, 1), shape[0], shape[1], shape[2], 1)
		weights := x.Narrow(x.Softmax(x.Cat([]*cgotorch.Tensor{scores, sinks}, -1), -1), 3, 0, int(shape[3]))
		return x.MatMul(d.as(x, weights, d.dtype), value)
	})
}

// wholePass returns a pass over a batch of whole sequences, Int64 [batch, n], without a cache.
// Gradients may be recorded.
func (d *decoder) wholePass(x *cgotorch.Exec, batch, n int) *pass {
	positions := x.Arange(cgotorch.Int64, 0, n, 1)
	masks := map[int]*cgotorch.Tensor{}
	for _, l := range d.layers {
		if masks[l.window] == nil {
			masks[l.window] = d.sees(x, positions, positions, l.window)
		}
	}
	p := &pass{rows: batch * n, training: true}
	p.turns = d.begin(x, d.frequenciesOf(n), x.Reshape(x.Expand(positions, int64(batch), int64(n)), -1))
	p.attend = func(layer int, query, key, value *cgotorch.Tensor) *cgotorch.Tensor {
		l := d.layers[layer]
		sequences := func(t *cgotorch.Tensor, heads int) *cgotorch.Tensor {
			return x.Reshape(t, int64(batch), int64(n), int64(heads), int64(d.c.head))
		}
		return d.mix(x, l, sequences(query, d.c.heads), sequences(key, d.c.keyHeads), sequences(value, d.c.keyHeads), masks[l.window])
	}
	return p
}
