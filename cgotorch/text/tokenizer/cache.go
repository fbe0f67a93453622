package tokenizer

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
)

// cache keeps the tokens of words. Several goroutines may use it. A word takes the place of an
// earlier word with the same hash, so the memory is bounded.
type cache struct {
	seed  maphash.Seed
	words [1 << 14]atomic.Pointer[word]
}

// word is a word with its tokens. It does not change.
type word struct {
	text string
	ids  []int64
}

// longestCached is the length of the longest word that a cache keeps, in bytes.
const longestCached = 64

func newCache() *cache { return &cache{seed: maphash.MakeSeed()} }

// encode appends the tokens of `text`. The function `make` makes them if the cache does not have
// them.
func (c *cache) encode(ids []int64, text string, make func(ids []int64, text string) []int64) []int64 {
	if len(text) > longestCached {
		return make(ids, text)
	}
	place := &c.words[maphash.String(c.seed, text)%uint64(len(c.words))]
	if w := place.Load(); w != nil && w.text == text {
		return append(ids, w.ids...)
	}
	begin := len(ids)
	ids = make(ids, text)
	place.Store(&word{strings.Clone(text), slices.Clone(ids[begin:])})
	return ids
}
