package jinja

import (
	"slices"
	"strings"
)

// attribute returns v.name.
func (r *run) attribute(v any, name string) any {
	if found, ok := r.member(v, name); ok {
		return found
	}
	if d, ok := v.(*Dict); ok {
		if found, ok := d.get(name); ok {
			return found
		}
	}
	return missing(v, name)
}

// item returns v[index].
func (r *run) item(v, index any) any {
	name, isText := index.(string)
	switch v := v.(type) {
	case *undefined:
		v.fail(r)
	case *Dict:
		if found, ok := v.get(r.key(index)); ok {
			return found
		}
	case *list:
		if i, ok := whole(index); ok && v.kind.indexed() {
			n := int64(len(v.items))
			if i < 0 {
				i += n
			}
			if i >= 0 && i < n {
				return v.items[i]
			}
		}
	case string:
		if i, ok := whole(index); ok {
			if c, ok := r.char(v, i); ok {
				return c
			}
		}
	case Markup:
		if i, ok := whole(index); ok {
			if c, ok := r.char(string(v), i); ok {
				return Markup(c)
			}
		}
	}
	if isText {
		if found, ok := r.member(v, name); ok {
			return found
		}
	}
	return missing(v, index)
}

func (r *run) char(s string, i int64) (string, bool) {
	runes := r.runes(s)
	if i < 0 {
		i += int64(len(runes))
	}
	if i < 0 || i >= int64(len(runes)) {
		return "", false
	}
	return string(runes[i]), true
}

func missing(v, name any) *undefined {
	if v == nil {
		v = none{}
	}
	return &undefined{of: v, name: name}
}

// member returns an attribute that a value has in Python, apart from elements of a dict.
func (r *run) member(v any, name string) (any, bool) {
	if len(name) > 3 && strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") {
		r.fail("access to attribute '%s' of '%s' object is unsafe", name, typeName(v))
	}
	unsafe := false
	switch v := v.(type) {
	case *undefined:
		v.fail(r)
	case string, Markup:
		if f := textMethod(v, name); f != nil {
			return f, true
		}
		switch name {
		case "casefold", "encode", "expandtabs", "format_map", "isascii", "isdecimal", "isidentifier", "isnumeric",
			"isprintable", "istitle", "maketrans", "swapcase", "translate":
			r.fail("the method %s of a text is not supported", name)
		}
	case *Dict:
		if f := dictMethod(v, name); f != nil {
			return f, true
		}
		switch name {
		case "clear", "pop", "popitem", "setdefault", "update", "fromkeys":
			unsafe = true
		}
	case *list:
		if f := listMethod(v, name); f != nil {
			return f, true
		}
		switch name {
		case "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort":
			unsafe = v.kind == plainList
		}
	case *namespace:
		return v.attributes.get(name)
	case *loop:
		found := v.attribute(r, name)
		_, no := found.(*undefined)
		return found, !no || strings.HasSuffix(name, "item")
	}
	if unsafe {
		return &undefined{reason: "access to attribute '" + name + "' of '" + typeName(v) + "' object is unsafe."}, true
	}
	return nil, false
}

// arguments are those of a call.
type arguments struct {
	items  []any
	names  []string
	values []any // of the names
}

func (a *arguments) named(name string) (any, bool) {
	if i := slices.Index(a.names, name); i >= 0 {
		return a.values[i], true
	}
	return nil, false
}

// refuse fails for named arguments that the function does not have.
func (a *arguments) refuse(r *run, function string, known []string) {
	for _, name := range a.names {
		if !slices.Contains(known, name) {
			r.fail("%s has no argument %q", function, name)
		}
	}
}

// take returns the arguments in the order of names. An argument that is not given is absent.
func (a *arguments) take(r *run, function string, names ...string) []any {
	a.refuse(r, function, names)
	if len(a.items) > len(names) {
		r.fail("%s takes at most %d arguments, and has %d", function, len(names), len(a.items))
	}
	taken := make([]any, len(names))
	for i, name := range names {
		given, ok := a.named(name)
		switch {
		case i < len(a.items) && ok:
			r.fail("%s has the argument %q twice", function, name)
		case i < len(a.items):
			taken[i] = a.items[i]
		case ok:
			taken[i] = given
		default:
			taken[i] = absent{}
		}
	}
	return taken
}

type absent struct{}

// number returns an argument that is a whole number.
func (r *run) number(v any, otherwise int) int {
	if v == (absent{}) || v == nil {
		return otherwise
	}
	n, ok := whole(v)
	if !ok {
		r.fail("'%s' object is no whole number", typeName(v))
	}
	return int(n)
}

// text returns an argument that is a text.
func (r *run) text(v any, otherwise string) string {
	if v == (absent{}) {
		return otherwise
	}
	s, ok := asText(v)
	if !ok {
		r.fail("'%s' object is no text", typeName(v))
	}
	return s
}

func given(v any) bool { return v != (absent{}) && truth(v) }
