package text

import (
	"cmp"
	"fmt"
	"math"
	"sort"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Budget says how the memory of a device divides into weights and conversations. [Plan] makes it.
type Budget struct {
	Weights     int64 // bytes of the weights, or of the slots and passes for them
	TokenBytes  int64 // bytes of the cache for a token of a conversation, in layers without a window
	WindowBytes int64 // bytes of the cache for each conversation, at most, in layers with a window
	CacheTokens int   // for the Options of Open: the cache then takes what the weights leave
	// Experts is the number of experts of each layer that have a slot. 0 means that all are on the
	// device. If it is not 0, Open needs the memory as Options.DeviceMemory, too.
	Experts int

	spans          []span
	pages, context int
}

// Conversations returns how many conversations of so many tokens fit at once. The tokens are those
// of prompts and answers. It is 0 for more tokens than Options.Context allows.
func (b Budget) Conversations(tokens int) int {
	if tokens < 1 || tokens > b.context {
		return 0
	}
	return b.pages / pagesFor(b.spans, tokens, b.context)
}

// Plan divides `memory`, in bytes, into weights and cache, as an [Open] on a GPU does. It needs no
// device, and loads nothing: it reads config.json. If neither config.json nor o tells the dtype, it
// is that of the weight files, or float32 without files.
//
// The cache gets what the weights leave. Options.CacheTokens matters for a mixture alone: if its
// experts do not all fit beside that cache, they get what the cache leaves. `memory` stands for
// Options.DeviceMemory, which Plan does not read. What a pass needs for a moment is not counted,
// nor what a [Batcher] has for its answers: leave room for both.
//
// It fails with [cgotorch.ErrInvalidArgument] if memory is not above 0. It fails with
// [cgotorch.ErrOutOfMemory] if the weights do not fit, and says how much is needed. It fails as
// Open does for the folder and the options.
func Plan(folder string, memory int64, o Options) (b Budget, err error) {
	if memory <= 0 {
		return b, fmt.Errorf("text: Plan: memory is %d, want more than 0 bytes: %w", memory, cgotorch.ErrInvalidArgument)
	}
	folder, c, err := o.read(folder)
	if err == nil {
		err = o.bound(c)
	}
	files := weightSet{}
	if err == nil && cmp.Or(o.DType, c.dtype) == 0 && o.RandomWeights == 0 {
		if paths, missing := weightFiles(folder); missing == nil {
			files, err = openWeights(paths)
			defer files.close()
		}
	}
	var dtype cgotorch.DType
	if err == nil {
		dtype, err = o.dtype(c, files)
	}
	if err != nil {
		return b, err
	}
	b.context, b.spans = o.Context, c.spans(o.Context, promptPart(c.flash(dtype)))
	page := c.pageBytes(dtype)
	for _, s := range b.spans {
		if s.window == 0 {
			b.TokenBytes += page / pageTokens * int64(len(s.layers))
		} else {
			b.WindowBytes += page * int64(s.width*len(s.layers))
		}
	}
	return b, b.divide(c, dtype, float64(memory), o)
}

// divide divides memory into weights and cache.
func (b *Budget) divide(c *decoderConfig, dtype cgotorch.DType, memory float64, o Options) error {
	dense, each := c.dense(dtype, o.Quantize), c.eachExpert(dtype, o.Quantize)
	weights := dense + float64(c.experts.count)*each
	fits := func(tokens int) bool {
		return weights+c.cacheBytes(dtype, pagesFor(b.spans, tokens, b.context)) <= memory
	}
	least := 1
	if each > 0 {
		least = o.CacheTokens
	}
	switch {
	case fits(least):
		b.CacheTokens = sort.Search(mostCacheTokens, func(n int) bool { return !fits(n + 1) })
	case each > 0:
		cache := c.cacheBytes(dtype, pagesFor(b.spans, o.CacheTokens, b.context))
		room, err := c.roomIn(memory, dense, cache, each)
		if err != nil {
			return err
		}
		b.CacheTokens, b.Experts = o.CacheTokens, room.slots
		weights = dense + float64(room.slots)*each + c.ahead(each)
		if room.passes {
			weights += c.passing(each)
		}
	default:
		cache := c.cacheBytes(dtype, pagesFor(b.spans, 1, b.context))
		return fmt.Errorf("text: Plan: memory is %.0f bytes; the weights take %.0f as %v, and the smallest cache %.0f: give %.0f or more, a narrower DType, or Quantize: %w",
			memory, weights, dtype, cache, math.Ceil(weights+cache), cgotorch.ErrOutOfMemory)
	}
	b.Weights, b.pages = int64(weights), pagesFor(b.spans, b.CacheTokens, b.context)
	return nil
}
