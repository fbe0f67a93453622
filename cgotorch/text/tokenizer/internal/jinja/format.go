package jinja

import (
	"fmt"
	"strconv"
	"strings"
)

// percent returns s % v.
func (r *run) percent(s string, v any) any {
	r.use(len(s))
	values := []any{v}
	if l, ok := v.(*list); ok && l.kind == tuple {
		values = l.items
	}
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '%')
		if i < 0 || i+1 == len(s) {
			break
		}
		b.WriteString(s[:i])
		flags := s[i+1:]
		verb := strings.TrimLeft(flags, "0123456789.+- #")
		if verb == "" {
			r.fail("incomplete format")
		}
		flags, s = flags[:len(flags)-len(verb)], verb[1:]
		if verb[0] == '%' {
			b.WriteByte('%')
			continue
		}
		if len(values) == 0 {
			r.fail("not enough arguments for format string")
		}
		part := r.verb(verb[0], flags, values[0])
		r.use(len(part))
		b.WriteString(part)
		values = values[1:]
	}
	_, isDict := v.(*Dict)
	_, no := v.(*undefined)
	l, isList := v.(*list)
	if len(values) > 0 && !isDict && !no && !(isList && l.kind.indexed() && l.kind != tuple) {
		r.fail("not all arguments converted during string formatting")
	}
	b.WriteString(s)
	return b.String()
}

// verb formats one value. Flags are of C's printf.
func (r *run) verb(verb byte, flags string, v any) string {
	for _, n := range strings.FieldsFunc(flags, func(c rune) bool { return c < '0' || c > '9' }) {
		if width, err := strconv.Atoi(n); err != nil || width > maxWidth {
			r.fail("the width %s of a format is too large", n)
		}
	}
	switch verb {
	case 's':
		return fmt.Sprintf("%"+flags+"s", r.str(v))
	case 'r':
		return fmt.Sprintf("%"+flags+"s", r.repr(v))
	case 'd', 'i', 'u', 'x', 'X', 'o':
		n, ok := whole(v)
		if f, isFloat := v.(float64); isFloat && strings.IndexByte("diu", verb) >= 0 {
			n, ok = int64(f), f > -1<<63 && f < 1<<63
		}
		if !ok {
			r.fail("%%%c format: a number is required, not %s", verb, typeName(v))
		}
		if strings.IndexByte("iu", verb) >= 0 {
			verb = 'd'
		}
		return fmt.Sprintf("%"+flags+string(verb), n)
	case 'f', 'F', 'e', 'E', 'g', 'G':
		f, ok := real(v)
		if !ok {
			r.fail("must be real number, not %s", typeName(v))
		}
		if strings.IndexByte("gG", verb) >= 0 && !strings.Contains(flags, ".") {
			flags += ".6"
		}
		return fmt.Sprintf("%"+flags+string(verb), f)
	}
	r.fail("the format %%%c is not supported", verb)
	return ""
}

// formatted is the method format of a text.
func (r *run) formatted(s string, a *arguments) string {
	r.use(len(s))
	var b strings.Builder
	next := 0
	for s != "" {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			break
		}
		b.WriteString(s[:i])
		s = s[i:]
		if len(s) > 1 && s[1] == s[0] {
			b.WriteByte(s[0])
			s = s[2:]
			continue
		}
		to := strings.IndexByte(s, '}')
		if s[0] == '}' || to < 0 {
			r.fail("single %q in a format", s[:1])
		}
		field, spec, _ := strings.Cut(s[1:to], ":")
		s = s[to+1:]
		if field == "" {
			field = strconv.Itoa(next)
			next++
		}
		part := r.spec(spec, r.field(field, a))
		r.use(len(part))
		b.WriteString(part)
	}
	return b.String() + s
}

func (r *run) field(name string, a *arguments) any {
	if i, err := strconv.Atoi(name); err == nil {
		if i < 0 || i >= len(a.items) {
			r.fail("Replacement index %d out of range for positional args tuple", i)
		}
		return a.items[i]
	}
	v, ok := a.named(name)
	if !ok {
		r.fail("the field {%s} of a format has no argument; attributes and conversions are not supported", name)
	}
	return v
}

// spec formats a value as a format such as 05d or .2f says.
func (r *run) spec(spec string, v any) string {
	if spec == "" {
		return r.str(v)
	}
	flags, verb := spec[:len(spec)-1], spec[len(spec)-1]
	_, isText := asText(v)
	_, isWhole := whole(v)
	if align := map[byte]string{'<': "ljust", '>': "rjust"}[spec[0]]; align != "" {
		width, err := strconv.Atoi(spec[1:])
		if err == nil {
			return r.justify(r.str(v), align, " ", width)
		}
	}
	switch {
	case strings.Trim(flags, "0123456789.+-") != "":
	case isText && verb == 's':
		return r.verb('s', "-"+flags, v)
	case isText && verb >= '0' && verb <= '9':
		return r.verb('s', "-"+spec, v)
	case isWhole && strings.IndexByte("dxXo", verb) >= 0, strings.IndexByte("fFeE", verb) >= 0:
		return r.verb(verb, flags, v)
	case isWhole && verb >= '0' && verb <= '9':
		return r.verb('d', spec, v)
	}
	r.fail("the format {:%s} is not supported", spec)
	return ""
}
