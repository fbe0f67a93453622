package tokenizer

import (
	"fmt"
)

// vocabulary holds the tokens of a model by id and by name.
type vocabulary struct {
	ids   map[string]int64
	names map[int64]string
	most  int64   // the highest id plus 1
	bytes []int64 // the tokens <0x00> to <0xFF>, or -1 for each that is missing
}

// maxID is the highest id of a token. It bounds the memory that a damaged file can ask for.
const maxID = 1<<31 - 1

func newVocabulary(ids map[string]int64, field string) (vocabulary, error) {
	v := vocabulary{ids: ids, names: make(map[int64]string, len(ids)), bytes: make([]int64, 256)}
	for name, id := range ids {
		if id < 0 || id > maxID {
			return v, bad(field, "%q has id %d", name, id)
		}
		if other, taken := v.names[id]; taken {
			return v, bad(field, "id %d is that of %q and of %q", id, min(name, other), max(name, other))
		}
		v.names[id], v.most = name, max(v.most, id+1)
	}
	for b := range v.bytes {
		v.bytes[b] = v.id(fmt.Sprintf("<0x%02X>", b))
	}
	return v, nil
}

// id returns the id of a token, or -1.
func (v *vocabulary) id(name string) int64 {
	if id, ok := v.ids[name]; ok {
		return id
	}
	return -1
}

func (v *vocabulary) lookup(name string) (int64, bool) {
	id, ok := v.ids[name]
	return id, ok
}

func (v *vocabulary) token(id int64) (string, bool) {
	name, ok := v.names[id]
	return name, ok
}

func (v *vocabulary) count() int { return len(v.ids) }

// top returns the highest id plus 1.
func (v *vocabulary) top() int64 { return v.most }

// appendBytes appends the tokens of the bytes of `text`. ok reports whether each byte has one.
func (v *vocabulary) appendBytes(ids []int64, text string) (all []int64, ok bool) {
	for i := range len(text) {
		if v.bytes[text[i]] < 0 {
			return ids, false
		}
	}
	for i := range len(text) {
		ids = append(ids, v.bytes[text[i]])
	}
	return ids, true
}

// unknown returns the id of the token that stands for unknown text.
func (v *vocabulary) unknown(name *string, field string) (int64, error) {
	if name == nil {
		return -1, bad(field, "it is missing, and some texts are in no vocabulary")
	}
	id := v.id(*name)
	if id < 0 {
		return -1, bad(field, "%q is not in the vocabulary", *name)
	}
	return id, nil
}

// model turns pieces of text into tokens.
type model interface {
	encode(ids []int64, text string) []int64
	lookup(name string) (int64, bool)
	token(id int64) (string, bool)
	count() int
	top() int64
}
