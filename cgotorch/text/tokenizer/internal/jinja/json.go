package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// FromJSON returns the [Value] of a JSON text. Objects keep their order. Numbers without point and
// exponent are whole.
func FromJSON(text []byte) (Value, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := readValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text follows the JSON")
	}
	return v, nil
}

func readValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth/4 {
		return nil, fmt.Errorf("the JSON nests more than %d deep", maxDepth/4)
	}
	t, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		return readNumber(string(t))
	case json.Delim:
		if t == '{' {
			return readObject(d, depth)
		}
		l := &list{}
		for d.More() {
			v, err := readValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			l.items = append(l.items, v)
		}
		_, err := d.Token()
		return l, err
	}
	return t, nil
}

func readObject(d *json.Decoder, depth int) (any, error) {
	object := NewDict()
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := readValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		object.Set(key.(string), v) // only a text can be a key
	}
	_, err := d.Token()
	return object, err
}

func readNumber(s string) (any, error) {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if errors.Is(err, strconv.ErrRange) { // Python has inf
			err = nil
		}
		return f, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return Integer(s), nil
	}
	return n, nil
}

// jsonWriter writes values as Python's json.dumps does.
type jsonWriter struct {
	r           *run
	b           strings.Builder
	indent      string // "\n" and the indent; "" for one line
	item, colon string // separators
	ascii, sort bool
}

// toJSON is the filter tojson.
func (r *run) toJSON(v any, a *arguments) any {
	o := a.take(r, "tojson", "ensure_ascii", "indent", "separators", "sort_keys")
	w := &jsonWriter{r: r, item: ", ", colon: ": ", ascii: given(o[0]), sort: given(o[3])}
	switch indent := o[1].(type) {
	case absent, nil:
	case string:
		w.indent, w.item = "\n"+indent, ","
	default:
		n := max(r.number(indent, 0), 0)
		if n > maxWidth {
			r.fail("an indent of %d is too wide", n)
		}
		w.indent, w.item = "\n"+strings.Repeat(" ", n), ","
	}
	if l, ok := o[2].(*list); ok && len(l.items) == 2 {
		w.item, w.colon = r.text(l.items[0], ""), r.text(l.items[1], "")
	} else if o[2] != (absent{}) && o[2] != nil {
		r.fail("the separators of tojson are no pair")
	}
	w.value(v, 1)
	return w.b.String()
}

func (w *jsonWriter) value(v any, depth int) {
	w.r.enter()
	defer w.r.leave()
	w.r.spend(1)
	from := w.b.Len()
	switch v := v.(type) {
	case nil:
		w.b.WriteString("null")
	case bool:
		w.b.WriteString(strconv.FormatBool(v))
	case float64:
		w.b.WriteString(jsonFloat(v))
	case string:
		w.text(v)
	case Markup:
		w.text(string(v))
	case int64, Integer:
		w.b.WriteString(w.r.repr(v))
	case *list:
		if v.kind > tuple {
			w.r.fail("Object of type %s is not JSON serializable", v.kind)
		}
		w.group('[', ']', len(v.items), depth, func(i int) { w.value(v.items[i], depth+1) })
		return
	case *Dict:
		order := w.order(v)
		w.group('{', '}', len(order), depth, func(i int) {
			w.key(v.keys[order[i]])
			w.b.WriteString(w.colon)
			w.value(v.values[order[i]], depth+1)
		})
		return
	default:
		w.r.fail("Object of type %s is not JSON serializable", typeName(v))
	}
	w.r.use(w.b.Len() - from)
}

// order returns the indices of a dict's keys in the order in which they are written.
func (w *jsonWriter) order(d *Dict) []int {
	order := make([]int, len(d.keys))
	for i := range order {
		order[i] = i
	}
	if w.sort {
		slices.SortStableFunc(order, func(i, j int) int { return w.r.sorts(d.keys[i], d.keys[j]) })
	}
	return order
}

func (w *jsonWriter) group(begin, end byte, n, depth int, item func(i int)) {
	w.b.WriteByte(begin)
	for i := range n {
		if i > 0 {
			w.b.WriteString(w.item)
		}
		w.line(depth)
		item(i)
		w.r.use(len(w.item) + len(w.colon))
	}
	if n > 0 {
		w.line(depth - 1)
	}
	w.b.WriteByte(end)
}

func (w *jsonWriter) line(depth int) {
	if w.indent != "" {
		w.r.use(1 + depth*len(w.indent))
		w.b.WriteByte('\n')
		w.b.WriteString(strings.Repeat(w.indent[1:], depth))
	}
}

func (w *jsonWriter) key(k any) {
	switch k := k.(type) {
	case string:
		w.text(k)
	case Markup:
		w.text(string(k))
	case nil:
		w.text("null")
	case bool:
		w.text(strconv.FormatBool(k))
	case float64:
		w.text(jsonFloat(k))
	default:
		w.text(w.r.repr(k))
	}
}

func jsonFloat(f float64) string {
	switch s := floatText(f); s {
	case "nan":
		return "NaN"
	case "inf":
		return "Infinity"
	case "-inf":
		return "-Infinity"
	default:
		return s
	}
}

func (w *jsonWriter) text(s string) {
	w.r.use(len(s))
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' && w.ascii {
			w.r.use(6)
		}
	}
	w.b.WriteByte('"')
	for _, c := range s {
		i := strings.IndexRune("\"\\\n\r\t\b\f", c)
		switch {
		case i >= 0:
			w.b.WriteByte('\\')
			w.b.WriteByte(`"\nrtbf`[i])
		case c < ' ' || c > '~' && w.ascii && c <= 0xffff:
			fmt.Fprintf(&w.b, `\u%04x`, c)
		case c > 0xffff && w.ascii:
			high, low := utf16.EncodeRune(c)
			fmt.Fprintf(&w.b, `\u%04x\u%04x`, high, low)
		default:
			w.b.WriteRune(c)
		}
	}
	w.b.WriteByte('"')
}
