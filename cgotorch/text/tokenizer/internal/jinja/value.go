package jinja

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Value is what a variable may hold: nil (None), bool, int64, [Integer], float64, string, *[Dict],
// and lists that [FromJSON] makes. The other types of this file come up in templates alone.
type Value = any

// Integer is a whole number beyond int64, as JSON writes it. It can be printed and compared.
type Integer string

// Markup is a text that the filter safe has marked. Texts that are added to it are escaped for
// HTML.
type Markup string

type listKind int

const (
	plainList listKind = iota
	tuple
	numbers   // a range
	items     // of a dict, and so are the two below
	keys      //
	values    //
	generator // of a filter such as map; it can be read once
)

func (k listKind) indexed() bool { return k <= numbers }

func (k listKind) String() string {
	return [...]string{"list", "tuple", "range", "dict_items", "dict_keys", "dict_values", "generator"}[k]
}

type list struct {
	items []any
	kind  listKind
	text  string       // of a range
	make  func() []any // of a generator, until its elements are taken
}

// lazy returns a generator, whose elements are made when they are taken.
func (r *run) lazy(elements func() []any) *list {
	r.use(sizeNode)
	return &list{kind: generator, make: elements}
}

func (r *run) list(items []any, kind listKind) *list {
	r.use(sizeNode + sizeValue*len(items))
	return &list{items: items, kind: kind}
}

// Dict is a dict of Python: its keys keep the order in which they came.
type Dict struct {
	keys, values []any
	index        map[any]int
}

// NewDict returns an empty Dict.
func NewDict() *Dict { return &Dict{index: map[any]int{}} }

// Set stores a value under a text.
func (d *Dict) Set(key string, v Value) { d.put(key, key, v) }

// SetText stores a text. Bytes that are not UTF-8 count as U+FFFD.
func (d *Dict) SetText(key, text string) { d.Set(key, strings.ToValidUTF8(text, "\uFFFD")) }

func (d *Dict) put(hash, key, v any) {
	if i, ok := d.index[hash]; ok {
		d.values[i] = v
		return
	}
	d.index[hash] = len(d.keys)
	d.keys, d.values = append(d.keys, key), append(d.values, v)
}

func (d *Dict) set(r *run, key, v any) {
	r.key(key)
	hash, ok := hashed(key)
	if !ok {
		r.fail("unhashable type: '%s'", typeName(key))
	}
	d.put(hash, key, v)
}

// key takes the steps for a look-up of a key.
func (r *run) key(v any) any {
	if s, ok := asText(v); ok {
		r.spend(len(s) / 64)
	}
	return v
}

func (d *Dict) get(key any) (any, bool) {
	hash, ok := hashed(key)
	if !ok {
		return nil, false
	}
	i, ok := d.index[hash]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

// hashed returns a key of a map of Go that is equal for equal values of Python. ok is false for
// values that can be no key.
func hashed(v any) (hash any, ok bool) {
	switch v := v.(type) {
	case bool:
		n, _ := whole(v)
		return n, true
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<62 {
			return int64(v), true
		}
		return v, true
	case Markup:
		return string(v), true
	case *undefined:
		return none{}, true
	case nil, int64, Integer, string, *function, *namespace:
		return v, true
	}
	return nil, false
}

// undefined is a variable, an attribute or an element that does not exist.
type undefined struct {
	of     any    // the object without the attribute; nil for a variable
	name   any    // of the attribute or the variable, or the index of the element
	reason string // in place of the two
}

func (u *undefined) fail(r *run) {
	text, isText := u.name.(string)
	switch {
	case u.reason != "":
		r.fail("%s", u.reason)
	case u.of == nil:
		r.fail("'%s' is undefined", text)
	case isText:
		r.fail("'%s' has no attribute '%s'", objectName(u.of), text)
	}
	r.fail("%s has no element %s", objectName(u.of), r.repr(u.name))
}

// function is a macro, a method or a function of Jinja's.
type function struct {
	name string
	call func(*run, *arguments) any
}

// namespace is an object whose attributes a template may set.
type namespace struct{ attributes *Dict }

func (n *namespace) set(r *run, name string, v any) {
	if name != "" && name[0] == '_' {
		r.fail("a template cannot store underscore-prefixed attributes on a namespace, such as %q", name)
	}
	r.use(sizeNode)
	n.attributes.Set(name, v)
}

// none stands for None inside of undefined.of, where nil means that there is no object. As a key of
// a dict it stands for undefined.
type none struct{}

func objectName(v any) string {
	if v == (none{}) {
		return "None"
	}
	return typeName(v) + " object"
}

func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, Integer:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case Markup:
		return "Markup"
	case *list:
		return v.kind.String()
	case *Dict:
		return "dict"
	case *undefined:
		return "Undefined"
	case *function:
		return "function"
	case *namespace:
		return "Namespace"
	}
	return "LoopContext"
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, *undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case Markup:
		return v != ""
	case *list:
		return v.kind == generator || len(v.items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

// whole returns a whole number. A bool is one.
func whole(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// real returns any number.
func real(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case Integer:
		f, _ := strconv.ParseFloat(string(v), 64)
		return f, true
	}
	n, ok := whole(v)
	return float64(n), ok
}

// asText returns a text, marked or not.
func asText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case Markup:
		return string(v), true
	}
	return "", false
}

func (r *run) runes(s string) []rune {
	r.spend(len(s) / 16)
	r.use(4 * len(s))
	return []rune(s)
}

// iterate returns the elements of a value.
func (r *run) iterate(v any) []any {
	switch v := v.(type) {
	case *list:
		if v.make != nil {
			elements := v.make()
			v.make = nil
			return elements
		}
		r.spend(len(v.items) / 8)
		return v.items
	case *Dict:
		r.spend(len(v.keys) / 8)
		return v.keys
	case string, Markup:
		text, _ := asText(v)
		var chars []any
		r.use((sizeValue + sizeNode) * utf8.RuneCountInString(text))
		for _, c := range text {
			chars = append(chars, string(c))
		}
		return chars
	case *undefined:
		return nil
	}
	r.fail("'%s' object is not iterable", typeName(v))
	return nil
}

func (r *run) length(v any) int {
	switch v := v.(type) {
	case *list:
		if v.kind != generator {
			return len(v.items)
		}
	case *Dict:
		return len(v.keys)
	case string:
		r.spend(len(v) / 64)
		return utf8.RuneCountInString(v)
	case Markup:
		return utf8.RuneCountInString(string(v))
	case *undefined:
		return 0
	}
	r.fail("object of type '%s' has no len()", typeName(v))
	return 0
}

// NewList returns a list.
func NewList(items []Value) Value { return &list{items: items} }
