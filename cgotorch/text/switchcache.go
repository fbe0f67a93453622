package text

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// CacheOptions set the size of a [Cache].
type CacheOptions struct {
	Batch    int // number of sequences that are decoded together; 0 means 1
	Capacity int // largest number of tokens that the decoder reads of a sequence, with the first token; 0 means 128
	Source   int // largest number of tokens of the encoder's result; 0 means 512
}

// Cache holds the state of a decoding, in memory of fixed shapes and addresses. A step of the
// decoder computes the next token of each sequence. It reads and writes only the memory of the
// cache. A captured step can therefore be launched for every token. All sequences of a cache are
// at the same position.
//
// A Cache serves one decoding at a time. Between two steps the program may enqueue work that
// reads and writes the Cache's tensors. The program must put this work and the steps in order.
type Cache struct {
	Tokens   *cgotorch.Tensor // Int64 [batch, 1]: the input of the next step
	Position *cgotorch.Tensor // Int64 [1]: the position of Tokens, from 0; it is less than Capacity

	// Keys and Values are the keys and values of the self-attention. Each list has one tensor for
	// each block, [batch, heads, capacity, d_kv]. A step writes the keys and values of the position
	// Position. Those of earlier positions are valid.
	Keys, Values []*cgotorch.Tensor
	// CrossKeys and CrossValues are the keys and values of the cross-attention, for the encoder's
	// result. Each list has one tensor for each block, [batch, heads, source, d_kv].
	CrossKeys, CrossValues []*cgotorch.Tensor
	// CrossBias is added to the scores of the cross-attention, [batch*heads, 1, source].
	CrossBias *cgotorch.Tensor

	o       CacheOptions
	row     *cgotorch.Tensor // a view of Tokens with the shape [batch]
	steps   []stepCache      // one for each block
	places  *cgotorch.Tensor // Int64 [capacity]: the positions 0, 1, …
	buckets *cgotorch.Tensor // Int64 [capacity]: the bucket of each distance
	next    int              // the host's copy of Position
}

// stepCache holds the keys and values of a block in the shapes that a step reads. Keys are
// [batch*heads, d_kv, n], and values are [batch*heads, n, d_kv].
type stepCache struct {
	own          *cgotorch.Tensor // first the keys, then the values, [2*batch*heads, capacity, d_kv]
	keys, values *cgotorch.Tensor // views of the field `own`

	crossKeys, crossValues *cgotorch.Tensor
}

// NewCache makes a cache on x's device, for Batch sequences. For each block the cache has room
// for Capacity keys and values, and for Source keys and values of the cross-attention. A key or
// value has heads*d_kv elements of the model's dtype. Call [SwitchDecoder.Start] before the first
// step. NewCache does not wait for the device. The caller must Close the cache. NewCache fails
// with [cgotorch.ErrInvalidArgument] for an option below 0.
func (m *Switch) NewCache(x *cgotorch.Exec, o CacheOptions) *Cache {
	const where = "Switch.NewCache"
	for _, n := range []struct {
		value    *int
		fallback int
	}{{&o.Batch, 1}, {&o.Capacity, 128}, {&o.Source, 512}} {
		if *n.value == 0 {
			*n.value = n.fallback
		}
		if *n.value < 1 {
			refuse(x, where, "Batch is %d, Capacity %d and Source %d, want at least 1 of each, or 0 for the default", o.Batch, o.Capacity, o.Source)
		}
	}
	x = plain(x)
	c, dtype := &Cache{o: o}, m.Shared.Weight.DType()
	batch, capacity, source := int64(o.Batch), int64(o.Capacity), int64(o.Source)
	heads, width := int64(m.Config.NumHeads), int64(m.Config.DKV)
	c.Tokens = x.Zeros(cgotorch.Int64, batch, 1)
	c.Position = x.Zeros(cgotorch.Int64, 1)
	c.places = x.Arange(cgotorch.Int64, 0, capacity, nil)
	c.buckets = x.Tidy(func() *cgotorch.Tensor { return m.Config.buckets(x, x.Neg(c.places), false) })
	c.row = x.View(c.Tokens, batch)
	c.CrossBias = x.Zeros(dtype, batch*heads, 1, source)
	pair := func(allKeys, allValues *[]*cgotorch.Tensor, n int64) (both, keys, values *cgotorch.Tensor) {
		both = x.Zeros(dtype, 2*batch*heads, n, width)
		part := func(list *[]*cgotorch.Tensor, i int) *cgotorch.Tensor {
			t := x.Narrow(both, 0, i*int(batch*heads), int(batch*heads))
			*list = append(*list, x.View(t, batch, heads, n, width))
			return t
		}
		return both, x.Transpose(part(allKeys, 0), 1, 2), part(allValues, 1)
	}
	for range m.Decoder.Block {
		var s stepCache
		s.own, s.keys, s.values = pair(&c.Keys, &c.Values, capacity)
		_, s.crossKeys, s.crossValues = pair(&c.CrossKeys, &c.CrossValues, source)
		c.steps = append(c.steps, s)
	}
	for _, t := range c.tensors() {
		x.Keep(t)
	}
	return c
}

// Close frees the cache. A second Close does nothing.
func (c *Cache) Close() error {
	if c == nil {
		return nil
	}
	var errs []error
	for _, t := range c.tensors() {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

func (c *Cache) tensors() []*cgotorch.Tensor {
	all := []*cgotorch.Tensor{c.Tokens, c.row, c.Position, c.places, c.buckets, c.CrossBias}
	for _, s := range c.steps {
		all = append(all, s.own, s.keys, s.values, s.crossKeys, s.crossValues)
	}
	for _, list := range [][]*cgotorch.Tensor{c.Keys, c.Values, c.CrossKeys, c.CrossValues} {
		all = append(all, list...)
	}
	return all
}

// Next takes the likeliest token of each row of `logits` [batch, vocab_size]. It writes these
// tokens into Tokens, as the input of the next step, and moves the cache to the next position.
// Next can be captured together with the step.
func (c *Cache) Next(x *cgotorch.Exec, logits *cgotorch.Tensor) {
	x = plain(x)
	x.Tidy(func() *cgotorch.Tensor {
		x.CopyInPlace(c.Tokens, x.ArgMax(logits, -1, cgotorch.ReduceOptions{KeepDim: true}))
		return nil
	})
	x.AddScalarInPlace(c.Position, 1).Close()
	x.EachLaunch(func(*cgotorch.Exec) { c.next++ })
}
