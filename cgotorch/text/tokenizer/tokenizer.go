package tokenizer

import (
	"errors"
	"slices"
	"strings"
)

// These errors tell why a file cannot be used. Test for them with [errors.Is].
var (
	ErrFormat      = errors.New("damaged tokenizer file")
	ErrUnsupported = errors.New("unsupported tokenizer")
)

// Tokenizer holds the rules of a tokenizer.json. A Tokenizer does not change, so several
// goroutines may use it.
type Tokenizer struct {
	normalize  normalizer
	added      *added // tokens that are looked for in the original text
	normalized *added // tokens that are looked for in the normalized text
	pre        []preTokenizer
	model      *unigram
	prefix     []int64 // put before the tokens of a text
	suffix     []int64 // put after the tokens of a text
	decoder    decoder

	extra   map[int64]string // the names of the added tokens, by id; the model may lack some of them
	special map[string]bool

	chat func() (*chatFiles, error) // reads the templates beside the file
}

// Encode returns the tokens of a text. The result includes the tokens that the file puts around
// each text, such as </s>. Where the text contains the name of a special token, the result has
// this token. Bytes that are not UTF-8 count as U+FFFD.
func (t *Tokenizer) Encode(text string) []int64 {
	return slices.Concat(t.prefix, t.encode(text), t.suffix)
}

// encode returns the tokens of a text without the tokens that the file puts around each text.
func (t *Tokenizer) encode(text string) []int64 {
	var ids []int64
	text = strings.ToValidUTF8(text, "\uFFFD")
	for _, part := range t.added.split(text) {
		if part.isToken {
			ids = append(ids, part.id)
			continue
		}
		normal := t.normalize(text[part.from:part.to])
		for _, part := range t.normalized.split(normal) {
			if part.isToken {
				ids = append(ids, part.id)
				continue
			}
			ids = t.encodePart(ids, piece{normal[part.from:part.to], len(ids) == 0})
		}
	}
	return ids
}

func (t *Tokenizer) encodePart(ids []int64, whole piece) []int64 {
	pieces := []piece{whole}
	for _, pre := range t.pre {
		var next []piece
		for _, p := range pieces {
			if p.text != "" {
				next = append(next, pre(p)...)
			}
		}
		pieces = next
	}
	for _, p := range pieces {
		ids = t.model.encode(ids, p.text)
	}
	return ids
}

// Decode returns the text of tokens. It leaves out special tokens, and ids that no token has.
func (t *Tokenizer) Decode(ids []int64) string { return t.decode(ids, false) }

// decode is Decode. With `special` the text has the names of special tokens too.
func (t *Tokenizer) decode(ids []int64, special bool) string {
	var tokens []string
	for _, id := range ids {
		if token, ok := t.Token(id); ok && (special || !t.special[token]) {
			tokens = append(tokens, token)
		}
	}
	return strings.Join(t.decoder(tokens), "")
}

// Token returns the name of a token. In a name ▁ stands for a space. ok reports whether the token
// exists.
func (t *Tokenizer) Token(id int64) (token string, ok bool) {
	if token, ok := t.extra[id]; ok {
		return token, true
	}
	return t.model.token(id)
}

// Size returns the highest id of a token plus 1.
func (t *Tokenizer) Size() int {
	size := int64(len(t.model.tokens))
	for id := range t.extra {
		size = max(size, id+1)
	}
	return int(size)
}
