package jsonschema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	mostDocument = 1 << 20 // bytes of a schema
	deepest      = 200     // levels of a schema
)

// fault is an error of a schema. The compiler panics with it, and [Compile] returns it.
type fault struct {
	at   *location
	text string
}

func (f *fault) Error() string {
	pointer := f.at.pointer()
	if len(pointer) > 200 {
		pointer = pointer[:200] + "…"
	}
	if pointer == "" {
		return f.text
	}
	return pointer + ": " + f.text
}

func bad(at *location, format string, args ...any) *fault {
	return &fault{at, fmt.Sprintf(format, args...)}
}

// location is a place in a schema's document.
type location struct {
	up    *location
	step  string
	value any // nil, bool, json.Number, string, []any or *object
	id    int
	steps map[string]*location
	atom  *atom // what the schema there says; nil until it is read
}

// pointer returns the JSON pointer of the location.
func (l *location) pointer() string {
	var steps []string
	for ; l != nil && l.up != nil; l = l.up {
		steps = append(steps, "/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(l.step))
	}
	var b strings.Builder
	for i := len(steps) - 1; i >= 0; i-- {
		b.WriteString(steps[i])
	}
	return b.String()
}

// object is a JSON object with the order of its keys.
type object struct {
	keys []string
	of   map[string]any
}

// parse reads a document. Its objects keep the order of their keys.
func parse(document []byte) (value any, err error) {
	switch {
	case len(document) > mostDocument:
		return nil, fmt.Errorf("the document has %d bytes, and at most %d are read", len(document), mostDocument)
	case !utf8.Valid(document):
		return nil, fmt.Errorf("the document is not UTF-8")
	}
	var raw json.RawMessage
	if err := json.Unmarshal(document, &raw); err != nil {
		return nil, fmt.Errorf("the document is not JSON: %w", err)
	}
	if lonelySurrogate(document) {
		return nil, fmt.Errorf("the document has half of a surrogate pair")
	}
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	return parseValue(d, 0)
}

func parseValue(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return token, nil
	}
	if depth >= deepest {
		return nil, fmt.Errorf("the document is nested more than %d levels deep", deepest)
	}
	if delim == '[' {
		list := []any{}
		for d.More() {
			item, err := parseValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, item)
		}
		_, err := d.Token()
		return list, err
	}
	o := &object{of: map[string]any{}}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		name := key.(string)
		if _, twice := o.of[name]; twice {
			return nil, fmt.Errorf("the key %.100q comes twice in an object", name)
		}
		value, err := parseValue(d, depth+1)
		if err != nil {
			return nil, err
		}
		o.keys, o.of[name] = append(o.keys, name), value
	}
	_, err = d.Token()
	return o, err
}

// lonelySurrogate reports whether an escape of a valid document is half of a pair. Package json
// would replace it by U+FFFD.
func lonelySurrogate(document []byte) bool {
	unit := func(at int) (uint64, bool) {
		if at+6 > len(document) || document[at] != '\\' || document[at+1] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(string(document[at+2:at+6]), 16, 16)
		return n, err == nil
	}
	for i := 0; i < len(document); i++ {
		if document[i] != '\\' {
			continue
		}
		n, ok := unit(i)
		switch {
		case !ok:
			i++ // the character behind it
		case n >= 0xDC00 && n < 0xE000:
			return true
		case n >= 0xD800 && n < 0xDC00:
			if low, ok := unit(i + 6); !ok || low < 0xDC00 || low >= 0xE000 {
				return true
			}
			i += 11
		}
	}
	return false
}

// child returns the location one step further, always the same one. The step must exist.
func (c *compiler) child(l *location, step string) *location {
	if known, ok := l.steps[step]; ok {
		return known
	}
	next := &location{up: l, step: step, id: c.locations}
	c.locations++
	switch of := l.value.(type) {
	case *object:
		next.value = of.of[step]
	case []any:
		i, _ := strconv.Atoi(step)
		next.value = of[i]
	}
	if l.steps == nil {
		l.steps = map[string]*location{}
	}
	l.steps[step] = next
	return next
}

// resolve returns the location that a reference names. It panics with a fault for another document,
// and for a place that does not exist.
func (c *compiler) resolve(at *location) *location {
	ref, ok := at.value.(string)
	if !ok {
		panic(bad(at, "it is no text"))
	}
	rest, ok := strings.CutPrefix(ref, "#")
	if !ok || rest != "" && rest[0] != '/' {
		panic(bad(at, "%.100q is refused: only references within the document are followed, such as #/$defs/name", ref))
	}
	rest, err := url.PathUnescape(rest)
	if err != nil {
		panic(bad(at, "%.100q is damaged", ref))
	}
	l := c.root
	for _, step := range strings.Split(rest, "/")[1:] {
		step = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
		exists := false
		switch of := l.value.(type) {
		case *object:
			_, exists = of.of[step]
		case []any:
			i, err := strconv.Atoi(step)
			exists = err == nil && i >= 0 && i < len(of) && strconv.Itoa(i) == step
		}
		if !exists {
			panic(bad(at, "%.100q names nothing in the document", ref))
		}
		l = c.child(l, step)
	}
	return l
}
