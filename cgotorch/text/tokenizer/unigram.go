package tokenizer

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// unigram is a vocabulary with a log-probability for each token. A text becomes the sequence of
// tokens whose probabilities have the greatest product.
type unigram struct {
	tokens  []string
	scores  []float64
	ids     map[string]int64
	longest int // length of the longest token, in bytes
	unknown int64
	bytes   []int64 // the token of each byte, or -1 if there is none; nil without byte fallback
	penalty float64 // score of a character that is not a token by itself
}

// A character that is not a token gets the score of the least likely token minus unknownPenalty.
// The value is SentencePiece's.
const unknownPenalty = 10

func newUnigram(tokens []string, scores []float64, unknown int64, byteFallback bool) *unigram {
	m := &unigram{tokens: tokens, scores: scores, ids: make(map[string]int64, len(tokens)), unknown: unknown}
	for i, token := range tokens {
		m.ids[token] = int64(i)
		m.longest = max(m.longest, len(token))
	}
	m.penalty = slices.Min(scores) - unknownPenalty
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

func (m *unigram) token(id int64) (string, bool) {
	if id < 0 || id >= int64(len(m.tokens)) {
		return "", false
	}
	return m.tokens[id], true
}

// step is the last token on the best way from the beginning of the text to a position.
type step struct {
	score   float64
	from    int
	unknown bool
	reached bool
}

// encode appends the tokens of the string `text` to `ids`.
func (m *unigram) encode(ids []int64, text string) []int64 {
	best := make([]step, len(text)+1)
	reach := func(to int, s step) {
		if b := &best[to]; !b.reached || s.score > b.score {
			s.reached = true
			*b = s
		}
	}
	for at := 0; at < len(text); {
		_, width := utf8.DecodeRuneInString(text[at:])
		known := false
		for end := at; end < len(text) && end-at < m.longest; {
			_, n := utf8.DecodeRuneInString(text[end:])
			end += n
			if id, ok := m.ids[text[at:end]]; ok {
				reach(end, step{score: best[at].score + m.scores[id], from: at, unknown: id == m.unknown})
				known = known || end == at+width
			}
		}
		if !known {
			reach(at+width, step{score: best[at].score + m.penalty, from: at, unknown: true})
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
	return ids
}

// appendReversed appends the token whose name is `text`. If no token has this name, it appends
// the tokens of the bytes of `text`. The last byte comes first, because the method `encode`
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
	return append(ids, m.unknown)
}
