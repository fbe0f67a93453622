package text

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// CacheOptions are the options of [Switch.NewCache].
type CacheOptions struct {
	Batch    int // sequences that are decoded side by side; 0 means 1
	Capacity int // tokens of each that the decoder reads, the first among them; 0 means 128
	Source   int // tokens of the encoder at most; 0 means 512
}

// Cache holds what decoding knows of its sequences, in memory of fixed shapes and addresses: a step reads and writes nothing else, so it can be captured
// once and launched for every token of every sequence. All sequences of a cache are at the same position.
//
// It belongs to one decoding at a time. Its tensors may be read and written between steps, by work that is ordered with them.
type Cache struct {
	Tokens   *cgotorch.Tensor // Int64 [batch, 1]: what the next step reads
	Position *cgotorch.Tensor // Int64 [1]: where Tokens are, from 0; below the capacity

	Keys, Values           []*cgotorch.Tensor // a block's own, [batch, heads, capacity, d_kv], up to Position
	CrossKeys, CrossValues []*cgotorch.Tensor // of the encoder's result, [batch, heads, source, d_kv]
	CrossBias              *cgotorch.Tensor   // added to the scores over it, [batch*heads, 1, source]

	o       CacheOptions
	row     *cgotorch.Tensor // Tokens as [batch]
	steps   []stepCache      // by block
	places  *cgotorch.Tensor // Int64 [capacity]: 0, 1, …
	buckets *cgotorch.Tensor // Int64 [capacity], of distances
	next    int              // the host's copy of Position
}

// stepCache is a block's keys and values as a step reads them: keys [batch*heads, d_kv, n], values [batch*heads, n, d_kv].
type stepCache struct {
	own          *cgotorch.Tensor // keys and then values, [2*batch*heads, capacity, d_kv]
	keys, values *cgotorch.Tensor // views of it

	crossKeys, crossValues *cgotorch.Tensor
}

// NewCache makes a cache on x's device: for each block and sequence keys and values, of heads*d_kv elements of the model's dtype, for each token of
// Capacity and of Source. [Decoder.Start] makes it ready. The caller must Close it. It fails with [cgotorch.ErrInvalidArgument] for options below 0.
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
	c, dtype := &Cache{o: o}, m.DType()
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

// Options are those that the cache was made with, with the defaults filled in.
func (c *Cache) Options() CacheOptions { return c.o }

// Close frees the cache. Closing twice does nothing.
func (c *Cache) Close() error {
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

// Next takes the likeliest of logits [batch, vocab_size] as the tokens of the next step. It can be captured with the step.
func (c *Cache) Next(x *cgotorch.Exec, logits *cgotorch.Tensor) {
	x = plain(x)
	x.Tidy(func() *cgotorch.Tensor {
		x.CopyInPlace(c.Tokens, x.ArgMax(logits, -1, cgotorch.ReduceOptions{KeepDim: true}))
		return nil
	})
	c.Advance(x)
}

// Advance moves to the next position; Tokens are the caller's to write. [Cache.Next] does both.
func (c *Cache) Advance(x *cgotorch.Exec) {
	plain(x).AddScalarInPlace(c.Position, 1).Close()
	x.EachLaunch(func(*cgotorch.Exec) { c.next++ })
}
