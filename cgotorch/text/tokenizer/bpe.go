package tokenizer

import (
	"math"
	"sync"
	"unicode/utf8"
)

// bpe is a byte-pair encoding: a text becomes characters, and then pairs of neighbours become one
// token, the pair with the lowest rank first.
type bpe struct {
	vocabulary
	merges       *table // by the ids of a pair, rank<<32 | id of the merged token
	prefix       string // of each character but the first of a word
	suffix       string // of the last character of a word
	unknown      int64  // for a character that is no token, or -1: the character vanishes
	fuseUnknown  bool   // several unknown characters in a row become one token
	byteFallback bool
	ignoreMerges bool // a word that is a token stays whole
	cache        *cache
	scratch      sync.Pool // of *chain
	raw          *rawBytes // nil unless pieces are bytes
}

// rawBytes lets a model read bytes where its vocabulary has byte-level characters.
type rawBytes struct {
	ids     map[string]int64 // of tokens by the bytes for which they stand
	symbols [4][256]int64    // the token of a byte, by place in the word
}

// symbol is a part of a word while pairs are merged.
type symbol struct {
	id         int64
	prev, next int32 // neighbours, or -1
	gone       bool  // it is a part of a symbol to its left
}

// merge is a pair of neighbours that can be merged.
type merge struct {
	rank uint32
	at   int32 // of the left symbol
	id   uint32
}

func (m merge) before(o merge) bool { return m.rank < o.rank || m.rank == o.rank && m.at < o.at }

// chain is the memory of one word.
type chain struct {
	symbols []symbol
	heap    []merge
}

func (m *bpe) encode(ids []int64, text string) []int64 {
	if text == "" {
		return ids
	}
	return m.cache.encode(ids, text, m.word)
}

// word appends the tokens of a word.
func (m *bpe) word(ids []int64, text string) []int64 {
	if m.ignoreMerges {
		known := m.ids
		if m.raw != nil {
			known = m.raw.ids
		}
		if id, ok := known[text]; ok {
			return append(ids, id)
		}
	}
	c, _ := m.scratch.Get().(*chain)
	if c == nil {
		c = &chain{}
	}
	c.symbols, c.heap = c.symbols[:0], c.heap[:0]
	if m.raw != nil {
		m.splitBytes(c, text)
	} else {
		m.split(c, text)
	}
	c.merge(m.merges)
	for i := range c.symbols {
		if !c.symbols[i].gone {
			ids = append(ids, c.symbols[i].id)
		}
	}
	if cap(c.symbols) <= math.MaxUint16 {
		m.scratch.Put(c)
	}
	return ids
}

// place is the index of rawBytes.symbols: 1 for the first byte of a word, plus 2 for the last.
func place(first, last bool) int {
	p := 0
	if first {
		p++
	}
	if last {
		p += 2
	}
	return p
}

func (m *bpe) splitBytes(c *chain, text string) {
	for i := range len(text) {
		c.add(m.raw.symbols[place(i == 0, i == len(text)-1)][text[i]])
	}
}

// split makes a symbol of each character.
func (m *bpe) split(c *chain, text string) {
	unknown := false // a token for unknown characters is due
	for at := 0; at < len(text); {
		_, width := utf8.DecodeRuneInString(text[at:])
		name := text[at : at+width]
		if at > 0 && m.prefix != "" {
			name = m.prefix + name
		}
		at += width
		if at == len(text) && m.suffix != "" {
			name += m.suffix
		}
		if id, ok := m.ids[name]; ok {
			if unknown {
				c.add(m.unknown)
				unknown = false
			}
			c.add(id)
			continue
		}
		if m.byteFallback {
			// An unknown token that is due stays due, and so comes after these, as in Hugging
			// Face's library.
			if all, ok := m.appendBytes(nil, name); ok {
				for _, id := range all {
					c.add(id)
				}
				continue
			}
		}
		if m.unknown >= 0 {
			if unknown && !m.fuseUnknown {
				c.add(m.unknown)
			}
			unknown = true
		}
	}
	if unknown {
		c.add(m.unknown)
	}
}

func (c *chain) add(id int64) {
	at := int32(len(c.symbols))
	if at > 0 {
		c.symbols[at-1].next = at
	}
	c.symbols = append(c.symbols, symbol{id: id, prev: at - 1, next: -1})
}

// merge merges pairs until none is left. The order is that of Hugging Face's library: the lowest
// rank first, and of equal ranks the leftmost.
func (c *chain) merge(merges *table) {
	s := c.symbols
	for i := 0; i+1 < len(s); i++ {
		c.propose(merges, int32(i))
	}
	for len(c.heap) > 0 {
		top := c.pop()
		left := &s[top.at]
		if left.gone || left.next < 0 {
			continue
		}
		right := &s[left.next]
		// The pair may be another one by now.
		if m, ok := merges.get(pairKey(left.id, right.id)); !ok || uint32(m) != top.id {
			continue
		}
		left.id, left.next, right.gone = int64(top.id), right.next, true
		if left.next >= 0 {
			s[left.next].prev = top.at
			c.propose(merges, top.at)
		}
		if left.prev >= 0 {
			c.propose(merges, left.prev)
		}
	}
}

func pairKey(left, right int64) uint64 { return uint64(left)<<32 | uint64(right) | 1<<63 }

// propose puts the pair of a symbol and its right neighbour into the heap, if it can be merged.
func (c *chain) propose(merges *table, at int32) {
	left := &c.symbols[at]
	m, ok := merges.get(pairKey(left.id, c.symbols[left.next].id))
	if !ok {
		return
	}
	c.heap = append(c.heap, merge{uint32(m >> 32), at, uint32(m)})
	for i := len(c.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !c.heap[i].before(c.heap[up]) {
			return
		}
		c.heap[i], c.heap[up] = c.heap[up], c.heap[i]
		i = up
	}
}

func (c *chain) pop() merge {
	h := c.heap
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	c.heap = h
	for i := 0; ; {
		down := 2*i + 1
		if down+1 < last && h[down+1].before(h[down]) {
			down++
		}
		if down >= last || !h[down].before(h[i]) {
			return top
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}
