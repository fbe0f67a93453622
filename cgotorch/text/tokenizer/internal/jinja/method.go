package jinja

import (
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// The cases of Python change a text's length where Unicode says so: ß becomes SS.
func upper(s string) string { return cases.Upper(language.Und).String(s) }
func lower(s string) string { return cases.Lower(language.Und).String(s) }

// cased reports whether a text has letters with a case.
func cased(s string) bool {
	return strings.ContainsFunc(s, func(c rune) bool { return unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c) })
}

// textArguments returns the names of the arguments of a text's method. ok is false for what is no
// method.
func textArguments(method string) (names []string, ok bool) {
	switch method {
	case "upper", "lower", "title", "capitalize", "isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower":
	case "strip", "lstrip", "rstrip":
		names = []string{"chars"}
	case "split", "rsplit":
		names = []string{"sep", "maxsplit"}
	case "splitlines":
		names = []string{"keepends"}
	case "startswith", "removeprefix":
		names = []string{"prefix"}
	case "endswith", "removesuffix":
		names = []string{"suffix"}
	case "replace":
		names = []string{"old", "new", "count"}
	case "find", "rfind", "index", "count":
		names = []string{"sub"}
	case "join":
		names = []string{"iterable"}
	case "zfill":
		names = []string{"width"}
	case "ljust", "rjust", "center":
		names = []string{"width", "fillchar"}
	case "partition", "rpartition":
		names = []string{"sep"}
	default:
		return nil, false
	}
	return names, true
}

// textMethod returns a method of a text, or nil.
func textMethod(v any, name string) any {
	if name == "format" {
		return &function{name, func(r *run, a *arguments) any { return r.formatted(r.str(v), a) }}
	}
	names, ok := textArguments(name)
	if !ok {
		return nil
	}
	return &function{name, func(r *run, a *arguments) any {
		o := a.take(r, name, names...)
		for len(o) > 0 && o[len(o)-1] == (absent{}) {
			o = o[:len(o)-1]
		}
		return r.method(v, name, o)
	}}
}

// method calls a method of a text.
func (r *run) method(v any, name string, o []any) any {
	s := r.str(v)
	r.use(len(s))
	for _, group := range []func(string, string, []any) (any, bool){r.stripMethod, r.caseMethod, r.findMethod, r.cutMethod} {
		if result, ok := group(s, name, o); ok {
			switch part := result.(type) {
			case string:
				return same(v, part)
			case *list:
				for i, t := range part.items {
					part.items[i] = same(v, t.(string))
				}
			}
			return result
		}
	}
	r.fail("the method %s of a text is not supported", name)
	return nil
}

func (r *run) stripMethod(s, name string, o []any) (any, bool) {
	cut := func(i int, what string) string {
		if i >= len(o) {
			r.fail("the method %s wants an argument", name)
		}
		return r.text(o[i], "")
	}
	switch name {
	case "strip", "lstrip", "rstrip":
		in := isSpace
		if len(o) > 0 && o[0] != nil {
			chars := cut(0, "chars")
			r.useTimes(len(chars)/64, int64(len(s)))
			in = func(c rune) bool { return strings.ContainsRune(chars, c) }
		}
		if name != "rstrip" {
			s = strings.TrimLeftFunc(s, in)
		}
		if name != "lstrip" {
			s = strings.TrimRightFunc(s, in)
		}
		return s, true
	case "removeprefix":
		return strings.TrimPrefix(s, cut(0, "prefix")), true
	case "removesuffix":
		return strings.TrimSuffix(s, cut(0, "suffix")), true
	case "ljust", "rjust", "center", "zfill":
		fill := " "
		if len(o) > 1 {
			fill = cut(1, "fillchar")
		}
		if len(o) == 0 {
			cut(0, "width")
		}
		return r.justify(s, name, fill, r.number(o[0], 0)), true
	}
	return nil, false
}

func (r *run) justify(s, name, fill string, width int) string {
	n := width - r.length(s)
	if n <= 0 {
		return s
	}
	r.useTimes(max(len(fill), 1), int64(n))
	switch name {
	case "ljust":
		return s + strings.Repeat(fill, n)
	case "rjust":
		return strings.Repeat(fill, n) + s
	case "center":
		left := n/2 + n&width&1
		return strings.Repeat(fill, left) + s + strings.Repeat(fill, n-left)
	}
	sign := ""
	if s != "" && strings.Contains("+-", s[:1]) {
		sign = s[:1]
	}
	return sign + strings.Repeat("0", n) + s[len(sign):]
}

func (r *run) caseMethod(s, name string, o []any) (any, bool) {
	every := func(in func(rune) bool) bool {
		return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !in(c) })
	}
	switch name {
	case "upper":
		return upper(s), true
	case "lower":
		return lower(s), true
	case "capitalize":
		if s == "" {
			return s, true
		}
		first := string([]rune(s[:min(len(s), 8)])[0])
		return upper(first) + lower(s[min(len(first), len(s)):]), true
	case "title":
		var b strings.Builder
		inWord := false
		for _, c := range s {
			if inWord {
				b.WriteRune(unicode.ToLower(c))
			} else {
				b.WriteRune(unicode.ToTitle(c))
			}
			inWord = cased(string(c))
		}
		return b.String(), true
	case "isdigit":
		return every(unicode.IsDigit), true
	case "isalpha":
		return every(unicode.IsLetter), true
	case "isalnum":
		return every(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }), true
	case "isspace":
		return every(isSpace), true
	case "isupper":
		return cased(s) && upper(s) == s, true
	case "islower":
		return cased(s) && lower(s) == s, true
	}
	return nil, false
}

func (r *run) findMethod(s, name string, o []any) (any, bool) {
	if !slices.Contains([]string{"startswith", "endswith", "find", "rfind", "index", "count", "replace", "join"}, name) {
		return nil, false
	}
	if len(o) == 0 || name == "replace" && len(o) < 2 {
		r.fail("the method %s wants more arguments", name)
	}
	switch name {
	case "join":
		parts := r.iterate(o[0])
		for i, part := range parts {
			if _, ok := asText(part); !ok {
				r.fail("sequence item %d: expected str instance, %s found", i, typeName(part))
			}
		}
		return r.filter("join", r.list(parts, plainList), &arguments{items: []any{s}}), true
	case "replace":
		count := -1
		if len(o) > 2 {
			count = r.number(o[2], -1)
		}
		return r.replace(s, r.text(o[0], ""), r.text(o[1], ""), count), true
	case "startswith", "endswith":
		test := strings.HasPrefix
		if name == "endswith" {
			test = strings.HasSuffix
		}
		options := []any{o[0]}
		if l, ok := o[0].(*list); ok && l.kind == tuple {
			options = l.items
		}
		return slices.ContainsFunc(options, func(v any) bool { return test(s, r.text(v, "")) }), true
	case "count":
		return int64(strings.Count(s, r.text(o[0], ""))), true
	}
	i := strings.Index(s, r.text(o[0], ""))
	if name == "rfind" {
		i = strings.LastIndex(s, r.text(o[0], ""))
	}
	if i < 0 && name == "index" {
		r.fail("substring not found")
	}
	if i < 0 {
		return int64(-1), true
	}
	return int64(r.length(s[:i])), true
}

func (r *run) cutMethod(s, name string, o []any) (any, bool) {
	switch name {
	case "split", "rsplit":
		most := -1
		if len(o) > 1 {
			most = r.number(o[1], -1)
		}
		if len(o) == 0 || o[0] == nil || o[0] == (absent{}) {
			r.useTimes(sizeValue/2, int64(len(s)))
			return r.texts(splitSpaces(s, most, name == "rsplit"), plainList), true
		}
		sep := r.text(o[0], "")
		if sep == "" {
			r.fail("empty separator")
		}
		r.useTimes(sizeValue, int64(strings.Count(s, sep)))
		parts := strings.Split(s, sep)
		if extra := len(parts) - 1 - most; most >= 0 && extra > 0 {
			if name == "split" {
				parts = append(parts[:most:most], strings.Join(parts[most:], sep))
			} else {
				parts = append([]string{strings.Join(parts[:extra+1], sep)}, parts[extra+1:]...)
			}
		}
		return r.texts(parts, plainList), true
	case "splitlines":
		r.useTimes(sizeValue/2, int64(len(s)))
		return r.texts(splitLines(s, len(o) > 0 && given(o[0])), plainList), true
	case "partition", "rpartition":
		if len(o) == 0 || r.text(o[0], "") == "" {
			r.fail("empty separator")
		}
		sep := r.text(o[0], "")
		i := strings.Index(s, sep)
		if name == "rpartition" {
			i = strings.LastIndex(s, sep)
		}
		parts := []string{s, "", ""}
		if i >= 0 {
			parts = []string{s[:i], sep, s[i+len(sep):]}
		} else if name == "rpartition" {
			parts = []string{"", "", s}
		}
		return r.texts(parts, tuple), true
	}
	return nil, false
}

func (r *run) texts(parts []string, kind listKind) *list {
	all := make([]any, len(parts))
	for i, part := range parts {
		all[i] = part
	}
	r.use(sizeValue * len(all))
	return r.list(all, kind)
}

// splitSpaces cuts a text at white space, at most `most` times; without limit if most is negative.
func splitSpaces(s string, most int, fromEnd bool) []string {
	parts := strings.FieldsFunc(s, isSpace)
	if most < 0 || len(parts)-1 <= most {
		return parts
	}
	var cut []string
	rest := s
	for range most {
		if fromEnd {
			rest = strings.TrimRightFunc(rest, isSpace)
			rest = rest[:len(rest)-len(parts[len(parts)-1-len(cut)])]
			cut = append(cut, parts[len(parts)-1-len(cut)])
		} else {
			rest = strings.TrimLeftFunc(rest, isSpace)
			rest = rest[len(parts[len(cut)]):]
			cut = append(cut, parts[len(cut)])
		}
	}
	if fromEnd {
		cut = append(cut, strings.TrimRightFunc(rest, isSpace))
		slices.Reverse(cut)
		return cut
	}
	return append(cut, strings.TrimLeftFunc(rest, isSpace))
}

// splitLines is Python's str.splitlines.
func splitLines(s string, keep bool) []string {
	var lines []string
	for s != "" {
		i := strings.IndexAny(s, "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029")
		if i < 0 {
			return append(lines, s)
		}
		n := len(string([]rune(s[i:min(len(s), i+4)])[0]))
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		if keep {
			lines = append(lines, s[:i+n])
		} else {
			lines = append(lines, s[:i])
		}
		s = s[i+n:]
	}
	return lines
}

// dictMethod returns a method of a dict, or nil.
func dictMethod(d *Dict, name string) any {
	f := &function{name: name}
	switch name {
	case "get":
		f.call = func(r *run, a *arguments) any {
			o := a.take(r, name, "key", "default")
			r.hashable(o[0])
			if v, ok := d.get(r.key(o[0])); ok {
				return v
			}
			if o[1] == (absent{}) {
				return nil
			}
			return o[1]
		}
	case "items":
		f.call = func(r *run, a *arguments) any { a.take(r, name); return r.list(r.pairs(d), items) }
	case "keys":
		f.call = func(r *run, a *arguments) any { a.take(r, name); return r.list(d.keys, keys) }
	case "values":
		f.call = func(r *run, a *arguments) any { a.take(r, name); return r.list(d.values, values) }
	case "copy":
		f.call = func(r *run, a *arguments) any { a.take(r, name); return d }
	default:
		return nil
	}
	return f
}

// listMethod returns a method of a list, or nil.
func listMethod(l *list, name string) any {
	f := &function{name: name}
	switch {
	case !l.kind.indexed():
		return nil
	case name == "index":
		f.call = func(r *run, a *arguments) any {
			o := a.take(r, name, "value")
			i := slices.IndexFunc(l.items, func(v any) bool { return r.equal(v, o[0]) })
			if i < 0 {
				r.fail("%s is not in list", r.repr(o[0]))
			}
			return int64(i)
		}
	case name == "count":
		f.call = func(r *run, a *arguments) any {
			o := a.take(r, name, "value")
			n := int64(0)
			for _, v := range l.items {
				if r.equal(v, o[0]) {
					n++
				}
			}
			return n
		}
	case name == "copy" && l.kind == plainList:
		f.call = func(r *run, a *arguments) any { a.take(r, name); return l }
	default:
		return nil
	}
	return f
}
