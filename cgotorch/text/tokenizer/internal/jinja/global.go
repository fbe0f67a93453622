package jinja

import (
	"fmt"
	"strings"
	"time"
)

// global returns a function that each template has, or nil.
func global(name string) any {
	f := &function{name: name}
	switch name {
	case "raise_exception":
		f.call = func(r *run, a *arguments) any {
			o := a.take(r, name, "message")
			if o[0] == (absent{}) {
				o[0] = ""
			}
			r.fail("%s", r.str(o[0]))
			return nil
		}
	case "strftime_now":
		f.call = func(r *run, a *arguments) any {
			o := a.take(r, name, "format")
			return r.strftime(r.text(o[0], ""))
		}
	case "namespace":
		f.call = func(r *run, a *arguments) any {
			n := &namespace{NewDict()}
			fill(r, a, func(key, v any) { n.set(r, r.text(key, ""), v) })
			return n
		}
	case "dict":
		f.call = func(r *run, a *arguments) any {
			d := NewDict()
			fill(r, a, func(key, v any) { r.use(sizeNode); d.set(r, key, v) })
			return d
		}
	case "range":
		f.call = func(r *run, a *arguments) any { return r.numbers(a) }
	case "joiner":
		f.call = func(r *run, a *arguments) any {
			sep := r.text(a.take(r, name, "sep")[0], ", ")
			used := false
			return &function{name, func(*run, *arguments) any {
				if used {
					return sep
				}
				used = true
				return ""
			}}
		}
	case "cycler", "lipsum":
		f.call = func(r *run, a *arguments) any {
			r.fail("the function %s is not supported", name)
			return nil
		}
	default:
		return nil
	}
	return f
}

// fill hands the entries of a mapping, or of pairs, and named arguments to `set`.
func fill(r *run, a *arguments, set func(key, v any)) {
	for _, v := range a.items {
		if d, ok := v.(*Dict); ok {
			v = r.list(r.pairs(d), plainList)
		}
		for _, pair := range r.iterate(v) {
			both := r.iterate(pair)
			if len(both) != 2 {
				r.fail("a dict wants pairs, and an element has %d values", len(both))
			}
			set(both[0], both[1])
		}
	}
	for i, name := range a.names {
		set(name, a.values[i])
	}
}

// numbers is range.
func (r *run) numbers(a *arguments) any {
	o := a.take(r, "range", "start", "stop", "step")
	start, stop, step := 0, r.number(o[0], 0), 1
	if o[1] != (absent{}) {
		start, stop = stop, r.number(o[1], 0)
	}
	if o[2] != (absent{}) {
		step = r.number(o[2], 0)
	}
	if step == 0 {
		r.fail("range() arg 3 must not be zero")
	}
	var all []any
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(all) == maxRange {
			r.fail("Range too big. The sandbox blocks ranges larger than %d.", maxRange)
		}
		all = append(all, int64(i))
	}
	r.spend(len(all) / 8)
	l := r.list(all, numbers)
	l.text = fmt.Sprintf("range(%d, %d)", start, stop)
	if step != 1 {
		l.text = fmt.Sprintf("range(%d, %d, %d)", start, stop, step)
	}
	return l
}

// strftime writes the time as C's strftime does for English.
func (r *run) strftime(format string) string {
	layouts := map[byte]string{'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'M': "04", 'S': "05", 'B': "January", 'b': "Jan",
		'h': "Jan", 'A': "Monday", 'a': "Mon", 'y': "06", 'I': "03", 'p': "PM", 'e': "_2", 'F': "2006-01-02", 'T': "15:04:05",
		'D': "01/02/06", 'R': "15:04", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05"}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		c := format[i]
		unpadded := c == '-' && i+1 < len(format)
		if unpadded {
			i++
			c = format[i]
		}
		part := ""
		switch layout, ok := layouts[c]; {
		case ok:
			part = r.now.Format(layout)
		case c == 'j':
			part = fmt.Sprintf("%03d", r.now.YearDay())
		case c == 'u':
			part = fmt.Sprint((int(r.now.Weekday())+6)%7 + 1)
		case c == 'w':
			part = fmt.Sprint(int(r.now.Weekday()))
		case c == 'f':
			part = fmt.Sprintf("%06d", r.now.Nanosecond()/int(time.Microsecond))
		case c == '%':
			part = "%"
		case c != 'z' && c != 'Z': // empty for a time without zone, as datetime.now() is
			r.fail("the directive %%%c of strftime is not supported", c)
		}
		if unpadded {
			if part = strings.TrimLeft(part, "0 "); part == "" {
				part = "0"
			}
		}
		b.WriteString(part)
	}
	r.use(b.Len())
	return b.String()
}
