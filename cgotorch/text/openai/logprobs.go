package openai

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

// tokenProb is a token with its probability.
type tokenProb struct {
	Token   string  `json:"token"`
	LogProb float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"` // null for a special token
}

// logProb is a token of a chat's answer, with the most probable ones in its place.
type logProb struct {
	tokenProb
	Top []tokenProb `json:"top_logprobs"`
}

func logProbOf(t *tokenizer.Tokenizer, token text.Token) logProb {
	p := logProb{tokenProbOf(t, token), []tokenProb{}}
	for _, other := range token.Ranked {
		p.Top = append(p.Top, tokenProbOf(t, other))
	}
	return p
}

// tokenProbOf returns a token with its probability. Bytes that are not UTF-8 alone are U+FFFD in
// its text.
func tokenProbOf(t *tokenizer.Tokenizer, token text.Token) (p tokenProb) {
	p.LogProb = max(token.LogProb, -9999) // JSON has no infinity; OpenAI writes this in its place
	if raw, ok := t.Bytes(token.ID); ok {
		p.Token, p.Bytes = string([]rune(string(raw))), make([]int, len(raw))
		for i, b := range raw {
			p.Bytes[i] = int(b)
		}
	} else {
		p.Token, _ = t.Token(token.ID)
	}
	return p
}

// listedLogProbs are those of a completion.
type listedLogProbs struct {
	Tokens  []string             `json:"tokens"`
	Own     []float64            `json:"token_logprobs"`
	Top     []map[string]float64 `json:"top_logprobs"`
	Offsets []int                `json:"text_offset"` // in the answer, in bytes

	at int
}

// name returns the text of a token. Where that is no whole character, it tells the bytes as OpenAI
// does, so that two tokens have two names.
func (p *tokenProb) name() string {
	if !strings.ContainsRune(p.Token, utf8.RuneError) {
		return p.Token
	}
	name := "bytes:"
	for _, b := range p.Bytes {
		name += fmt.Sprintf(`\x%02x`, b)
	}
	return name
}

func (l *listedLogProbs) add(t *tokenizer.Tokenizer, token text.Token, grown string) {
	p := logProbOf(t, token)
	top := map[string]float64{}
	for _, other := range p.Top {
		top[other.name()] = other.LogProb
	}
	l.Tokens, l.Own, l.Top, l.Offsets = append(l.Tokens, p.name()), append(l.Own, p.LogProb), append(l.Top, top), append(l.Offsets, l.at)
	l.at += len(grown)
}

// drain returns what was added, and forgets it.
func (l *listedLogProbs) drain() *listedLogProbs {
	if l == nil || len(l.Tokens) == 0 {
		return nil
	}
	out := *l
	*l = listedLogProbs{at: l.at}
	return &out
}
