package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// around tells which tokens stand around a text, and around a pair of texts.
type around struct{ single, pair template }

// template is a row of tokens and texts.
type template []templatePart

type templatePart struct {
	text int     // 0 for the first text, 1 for the second, and -1 for tokens
	ids  []int64 // the tokens
	kind int64   // the type of the text's tokens, or of these
}

// bare is what a file without post_processor means.
var bare = around{single: template{{}}, pair: template{{}, {text: 1, kind: 1}}}

// added returns how many tokens stand around texts.
func (t template) added() int {
	count := 0
	for _, p := range t {
		count += len(p.ids)
	}
	return count
}

// fill puts texts into a template. It returns the tokens and their types.
func (t template) fill(texts ...[]int64) (ids, kinds []int64) {
	for _, p := range t {
		these := p.ids
		if p.text >= 0 {
			these = texts[p.text]
		}
		ids = append(ids, these...)
		kinds = append(kinds, slices.Repeat([]int64{p.kind}, len(these))...)
	}
	return ids, kinds
}

// tokenField is a token with its id, as ["[SEP]", 102].
type tokenField struct {
	name string
	id   int64
}

func (f *tokenField) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&f.name, &f.id})
}

// pieceField is a part of a template in a file.
type pieceField struct {
	Sequence, SpecialToken *struct {
		ID   string `json:"id"`
		Kind int64  `json:"type_id"`
	}
}

// processor is the field post_processor.
type processor struct {
	Type       string            `json:"type"`
	Processors []json.RawMessage `json:"processors"`

	Single        []pieceField `json:"single"`
	Pair          []pieceField `json:"pair"`
	SpecialTokens map[string]struct {
		IDs []int64 `json:"ids"`
	} `json:"special_tokens"`

	Sep *tokenField `json:"sep"`
	Cls *tokenField `json:"cls"`
}

// readAround reads the tokens that are put around a text. ok is false if `data` has none.
func (t *Tokenizer) readAround(data json.RawMessage, field string) (a around, ok bool, err error) {
	var p processor
	if len(data) == 0 || string(data) == "null" {
		return bare, false, nil
	}
	if err := unmarshal(data, field, &p); err != nil {
		return a, false, err
	}
	switch p.Type {
	case "ByteLevel": // it changes offsets alone
		return bare, false, nil
	case "Sequence":
		return t.readAll(p.Processors, field)
	case "TemplateProcessing":
		if a.single, err = t.template(&p, p.Single, 1, field, ".single"); err != nil {
			return a, false, err
		}
		if p.Pair != nil {
			a.pair, err = t.template(&p, p.Pair, 2, field, ".pair")
		}
		return a, true, err
	case "BertProcessing", "RobertaProcessing":
		if p.Sep == nil || p.Cls == nil {
			return a, false, bad(field, "sep or cls is missing")
		}
		for _, token := range []*tokenField{p.Sep, p.Cls} {
			if name, ok := t.Token(token.id); !ok {
				return a, false, bad(field, "%q is %d, which is no token (%q)", token.name, token.id, name)
			}
		}
		cls, sep := templatePart{text: -1, ids: []int64{p.Cls.id}}, templatePart{text: -1, ids: []int64{p.Sep.id}}
		a.single = template{cls, {}, sep}
		if p.Type == "RobertaProcessing" {
			a.pair = template{cls, {}, sep, sep, {text: 1}, sep}
		} else {
			a.pair = template{cls, {}, sep, {text: 1, kind: 1}, {text: -1, ids: sep.ids, kind: 1}}
		}
		return a, true, nil
	}
	return a, false, unsupported(field+".type", p.Type,
		"TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel or Sequence")
}

func (t *Tokenizer) readAll(all []json.RawMessage, field string) (a around, found bool, err error) {
	a = bare
	for i, data := range all {
		here := fmt.Sprintf("%s.processors[%d]", field, i)
		one, ok, err := t.readAround(data, here)
		switch {
		case err != nil:
			return a, false, err
		case ok && found:
			return a, false, fmt.Errorf("%s: it puts tokens around those of another one: %w", here, ErrUnsupported)
		case ok:
			a, found = one, true
		}
	}
	return a, found, nil
}

// template reads the template for a number of texts.
func (t *Tokenizer) template(p *processor, parts []pieceField, texts int, field, name string) (template, error) {
	var all template
	var seen [2]int
	for i, part := range parts {
		switch {
		case part.Sequence != nil:
			text := strings.Index("AB"[:texts], part.Sequence.ID)
			if len(part.Sequence.ID) != 1 || text < 0 {
				return nil, bad(fmt.Sprintf("%s%s[%d]", field, name, i), "the text is %q", part.Sequence.ID)
			}
			seen[text]++
			all = append(all, templatePart{text: text, kind: part.Sequence.Kind})
		case part.SpecialToken == nil:
			return nil, bad(fmt.Sprintf("%s%s[%d]", field, name, i), "it is neither Sequence nor SpecialToken")
		default:
			token, ok := p.SpecialTokens[part.SpecialToken.ID]
			if !ok {
				return nil, bad(field+".special_tokens", "%q is missing", part.SpecialToken.ID)
			}
			for _, id := range token.IDs {
				if _, ok := t.Token(id); !ok {
					return nil, bad(field+".special_tokens", "%q is %d, which is no token", part.SpecialToken.ID, id)
				}
			}
			all = append(all, templatePart{text: -1, ids: token.IDs, kind: part.SpecialToken.Kind})
		}
	}
	for text, times := range seen[:texts] {
		if times != 1 {
			return nil, bad(field+name, "it has the text %c %d times, want once", 'A'+text, times)
		}
	}
	return all, nil
}
