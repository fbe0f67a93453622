package tokenizer

import (
	"errors"
	"unicode/utf8"
)

// These errors tell why a file cannot be used. Test for them with [errors.Is].
var (
	ErrFormat      = errors.New("damaged tokenizer file")
	ErrUnsupported = errors.New("unsupported tokenizer")
	ErrNoTemplate  = errors.New("no chat template")
)

// Tokenizer holds the rules of a tokenizer.json. A Tokenizer does not change, so several
// goroutines may use it.
type Tokenizer struct {
	normalize  normalizer
	added      *added // tokens that are looked for in the original text
	normalized *added // tokens that are looked for in the normalized text
	pre        []preTokenizer
	model      model
	around     around
	truncation truncation
	padding    *padding // nil if texts are not filled up
	decoder    newDecoder
	bytes      func(name string) []byte // of a token within a text; nil if they depend on the tokens beside it

	extra   map[int64]string // the names of the added tokens, by id; the model may lack some of them
	special map[string]bool

	chat func() (*chatFiles, error) // reads the templates beside the file
}

// Encode returns the tokens of a text, as Hugging Face's library does. The result includes the
// tokens that the file puts around each text, such as </s>. Where the text contains the name of a
// special token, the result has this token. Bytes that are not UTF-8 count as U+FFFD. If the file
// has fields truncation or padding, the result is cut or filled up. A file that cuts second texts
// alone cuts nothing here.
func (t *Tokenizer) Encode(text string) []int64 {
	ids, _, _ := t.finish(t.EncodePart(text), nil, t.around.single)
	return ids
}

// EncodePart returns the tokens of a part of a text: without the tokens that the file puts around
// a text, not cut and not filled up.
func (t *Tokenizer) EncodePart(text string) (ids []int64) {
	run := t.model.encode
	emit := func(p piece) { ids = run(ids, p.text) }
	for i := len(t.pre) - 1; i >= 0; i-- {
		pre, next := t.pre[i], emit
		emit = func(p piece) {
			if p.text != "" {
				pre(p, next)
			}
		}
	}
	text = validUTF8(text)
	for _, part := range t.added.split(text) {
		if part.isToken {
			ids = append(ids, part.id)
			continue
		}
		p := piece{text: text[part.from:part.to]}
		if part.from == 0 {
			_, p.zero = utf8.DecodeRuneInString(p.text)
		}
		p = t.normalize(p)
		for _, part := range t.normalized.split(p.text) {
			if part.isToken {
				ids = append(ids, part.id)
			} else {
				emit(p.part(part.from, part.to))
			}
		}
	}
	return ids
}

// EncodePair returns the tokens of two texts in one row, such as a question and an answer, and the
// type of each token. The file tells which tokens stand around the texts, which types there are,
// and how the row is cut and filled up. It fails if the row is too long, and the file cuts only the
// text that is too short for that.
func (t *Tokenizer) EncodePair(text, second string) (ids, kinds []int64, err error) {
	pair := t.EncodePart(second)
	if pair == nil {
		pair = []int64{}
	}
	return t.finish(t.EncodePart(text), pair, t.around.pair)
}

// Count returns how many tokens a text has with those around it, before it is cut or filled up. The
// tokens of a chat are counted as len(t.EncodePart(text)), where text is the result of
// [Tokenizer.Chat].
func (t *Tokenizer) Count(text string) int {
	return len(t.EncodePart(text)) + t.around.single.added()
}

// finish cuts texts, puts them into a template and fills the row up.
func (t *Tokenizer) finish(first, second []int64, into template) (ids, kinds []int64, err error) {
	if t.truncation.Length != nil {
		if first, second, err = t.truncation.cut(first, second, *t.truncation.Length-into.added()); err != nil {
			return nil, nil, err
		}
	}
	ids, kinds = into.fill(first, second)
	if t.padding != nil {
		ids, kinds = t.padding.fill(ids, t.padding.ID), t.padding.fill(kinds, t.padding.Kind)
	}
	return ids, kinds, nil
}

// Decode returns the text of tokens. It leaves out special tokens, and ids that no token has.
func (t *Tokenizer) Decode(ids []int64) string { return t.decode(ids, false) }

// decode is Decode. With `special` the text has the names of special tokens too.
func (t *Tokenizer) decode(ids []int64, special bool) string {
	s := &Stream{Tokenizer: t, special: special}
	for _, id := range ids {
		s.add(id)
	}
	if s.decoder != nil {
		s.decoder.end(s.write)
	}
	return s.take()
}

// Token returns the name of a token, as the file writes it: ▁ or Ġ may stand for a space. ok
// reports whether the token exists.
func (t *Tokenizer) Token(id int64) (token string, ok bool) {
	if token, ok := t.extra[id]; ok {
		return token, true
	}
	return t.model.token(id)
}

// Size returns the highest id of a token plus 1.
func (t *Tokenizer) Size() int {
	size := t.model.top()
	for id := range t.extra {
		size = max(size, id+1)
	}
	return int(size)
}
