package text

import (
	"fmt"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Start prepares a cache for new sequences. The first token of each sequence is the config's
// decoder_start_token_id. `encoded` [batch, source, d_model] is the result of [Switch.Encode].
// Start computes the keys and values of the cross-attention from `encoded`. `mask` [batch,
// source] is 0 at padding. A nil `mask` means that there is no padding. If `encoded` has fewer
// tokens than the cache's Source, Start pads the rest. Start fails with
// [cgotorch.ErrInvalidArgument] if `encoded` has more tokens than Source. It fails in the same
// way if the batch of `encoded` is not the Batch of the cache.
func (m *SwitchDecoder) Start(x *cgotorch.Exec, c *Cache, encoded, mask *cgotorch.Tensor) {
	const where = "SwitchDecoder.Start"
	x = plain(x)
	wantEncoded(x, where, encoded, mask, int64(c.o.Batch))
	source := encoded.Shape()[1]
	if source > int64(c.o.Source) {
		refuse(x, where, "the encoder's result has %d tokens, and the cache was made for %d", source, c.o.Source)
	}
	fill := func(t *cgotorch.Tensor, value cgotorch.Scalar) { x.FillInPlace(t, value).Close() }
	for _, list := range [][]*cgotorch.Tensor{c.Keys, c.Values, c.CrossKeys, c.CrossValues} {
		for _, t := range list {
			fill(t, 0) // attention gives old values the weight 0, but 0 times an old NaN would be NaN
		}
	}
	dtype := c.CrossBias.DType()
	fill(c.CrossBias, lowest(dtype))
	write := func(to *cgotorch.Tensor, dim int, from *cgotorch.Tensor) {
		x.CopyInPlace(x.Narrow(to, dim, 0, int(source)), from)
	}
	x.Tidy(func() *cgotorch.Tensor {
		bias := padding(x, mask, dtype)
		if bias == nil {
			bias = x.Zeros(dtype, 1, 1, 1, source)
		}
		write(x.View(c.CrossBias, int64(c.o.Batch), -1, 1, int64(c.o.Source)), 3, bias)
		return nil
	})
	for i, block := range m.Block {
		x.Tidy(func() *cgotorch.Tensor {
			keys, values := block.remember(x, encoded)
			write(c.CrossKeys[i], 2, keys)
			write(c.CrossValues[i], 2, values)
			return nil
		})
	}
	fill(c.Tokens, m.config.DecoderStartTokenID)
	fill(c.Position, 0)
	x.EachLaunch(func(*cgotorch.Exec) { c.next = 0 })
}

// begin begins a step with the cache's Tokens at its Position. It returns `hidden` [batch,
// d_model], the embeddings of the tokens. It also returns `bias` [batch*heads, 1, capacity],
// which the method `attend` adds to the scores. It fails with [cgotorch.ErrInvalidArgument] if the
// cache is full. If the step was captured, its launch fails with that error.
func (m *SwitchDecoder) begin(x *cgotorch.Exec, c *Cache) (hidden, bias *cgotorch.Tensor) {
	const where = "Switch.Step"
	x = plain(x)
	x.EachLaunch(func(x *cgotorch.Exec) {
		if c.next >= c.o.Capacity {
			x.Fail(where, fmt.Errorf("the cache was made for %d tokens, and all are there: %w", c.o.Capacity, cgotorch.ErrInvalidArgument))
		}
	})
	bias = x.Tidy(func() *cgotorch.Tensor {
		distances := x.Clamp(x.Sub(c.Position, c.places), 0, nil)
		biases := positionBias(x, m.biases(), x.Unsqueeze(x.IndexSelect(c.buckets, 0, distances), 0)) // [1, heads, 1, capacity]
		biases = x.MaskedFill(biases, x.Gt(c.places, c.Position), lowest(c.CrossBias.DType()))
		return x.Reshape(x.Expand(biases, int64(c.o.Batch), -1, -1, -1), -1, 1, int64(c.o.Capacity))
	})
	return m.EmbedTokens.Forward(x, c.row), bias
}

// attend runs both attentions of a block on `hidden` [batch, d_model]. Blocks are counted from 0.
// It stores the block's keys and values in the cache.
func (m *SwitchDecoder) attend(x *cgotorch.Exec, c *Cache, block int, hidden, bias *cgotorch.Tensor) *cgotorch.Tensor {
	x = plain(x)
	b := m.Block[block]
	return x.Tidy(func() *cgotorch.Tensor {
		a, s := b.Attention.SelfAttention, c.steps[block]
		batch, heads, width := int64(c.o.Batch), int64(a.heads), int64(a.width)
		all := x.View(a.project(x, b.Attention.LayerNorm.Forward(x, hidden)), batch, 3, heads, width)
		entries := x.Transpose(x.Narrow(all, 1, 1, 2), 0, 1) // the keys and the values
		indexCopy(x, s.own, 1, c.Position, x.Reshape(entries, 2*batch*heads, 1, width))
		queries := x.Reshape(x.Narrow(all, 1, 0, 1), batch*heads, 1, width)
		attended := x.Add(hidden, a.attendStep(x, queries, s.keys, s.values, bias))
		return b.Cross.forwardStep(x, attended, s.crossKeys, s.crossValues, c.CrossBias)
	})
}

// Step runs a whole step of the decoder. It returns the logits [batch, vocab_size] of the tokens
// after the cache's Tokens. [Cache.Next] prepares the next step. A step has fixed shapes. It uses
// only the memory of the cache and of its own results. A step can therefore be captured, unless
// [SwitchOptions].Slots makes it wait. Step fails with [cgotorch.ErrInvalidArgument] if the cache
// is full.
func (m *Switch) Step(x *cgotorch.Exec, c *Cache) *cgotorch.Tensor {
	x = plain(x)
	return x.Tidy(func() *cgotorch.Tensor {
		hidden, bias := m.Decoder.begin(x, c)
		for i, block := range m.Decoder.Block {
			hidden = then(hidden, m.Decoder.attend(x, c, i, hidden, bias))
			hidden = then(hidden, block.FF.forward(x, hidden))
		}
		return m.predict(x, hidden)
	})
}
