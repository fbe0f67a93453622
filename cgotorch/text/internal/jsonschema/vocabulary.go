package jsonschema

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// Vocabulary has the bytes of a model's tokens, as a trie. Any number of automata and goroutines
// may use it.
type Vocabulary struct {
	bytes   [][]byte
	longest int32 // characters of the longest token, at most

	// The children of node n are the nodes first[n] to first[n+1]-1. label is the byte that leads to
	// a node. The tokens that end at node n are tokens[ends[n]:ends[n+1]].
	first  []int32
	label  []byte
	ends   []int32
	tokens []int32

	quoted [4][]int32 // by n, the tokens with n quotes or more

	used  atomic.Int64 // bytes of the caches of all automata
	mu    sync.Mutex
	known map[frame]*partial // of frames in nodes that all grammars have
}

// needed are the bytes without which a value might not be completed: all others have escapes.
const needed = `{}[]:,"\-.0123456789abcdeflnrstu`

// NewVocabulary makes a vocabulary of the bytes of tokens, by their ids. A token without bytes is
// never allowed. It fails unless each byte that JSON needs is a token by itself: an answer might
// have no end without it.
func NewVocabulary(tokens [][]byte) (*Vocabulary, error) {
	v := &Vocabulary{bytes: slices.Clone(tokens), known: map[frame]*partial{}}
	var single [256]bool
	for _, b := range tokens {
		if len(b) == 1 {
			single[b[0]] = true
		}
	}
	for _, b := range []byte(needed) {
		if !single[b] {
			return nil, fmt.Errorf("no token is %q alone, so an answer might not be completed", b)
		}
	}
	pieces := true // a token may end within a character
	for b := 0x80; b < 0xF5; b++ {
		pieces = pieces && (single[b] || b == 0xC0 || b == 0xC1)
	}
	var order []int32
	for id, b := range v.bytes {
		if !pieces && !utf8.Valid(b) { // the rest of the character may be no token
			v.bytes[id] = nil
			continue
		}
		if len(b) > 0 {
			order = append(order, int32(id))
		}
		v.longest = max(v.longest, int32(utf8.RuneCount(b)))
		for n := 1; n <= min(3, bytes.Count(b, []byte{'"'})); n++ {
			v.quoted[n] = append(v.quoted[n], int32(id))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return bytes.Compare(v.bytes[a], v.bytes[b]) })
	v.build(order)
	return v, nil
}

// build makes the trie of tokens in the order of their bytes, level by level.
func (v *Vocabulary) build(order []int32) {
	type span struct{ from, to, depth int }
	v.label = []byte{0}
	queue := []span{{0, len(order), 0}}
	for n := 0; n < len(queue); n++ {
		s := queue[n]
		v.first, v.ends = append(v.first, int32(len(queue))), append(v.ends, int32(len(v.tokens)))
		at := s.from
		for ; at < s.to && len(v.bytes[order[at]]) == s.depth; at++ {
			v.tokens = append(v.tokens, order[at])
		}
		for at < s.to {
			b, from := v.bytes[order[at]][s.depth], at
			for at < s.to && v.bytes[order[at]][s.depth] == b {
				at++
			}
			v.label = append(v.label, b)
			queue = append(queue, span{from, at, s.depth + 1})
		}
	}
	v.first, v.ends = append(v.first, int32(len(queue))), append(v.ends, int32(len(v.tokens)))
}

func (v *Vocabulary) newBits() bits { return make(bits, (len(v.bytes)+63)/64) }

// mostCommon bounds the partial masks that grammars share.
const mostCommon = 512

// common returns what another automaton has found of a frame, or nil.
func (v *Vocabulary) common(f frame) *partial {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.known[f]
}

func (v *Vocabulary) setCommon(f frame, p *partial) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.known) < mostCommon {
		v.known[f] = p
	}
}
