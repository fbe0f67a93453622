package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// filter returns v|name(a).
func (r *run) filter(name string, v any, a *arguments) any {
	for _, group := range []func(string, any, *arguments) (any, bool){
		r.textFilter, r.valueFilter, r.listFilter, r.orderFilter, r.chooseFilter,
	} {
		if result, ok := group(name, v, a); ok {
			return result
		}
	}
	r.fail("no filter named '%s'", name)
	return nil
}

// soft returns a value as a text. A marked text stays one.
func (r *run) soft(v any) any {
	if _, ok := v.(Markup); ok {
		return v
	}
	return r.str(v)
}

// textFilter has the filters that make a text.
func (r *run) textFilter(name string, v any, a *arguments) (any, bool) {
	switch name {
	case "trim":
		o := a.take(r, name, "chars")
		return r.method(r.soft(v), "strip", slices.DeleteFunc(o, func(v any) bool { return v == absent{} })), true
	case "upper", "lower", "capitalize":
		a.take(r, name)
		return r.method(r.soft(v), name, nil), true
	case "title":
		a.take(r, name)
		return r.words(r.str(v)), true
	case "string":
		a.take(r, name)
		return r.soft(v), true
	case "safe":
		a.take(r, name)
		return Markup(r.str(v)), true
	case "escape", "e":
		a.take(r, name)
		return r.escape(r.soft(v)), true
	case "tojson":
		return r.toJSON(v, a), true
	case "replace":
		o := a.take(r, name, "old", "new", "count")
		return r.replace(r.str(v), r.str(o[0]), r.str(o[1]), r.number(o[2], -1)), true
	case "join":
		o := a.take(r, name, "d", "attribute")
		var parts []string
		for _, item := range r.iterate(v) {
			part := r.str(r.path(item, o[1]))
			r.use(len(part))
			parts = append(parts, part)
		}
		between := ""
		if o[0] != (absent{}) {
			between = r.str(o[0])
		}
		r.useTimes(len(between), int64(len(parts)))
		return strings.Join(parts, between), true
	case "indent":
		return r.indent(v, a), true
	case "format":
		s := r.str(v)
		if a.names != nil {
			r.fail("the filter format takes no named arguments")
		}
		return r.percent(s, &list{items: a.items, kind: tuple}), true
	case "wordcount":
		a.take(r, name)
		r.useTimes(sizeValue/2, int64(r.length(r.str(v))))
		return int64(len(strings.FieldsFunc(r.str(v), func(c rune) bool {
			return c != '_' && !unicode.IsLetter(c) && !unicode.IsNumber(c)
		}))), true
	}
	return nil, false
}

// words makes the first letter of each word large, as the filter title does.
func (r *run) words(s string) string {
	var b strings.Builder
	for s != "" {
		n := strings.IndexAny(s, "- \t\n\r\v\f({[<")
		if n < 0 {
			n = len(s)
		}
		if n > 0 {
			_, first := utf8.DecodeRuneInString(s)
			b.WriteString(upper(s[:first]) + lower(s[first:n]))
		}
		if n < len(s) {
			b.WriteByte(s[n])
			n++
		}
		s = s[n:]
	}
	r.use(b.Len())
	return b.String()
}

func (r *run) replace(s, old, new string, count int) string {
	n := min(strings.Count(s, old), len(s)+1)
	if count >= 0 {
		n = min(n, count)
	}
	r.use(len(s))
	r.useTimes(len(new), int64(n))
	return strings.Replace(s, old, new, count)
}

func (r *run) indent(v any, a *arguments) any {
	o := a.take(r, "indent", "width", "first", "blank")
	s, ok := asText(v)
	if !ok {
		r.fail("'%s' object cannot be indented", typeName(v))
	}
	indent, isText := asText(o[0])
	if o[0] == nil {
		r.fail("can't multiply sequence by non-int of type 'NoneType'")
	}
	if !isText {
		n := r.number(o[0], 4)
		r.useTimes(1, int64(max(n, 0)))
		indent = strings.Repeat(" ", max(n, 0))
	}
	r.useTimes(sizeValue/2, int64(len(s)))
	lines := splitLines(s+"\n", false)
	r.useTimes(len(indent), int64(len(lines)))
	for i, line := range lines {
		if i > 0 && (line != "" || given(o[2])) || i == 0 && given(o[1]) {
			lines[i] = indent + line
		}
	}
	return same(v, strings.Join(lines, "\n"))
}

// valueFilter has the filters of numbers and of single values.
func (r *run) valueFilter(name string, v any, a *arguments) (any, bool) {
	switch name {
	case "default", "d":
		o := a.take(r, name, "default_value", "boolean")
		if _, no := v.(*undefined); !no && !(given(o[1]) && !truth(v)) {
			return v, true
		}
		if o[0] == (absent{}) {
			return "", true
		}
		return o[0], true
	case "length", "count":
		a.take(r, name)
		return int64(r.length(v)), true
	case "abs":
		a.take(r, name)
		r.defined(v)
		if n, ok := whole(v); ok {
			return max(n, -n), true
		}
		if n, ok := v.(Integer); ok {
			return Integer(strings.TrimPrefix(string(n), "-")), true
		}
		f, ok := v.(float64)
		if !ok {
			r.fail("bad operand type for abs(): '%s'", typeName(v))
		}
		return math.Abs(f), true
	case "int":
		r.defined(v)
		o := a.take(r, name, "default", "base")
		r.key(v)
		return r.integer(v, r.number(o[0], 0), r.number(o[1], 10)), true
	case "float":
		r.defined(v)
		o := a.take(r, name, "default")
		r.key(v)
		if f, ok := toFloat(v); ok {
			return f, true
		}
		if o[0] == (absent{}) {
			return 0.0, true
		}
		return o[0], true
	case "round":
		return r.round(v, a), true
	case "attr":
		o := a.take(r, name, "name")
		if found, ok := r.member(v, r.text(o[0], "")); ok {
			return found, true
		}
		return missing(v, o[0]), true
	}
	return nil, false
}

// defined fails for what does not exist.
func (r *run) defined(v any) {
	if u, ok := v.(*undefined); ok {
		u.fail(r)
	}
}

func toFloat(v any) (float64, bool) {
	if s, ok := asText(v); ok {
		f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64)
		return f, err == nil && !strings.ContainsAny(s, "xXpP")
	}
	return real(v)
}

func (r *run) integer(v any, otherwise, base int) any {
	if n, ok := v.(Integer); ok {
		return n
	}
	if s, ok := asText(v); ok {
		n, err := strconv.ParseInt(strings.TrimFunc(s, isSpace), base, 64)
		if err == nil {
			return n
		}
	}
	f, ok := toFloat(v)
	if !ok || math.IsNaN(f) || math.Abs(f) >= 1<<63 {
		return int64(otherwise)
	}
	if n, ok := whole(v); ok {
		return n
	}
	return int64(f)
}

func (r *run) round(v any, a *arguments) any {
	o := a.take(r, "round", "precision", "method")
	f, ok := real(v)
	if !ok {
		r.fail("'%s' object cannot be rounded", typeName(v))
	}
	if n, ok := v.(Integer); ok {
		return n
	}
	places := r.number(o[0], 0)
	if places < -300 || places > 300 {
		r.fail("a precision of %d is out of range", places)
	}
	scale := math.Pow10(places)
	switch method := r.text(o[1], "common"); method {
	case "common":
		if n, ok := whole(v); ok && places >= 0 {
			return n
		}
		if places < 0 {
			return math.RoundToEven(f*scale) / scale
		}
		rounded, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', places, 64), 64)
		return rounded
	case "ceil":
		return math.Ceil(f*scale) / scale
	case "floor":
		return math.Floor(f*scale) / scale
	}
	r.fail("method must be common, ceil or floor")
	return nil
}

// path returns an attribute such as "function.name" of an item. Without a path it is the item.
func (r *run) path(item, path any) any {
	if path == (absent{}) || path == nil {
		return item
	}
	text, ok := path.(string)
	if !ok {
		return r.item(item, path)
	}
	r.spend(len(text) / 16)
	for _, part := range strings.Split(text, ".") {
		if n, err := strconv.ParseUint(part, 10, 31); err == nil {
			item = r.item(item, int64(n))
		} else {
			item = r.item(item, part)
		}
	}
	return item
}
