package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/streamtorch/streamtorch/cgotorch/internal/bodies"
)

// fields are those of a JSON object. Each is taken once. A null counts as a field that is not
// there. [fields.done] refuses the fields that nobody has taken.
type fields struct {
	at  string // the place of the object in the request, or ""
	all map[string]json.RawMessage
	err error // the first one; the methods that take a field add theirs
}

// newFields reads an object, which stands at a place of the request. It fails with a [refusal].
func newFields(at string, text []byte) (*fields, error) {
	f := &fields{at: at}
	commas := bodies.Commas(text)
	if commas >= mostFields {
		return nil, refuse(at, "it has more than %d fields", mostFields)
	}
	if err := json.Unmarshal(text, &f.all); err != nil || f.all == nil {
		if !json.Valid(text) {
			return nil, refuse(at, "the request is no JSON: %v", json.Unmarshal(text, new(any)))
		}
		return nil, refuse(at, "want an object, got %s", short(text))
	}
	if len(f.all) <= commas && commas > 0 {
		return nil, refuse(f.path(twice(text)), "it is there twice: send it once")
	}
	maps.DeleteFunc(f.all, func(_ string, raw json.RawMessage) bool { return string(raw) == "null" })
	return f, nil
}

// twice returns the first name that an object has twice.
func twice(object []byte) string {
	seen, in, value := map[string]bool{}, json.NewDecoder(bytes.NewReader(object)), json.RawMessage(nil)
	for _, _ = in.Token(); in.More(); { // behind the brace
		token, _ := in.Token()
		name, _ := token.(string)
		if seen[name] || in.Decode(&value) != nil {
			return name
		}
		seen[name] = true
	}
	return ""
}

// wellFormed refuses text that JSON cannot tell, and that a decoder would change in silence: bytes
// that are not UTF-8, and halves of characters of two \u each.
func wellFormed(text []byte) error {
	if !utf8.Valid(text) {
		return refuse("", "the request is not UTF-8: send its text in UTF-8")
	}
	half := func(i int) rune { // the unit at i, or 0
		if i+6 > len(text) || text[i] != '\\' || text[i+1] != 'u' {
			return 0
		}
		unit, _ := strconv.ParseUint(string(text[i+2:i+6]), 16, 16) // what is wrong is no JSON
		return rune(unit)
	}
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if unit := half(i); !utf16.IsSurrogate(unit) {
			i++ // the next character is quoted
		} else if utf16.DecodeRune(unit, half(i+6)) == utf8.RuneError {
			return refuse("", `the request has half of a character, %s: send both halves, or none`, text[i:i+6])
		} else {
			i += 11
		}
	}
	return nil
}

// clipped returns the beginning of a text that a client has sent.
func clipped(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// short returns the beginning of a JSON value.
func short(text []byte) string {
	text = bytes.TrimSpace(text)
	if len(text) > 40 {
		return string(bytes.ToValidUTF8(text[:40], nil)) + "…"
	}
	return string(text)
}

func (f *fields) path(name string) string {
	if f.at == "" {
		return name
	}
	return f.at + "." + name
}

// keep keeps an error, unless there is one already. nil is none.
func (f *fields) keep(err error) {
	if f.err == nil {
		f.err = err
	}
}

func (f *fields) refuse(name, format string, args ...any) {
	f.keep(refuse(f.path(name), format, args...))
}

// take removes a field from those that are left, and returns it. It returns nil for an absent one.
func (f *fields) take(name string) json.RawMessage {
	raw := f.all[name]
	delete(f.all, name)
	return raw
}

// into takes a field, and reports whether it is there and right. `want` says in the error what it
// has to be.
func (f *fields) into(name, want string, to any) bool {
	raw := f.take(name)
	if raw == nil {
		return false
	}
	if err := json.Unmarshal(raw, to); err != nil {
		f.refuse(name, "want %s, got %s", want, short(raw))
		return false
	}
	return true
}

func (f *fields) text(name string, to *string) bool { return f.into(name, "a text", to) }

func (f *fields) truth(name string, to *bool) { f.into(name, "true or false", to) }

// number takes a number in a range.
func (f *fields) number(name string, to *float64, from, upTo float64) bool {
	var v float64
	if !f.into(name, "a number", &v) {
		return false
	}
	if !(v >= from && v <= upTo) {
		f.refuse(name, "is %v, want %v to %v", v, from, upTo)
		return false
	}
	*to = v
	return true
}

// integer takes an integer in a range, also one that is written as 1.0 or 1e3.
func (f *fields) integer(name string, to *int64, from, upTo int64) bool {
	raw := f.take(name)
	if raw == nil {
		return false
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		wide, failed := strconv.ParseFloat(string(raw), 64)
		if failed != nil || wide != math.Trunc(wide) || math.Abs(wide) > 1<<53 {
			f.refuse(name, "want an integer, %d to %d, got %s", from, upTo, short(raw))
			return false
		}
		v = int64(wide)
	}
	if v < from || v > upTo {
		f.refuse(name, "is %d, want %d to %d", v, from, upTo)
		return false
	}
	*to = v
	return true
}

func (f *fields) count(name string, to *int, from, upTo int) bool {
	v := int64(*to)
	ok := f.integer(name, &v, int64(from), int64(upTo))
	*to = int(v)
	return ok
}

// choice takes one of some texts.
func (f *fields) choice(name string, to *string, of ...string) bool {
	if !f.text(name, to) {
		return false
	}
	if !slices.Contains(of, *to) {
		f.refuse(name, "is %q, want one of %q", *to, of)
		return false
	}
	return true
}

// list takes a list of at most so many elements: each takes more memory than in the body.
func (f *fields) list(name string, most int) (list []json.RawMessage) {
	raw := f.take(name)
	if raw == nil {
		return nil
	}
	list, err := listOf(f.path(name), raw, most)
	f.keep(err)
	return list
}

func listOf(at string, raw json.RawMessage, most int) (list []json.RawMessage, err error) {
	switch {
	case raw[0] != '[':
		return nil, refuse(at, "want a list, got %s", short(raw))
	case bodies.Commas(raw) >= most:
		return nil, refuse(at, "it has more than %d elements", most)
	}
	return list, json.Unmarshal(raw, &list)
}

// texts takes a text, or a list of at most so many texts.
func (f *fields) texts(name string, most int) (texts []string) {
	if raw := f.all[name]; raw != nil && raw[0] == '"' {
		var one string
		f.text(name, &one)
		return []string{one}
	}
	for i, raw := range f.list(name, most) {
		var one string
		if raw[0] != '"' || json.Unmarshal(raw, &one) != nil {
			f.refuse(fmt.Sprintf("%s[%d]", name, i), "want a text, got %s", short(raw))
			return nil
		}
		texts = append(texts, one)
	}
	return texts
}

// object takes an object. It returns nil if the field is not there, and for another value.
func (f *fields) object(name string) *fields {
	raw := f.take(name)
	if raw == nil {
		return nil
	}
	inner, err := newFields(f.path(name), raw)
	f.keep(err)
	return inner
}

// within refuses what is wrong in an object of a field.
func (f *fields) within(inner *fields) { f.keep(inner.done()) }

// ignore takes fields that do not change an answer.
func (f *fields) ignore(names ...string) {
	for _, name := range names {
		f.take(name)
	}
}

// neutral takes a field, and refuses all but some values: those with which it changes nothing.
func (f *fields) neutral(name string, values ...string) {
	if raw := f.take(name); raw != nil && !slices.Contains(values, string(raw)) {
		f.refuse(name, "is %s, which is not done here: want %s, or leave it out", short(raw), append(values, "null")[0])
	}
}

// done returns the first error, and refuses what is left.
func (f *fields) done() error {
	if f.err != nil {
		return f.err
	}
	for _, name := range slices.Sorted(maps.Keys(f.all)) {
		return refuse(f.path(name), "there is no such field here: leave it out")
	}
	return nil
}
