package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// unigram is a vocabulary with a log-probability for each token. A text becomes the sequence of
// tokens whose probabilities have the greatest product.
type unigram struct {
	tokens    []string
	scores    []float64
	ids       map[string]int64
	words     *trie
	unknownID int64
	bytes     []int64 // the token of each byte, or -1 if there is none; nil without byte fallback
	penalty   float64 // score of a character that is not a token by itself
	cache     *cache
	scratch   sync.Pool // of *[]step
}

// A character that is not a token gets the score of the least likely token minus unknownPenalty.
// The value is SentencePiece's.
const unknownPenalty = 10

func newUnigram(tokens []string, scores []float64, unknown int64, byteFallback bool) *unigram {
	m := &unigram{tokens: tokens, scores: scores, ids: make(map[string]int64, len(tokens)), words: newTrie(), unknownID: unknown,
		penalty: slices.Min(scores) - unknownPenalty, cache: newCache()}
	for i, token := range tokens {
		m.ids[token] = int64(i)
		if token != "" {
			m.words.add(token, int64(i))
		}
	}
	if byteFallback {
		m.bytes = make([]int64, 256)
		for b := range m.bytes {
			id, ok := m.ids[fmt.Sprintf("<0x%02X>", b)]
			if !ok {
				id = -1
			}
			m.bytes[b] = id
		}
	}
	return m
}

func (m *unigram) lookup(name string) (int64, bool) {
	id, ok := m.ids[name]
	return id, ok
}

func (m *unigram) token(id int64) (string, bool) {
	if id < 0 || id >= int64(len(m.tokens)) {
		return "", false
	}
	return m.tokens[id], true
}

func (m *unigram) count() int { return len(m.tokens) }

func (m *unigram) top() int64 { return int64(len(m.tokens)) }

// step is the last token on the best way from the beginning of the text to a position.
type step struct {
	score   float64
	from    int
	unknown bool
	reached bool
}

func (s *step) reach(score float64, from int, unknown bool) {
	if !s.reached || score > s.score {
		*s = step{score, from, unknown, true}
	}
}

func (m *unigram) encode(ids []int64, text string) []int64 {
	return m.cache.encode(ids, text, m.search)
}

// search appends the best tokens of a text.
func (m *unigram) search(ids []int64, text string) []int64 {
	memory, _ := m.scratch.Get().(*[]step)
	if memory == nil {
		memory = &[]step{}
	}
	best := slices.Grow((*memory)[:0], len(text)+1)[:len(text)+1]
	clear(best)
	for at := 0; at < len(text); {
		_, width := utf8.DecodeRuneInString(text[at:])
		known, node := false, uint64(0)
		for end := at; end < len(text); {
			next, ok := m.words.step(node, text[end])
			if !ok {
				break
			}
			node, end = next, end+1
			if id := m.words.words[node]; id >= 0 {
				best[end].reach(best[at].score+m.scores[id], at, id == m.unknownID)
				known = known || end == at+width
			}
		}
		if !known {
			best[at+width].reach(best[at].score+m.penalty, at, true)
		}
		at += width
	}
	first := len(ids)
	for end := len(text); end > 0; {
		from := best[end].from
		if best[end].unknown { // several unknown tokens in a row become one token
			for from > 0 && best[from].unknown {
				from = best[from].from
			}
		}
		ids = m.appendReversed(ids, text[from:end])
		end = from
	}
	slices.Reverse(ids[first:])
	if len(text) <= 1<<16 {
		*memory = best
		m.scratch.Put(memory)
	}
	return ids
}

// appendReversed appends the token whose name is `text`. If no token has this name, it appends
// the tokens of the bytes of `text`. The last byte comes first, because the method `search`
// reverses all tokens at its end. If a byte has no token, appendReversed appends only the unknown
// token.
func (m *unigram) appendReversed(ids []int64, text string) []int64 {
	if id, ok := m.ids[text]; ok {
		return append(ids, id)
	}
	if m.bytes != nil {
		all := make([]int64, 0, len(text))
		for i := len(text) - 1; i >= 0; i-- {
			all = append(all, m.bytes[text[i]])
		}
		if !slices.Contains(all, -1) {
			return append(ids, all...)
		}
	}
	return append(ids, m.unknownID)
}

// readScore reads a number of JSON as Hugging Face's library does. The result can differ from the
// nearest float64 in the last bit, and that bit decides between ways of equal score.
func readScore(text string) float64 {
	mantissa, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		mantissa = text[:i]
		exponent, _ = strconv.Atoi(text[i+1:])
	}
	digits, negative := strings.CutPrefix(mantissa, "-")
	var sum uint64
	full, behind := false, false // whether no more digits fit; whether the point is passed
	for _, c := range digits {
		if c == '.' {
			behind = true
			continue
		}
		digit := uint64(c - '0')
		full = full || sum > math.MaxUint64/10 || sum == math.MaxUint64/10 && digit > math.MaxUint64%10
		if !full {
			sum = sum*10 + digit
		}
		switch {
		case !full && behind:
			exponent--
		case full && !behind:
			exponent++
		}
	}
	f := float64(sum)
	for ; exponent < -308 && f != 0; exponent += 308 {
		f /= 1e308
	}
	if exponent < 0 {
		f /= math.Pow10(-exponent)
	} else {
		f *= math.Pow10(min(exponent, 308))
	}
	if negative {
		f = -f
	}
	return f
}
