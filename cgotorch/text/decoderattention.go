package text

import (
	"math"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// flash reports whether LibTorch's flash attention takes the heads of a model on a GPU of compute
// capability 8.0. It has no soft cap, and it needs float16 or bfloat16.
func (c *decoderConfig) flash(dtype cgotorch.DType) bool {
	return dtype.Size() == 2 && c.scoreCap == 0 && c.head%8 == 0 && c.head <= 256
}

// mixByFlash is attention of the rows of one sequence, by LibTorch's flash attention. query is
// [rows, heads, head]; key and value are [keys, keyHeads, head]. The last row sees the first
// keyEnds[1] keys, each row before it one key less. The result is [rows, heads*head].
func (d *decoder) mixByFlash(x *cgotorch.Exec, l *decoderLayer, query, key, value *cgotorch.Tensor, v *cacheView) *cgotorch.Tensor {
	var left, right any
	if v.window > 0 {
		left, right = v.window-1, 0
	}
	results := x.Call("aten::_flash_attention_forward", query, key, value, v.rowEnds, v.keyEnds, v.rows, v.keys, 0.0, true, false, d.c.queryScale, left, right)
	out := results[0].(*cgotorch.Tensor)
	if l.sinks != nil { // a sink takes its share of each softmax: e^sum becomes e^sum + e^sink
		sums := x.Transpose(x.View(results[1].(*cgotorch.Tensor), int64(d.c.heads), int64(v.rows)), 0, 1)
		kept := x.Sigmoid(x.Sub(sums, l.sinks))
		out = d.as(x, x.Mul(out, x.Unsqueeze(kept, 2)), d.dtype)
	}
	return x.View(out, int64(v.rows), -1)
}

// sees returns which keys a query sees, as numbers that are added to scores: 0 or -Inf, in the
// dtype of the queries, [queries, keys]. Both positions are Int64.
func (d *decoder) sees(x *cgotorch.Exec, queries, keys *cgotorch.Tensor, window int) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		distance := x.Sub(x.Unsqueeze(queries, 1), keys)
		hidden := x.LtScalar(distance, 0)
		if window > 0 {
			hidden = x.LogicalOr(hidden, x.GeScalar(distance, window))
		}
		return x.MaskedFill(x.Zeros(d.dtype, distance.Shape()...), hidden, math.Inf(-1))
	})
}

// mix is attention. query is [batch, n, heads, head]; key and value are [batch, m, keyHeads, head].
// mask is what sees returns, or nil if each query sees the keys up to its own. The result is
// [batch*n, heads*head].
func (d *decoder) mix(x *cgotorch.Exec, l *decoderLayer, query, key, value, mask *cgotorch.Tensor) *cgotorch.Tensor {
	shape := query.Shape()
	query, key, value = x.Transpose(query, 1, 2), x.Transpose(key, 1, 2), x.Transpose(value, 1, 2)
	var out *cgotorch.Tensor
	if d.byHand(x, mask != nil) {
		out = d.mixByHand(x, l, query, key, value, mask)
	} else {
		out = x.ScaledDotProductAttention(query, key, value, cgotorch.ScaledDotProductAttentionOptions{
			Mask: mask, Causal: mask == nil, Scale: cgotorch.Set(d.c.queryScale), GroupedQuery: d.c.heads != d.c.keyHeads,
		})
	}
	return x.Reshape(x.Transpose(out, 1, 2), shape[0]*shape[1], -1)
}

// byHand reports whether mix computes with plain products: LibTorch's attention has no soft cap and
// no sinks, and on CUDA its kernels take no mask if several query heads share a head of keys.
func (d *decoder) byHand(x *cgotorch.Exec, masked bool) bool {
	return d.c.scoreCap != 0 || d.c.sinks || masked && x.Device().IsCUDA()
}

// mixByHand is mix with plain products. query is [batch, heads, n, head], key and value are [batch,
// keyHeads, m, head], and so is the result.
func (d *decoder) mixByHand(x *cgotorch.Exec, l *decoderLayer, query, key, value, mask *cgotorch.Tensor) *cgotorch.Tensor {
	return x.Tidy(func() *cgotorch.Tensor {
		shape, m := query.Shape(), key.Shape()[2]
		batch, n, keyHeads, group, head := shape[0], shape[2], int64(d.c.keyHeads), int64(d.c.heads/d.c.keyHeads), shape[3]
		query = x.Reshape(query, batch, keyHeads, group*n, head) // the rows that share keys, behind each other
		scores := x.MulScalar(d.as(x, x.MatMul(query, x.Transpose(key, 2, 3)), d.wide), d.c.queryScale)
		scores = x.Add(x.View(d.capped(x, scores, d.c.scoreCap), batch, keyHeads, group, n, m), mask)
		if l.sinks == nil {
			scores = x.Softmax(scores, -1)
		} else {
			sinks := x.Expand(x.View(d.as(x, l.sinks, d.wide), 1, keyHeads, group, 1, 1), batch, -1, -1, n, 1)
			scores = x.Narrow(x.Softmax(x.Cat([]*cgotorch.Tensor{scores, sinks}, -1), -1), 4, 0, int(m))
		}
		weights := x.Reshape(d.as(x, scores, d.dtype), batch, keyHeads, group*n, m)
		return x.View(x.MatMul(weights, value), batch, -1, n, head)
	})
}

// wholePass returns a pass over a batch of whole sequences, Int64 [batch, n], without a cache.
// Gradients may be recorded.
func (d *decoder) wholePass(x *cgotorch.Exec, batch, n int) *pass {
	positions := x.Arange(cgotorch.Int64, 0, n, 1)
	masks := map[int]*cgotorch.Tensor{}
	for _, l := range d.layers {
		if far := l.window == 0 || l.window >= n; masks[l.window] == nil && (!far || d.byHand(x, false)) {
			masks[l.window] = d.sees(x, positions, positions, l.window)
		}
	}
	p := &pass{rows: batch * n, training: true}
	p.rotations = d.begin(x, d.frequenciesOf(n), x.Reshape(x.Expand(positions, int64(batch), int64(n)), -1))
	p.attend = func(layer int, qkv *cgotorch.Tensor) *cgotorch.Tensor {
		l := d.layers[layer]
		all := x.SplitWithSizes(x.View(qkv, int64(batch), int64(n), -1, int64(d.c.head)), []int64{int64(d.c.heads), int64(d.c.keyHeads), int64(d.c.keyHeads)}, 2)
		return d.mix(x, l, all[0], all[1], all[2], masks[l.window])
	}
	return p
}
