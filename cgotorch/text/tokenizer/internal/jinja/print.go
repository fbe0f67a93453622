package jinja

import (
	"math"
	"strconv"
	"strings"
	"unicode"
)

// str is Python's str(v).
func (r *run) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case Markup:
		return string(v)
	case *undefined:
		return ""
	}
	return r.repr(v)
}

// repr is Python's repr(v).
func (r *run) repr(v any) string {
	var b strings.Builder
	r.print(&b, v)
	return b.String()
}

func (r *run) print(b *strings.Builder, v any) {
	r.enter()
	defer r.leave()
	r.spend(1)
	from := b.Len()
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case Integer:
		b.WriteString(string(v))
	case float64:
		b.WriteString(floatText(v))
	case string:
		r.use(4 * len(v)) // the most that quote makes of it, about
		quote(b, v)
	case Markup:
		b.WriteString("Markup(")
		quote(b, string(v))
		b.WriteString(")")
	case *undefined:
		b.WriteString("Undefined")
	case *list:
		r.printList(b, v)
		return
	case *Dict:
		b.WriteString("{")
		for i, k := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			r.print(b, k)
			b.WriteString(": ")
			r.print(b, v.values[i])
		}
		b.WriteString("}")
		r.use(4 * len(v.keys))
		return
	default:
		r.fail("a %s has no text", typeName(v))
	}
	r.use(b.Len() - from)
}

func (r *run) printList(b *strings.Builder, l *list) {
	begin, end := "[", "]"
	switch l.kind {
	case tuple:
		begin, end = "(", ")"
		if len(l.items) == 1 {
			end = ",)"
		}
	case items, keys, values:
		begin, end = l.kind.String()+"([", "])"
	case numbers, generator:
		if l.text == "" {
			r.fail("a %s has no text", l.kind)
		}
		b.WriteString(l.text)
		return
	}
	b.WriteString(begin)
	for i, item := range l.items {
		if i > 0 {
			b.WriteString(", ")
		}
		r.print(b, item)
	}
	b.WriteString(end)
	r.use(2 * len(l.items))
}

// floatText is Python's repr of a float.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if size := math.Abs(f); size != 0 && (size < 1e-4 || size >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quote writes Python's repr of a text.
func quote(b *strings.Builder, s string) {
	q := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, "\"") {
		q = '"'
	}
	b.WriteRune(q)
	for _, c := range s {
		switch {
		case c == q || c == '\\':
			b.WriteRune('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < ' ' || c == 0x7f || c > 0x7f && !unicode.IsPrint(c):
			hex := strconv.FormatInt(int64(c), 16)
			mark, width := `\x`, 2
			if c > 0xffff {
				mark, width = `\U`, 8
			} else if c > 0xff {
				mark, width = `\u`, 4
			}
			b.WriteString(mark + strings.Repeat("0", width-len(hex)) + hex)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteRune(q)
}
