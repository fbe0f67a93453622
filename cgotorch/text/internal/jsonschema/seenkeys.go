package jsonschema

import (
	"bytes"
	"encoding/json"
	"slices"
)

// seenKeys follows a text and knows the keys of the objects that are open. The automaton does not
// know keys that the schema does not declare, and such a key must not come twice.
//
// A key that has come can always become another one by one more character. So a text that may not
// end a key here can still be completed.
type seenKeys struct {
	open   [][]string // by depth, the keys of an object; those of an array are none
	lists  []bool     // by depth, whether it is an array
	shared bool       // open and lists belong to another one, too
	want   bool       // the next string is a key
	inside bool       // a string
	key    bool       // the string is a key
	escape bool       // behind a backslash
	raw    []byte     // the key, as it is written
}

// read reads bytes. It reports false if a key comes twice.
func (k *seenKeys) read(text []byte) bool {
	for _, b := range text {
		switch {
		case k.inside && (k.escape || b != '"'):
			k.escape = !k.escape && b == '\\'
			if k.key {
				k.raw = append(k.raw, b)
			}
		case k.inside:
			if k.inside = false; k.key && !k.end() {
				return false
			}
		case b == '"':
			k.inside, k.key, k.want = true, k.want, false
			k.raw = k.raw[:0]
		case b == '{' || b == '[':
			k.own()
			k.open, k.lists, k.want = append(k.open, nil), append(k.lists, b == '['), b == '{'
		case b == '}' || b == ']':
			k.own()
			if top := len(k.open) - 1; top >= 0 {
				k.open, k.lists = k.open[:top], k.lists[:top]
			}
			k.want = false
		case b == ',':
			k.want = len(k.lists) > 0 && !k.lists[len(k.lists)-1]
		}
	}
	return true
}

// own makes open and lists the value's own.
func (k *seenKeys) own() {
	if k.shared {
		k.open, k.lists, k.shared = slices.Clone(k.open), slices.Clone(k.lists), false
	}
}

// end ends a key. It reports false if the key has come before, or is no JSON.
func (k *seenKeys) end() bool {
	name, top := string(k.raw), len(k.open)-1
	if bytes.IndexByte(k.raw, '\\') >= 0 {
		if json.Unmarshal([]byte(`"`+name+`"`), &name) != nil {
			return false
		}
	}
	if top < 0 {
		return true
	}
	if slices.Contains(k.open[top], name) {
		return false
	}
	k.own()
	k.open[top] = append(slices.Clip(k.open[top]), name)
	return true
}

// quotes returns how many quotes a token has at least that can end a key that has come.
func (k *seenKeys) quotes() int {
	switch {
	case k.inside && !k.key:
		return 3
	case !k.inside:
		return 2
	}
	if top := len(k.open) - 1; bytes.IndexByte(k.raw, '\\') < 0 && top >= 0 {
		for _, key := range k.open[top] {
			if len(key) >= len(k.raw) && key[:len(k.raw)] == string(k.raw) {
				return 1
			}
		}
		return 3
	}
	return 1
}

// forbid takes the tokens out of allowed that would end a key that has come. It looks only at those
// of a mask.
func (k *seenKeys) forbid(v *Vocabulary, mask bits, allowed []bool) {
	var raw [64]byte
	for _, id := range v.quoted[k.quotes()] {
		if int(id) >= len(allowed) || mask[id>>6]>>(id&63)&1 == 0 {
			continue
		}
		trial := *k
		trial.shared, trial.raw = true, append(raw[:0], k.raw...)
		if !trial.read(v.bytes[id]) {
			allowed[id] = false
		}
	}
}
