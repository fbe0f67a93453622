// Package schematest makes random JSON schemas for tests, and asks another library whether values
// fit them.
package schematest

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Validator returns a function that fails for a text that is no JSON value, that repeats a key or
// that does not fit a schema.
func Validator(schema string) (func(text string) error, error) {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", document); err != nil {
		return nil, err
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		return nil, err
	}
	return func(text string) error {
		if !utf8.ValidString(text) {
			return fmt.Errorf("%q is not UTF-8", text)
		}
		if !json.Valid([]byte(text)) {
			return fmt.Errorf("%q is no JSON", text)
		}
		d := json.NewDecoder(strings.NewReader(text))
		if err := differentKeys(d); err != nil {
			return err
		}
		var plain any // numbers as float64
		if err := json.Unmarshal([]byte(text), &plain); err != nil {
			return err
		}
		if err := s.Validate(plain); err != nil {
			return err
		}
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			return err
		}
		return s.Validate(value)
	}, nil
}

// differentKeys fails if a value has an object that repeats a key.
func differentKeys(d *json.Decoder) error {
	var open []map[string]bool // by depth; nil for a list
	key := false
	for {
		token, err := d.Token()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if name, ok := token.(string); ok && key {
			if open[len(open)-1][name] {
				return fmt.Errorf("the key %q comes twice", name)
			}
			open[len(open)-1][name], key = true, false
			continue
		}
		switch token {
		case json.Delim('{'):
			open = append(open, map[string]bool{})
		case json.Delim('['):
			open = append(open, nil)
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
		key = len(open) > 0 && open[len(open)-1] != nil
	}
}

// maker makes a schema.
type maker struct {
	*rand.Rand
	defs int
}

// Random returns a schema whose strings and lists are bounded. Each of the package's keywords comes
// in some schemas.
func Random(r *rand.Rand) string {
	m := &maker{Rand: r}
	root := m.schema(3)
	switch r.IntN(6) {
	case 0: // a list of links
		return `{"$defs":{"link":{"type":"object","properties":{"of":` + root + `,"next":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/link"}]}},"required":["of","next"],"additionalProperties":false}},"$ref":"#/$defs/link"}`
	case 1:
		return `{"definitions":{"a/b":` + root + `},"type":"object","properties":{"x":{"$ref":"#/definitions/a~1b"},"ä y":{"$ref":"#/definitions/a~1b"}},"required":["ä y"]}`
	}
	return root
}

func (m *maker) pick(all ...string) string { return all[m.IntN(len(all))] }

func (m *maker) maybe(text string) string {
	if m.IntN(2) == 0 {
		return ""
	}
	return text
}

// schema makes a schema of values that nest so deep at most.
func (m *maker) schema(depth int) string {
	kinds := []func(int) string{m.integer, m.number, m.text, m.pattern, m.constant, m.plain}
	if depth > 0 {
		kinds = append(kinds, m.object, m.object, m.object, m.list, m.tuple, m.any, m.all, m.one, m.choices)
	}
	return kinds[m.IntN(len(kinds))](depth)
}

func (m *maker) integer(int) string {
	lo := m.IntN(2000) - 1000
	s := `{"type":"integer"` + m.maybe(fmt.Sprintf(`,%q:%d`, m.pick("minimum", "exclusiveMinimum"), lo))
	s += m.maybe(fmt.Sprintf(`,%q:%d.5`, m.pick("maximum", "exclusiveMaximum"), lo+100+m.IntN(1000)))
	return s + m.maybe(fmt.Sprintf(`,"multipleOf":%s`, m.pick("1", "2", "0.5", "7", "25", "1.5"))) + `}`
}

func (m *maker) number(int) string {
	lo := m.Float64()*10 - 5
	s := `{"type":"number"` + m.maybe(fmt.Sprintf(`,%q:%.*f`, m.pick("minimum", "exclusiveMinimum"), m.IntN(20), lo))
	s += m.maybe(fmt.Sprintf(`,%q:%.*f`, m.pick("maximum", "exclusiveMaximum"), m.IntN(20), lo+1.1+m.Float64()*100))
	return s + m.maybe(`,"multipleOf":`+m.pick("1", "3")) + `,"title":"a number"}`
}

func (m *maker) text(int) string {
	lo := m.IntN(4)
	return fmt.Sprintf(`{"type":"string"%s,"maxLength":%d}`, m.maybe(fmt.Sprintf(`,"minLength":%d`, lo)), lo+m.IntN(12))
}

func (m *maker) pattern(int) string {
	if m.IntN(2) == 0 {
		return fmt.Sprintf(`{"type":"string","format":%q%s}`, m.pick("date", "time", "date-time", "uuid", "ipv4"), m.maybe(`,"description":"x"`))
	}
	return fmt.Sprintf(`{"type":"string","pattern":%q%s}`, m.pick(`^[a-z]{2,5}$`, `^(foo|bar)+[^"\\]?$`, `^\d{3}-\d{4}$`, `^.x.$`, `^[\s\w]{1,4}$`, `^ä+€?😀$`, `^$|^\\n$`, `^[^a]{2}b`),
		`,"maxLength":12`)
}

func (m *maker) value() string {
	return m.pick("1", "1.0", "-2.50", "1e3", "null", "true", `"a"`, `"a\"\\\u0001b"`, `"流😀"`, `""`, `[1,"x"]`, `[]`, `{"k":{"l":[null]},"m":0}`, `{}`)
}

func (m *maker) constant(int) string {
	if m.IntN(2) == 0 {
		return `{"const":` + m.value() + `}`
	}
	return fmt.Sprintf(`{"enum":[%s,%s,%s]}`, m.value(), m.value(), m.value())
}

func (m *maker) plain(int) string {
	return m.pick(`{"type":"null"}`, `{"type":"boolean"}`, `{"type":["integer","null"]}`, `{"type":["boolean","number"],"minimum":3}`, `{"type":["null","string"],"maxLength":3}`)
}

var names = []string{"a", "ab", "abc", "b", "k\\u00e4", "a b", "q\\\"", ""}

func (m *maker) object(depth int) string {
	var properties, required []string
	for _, i := range m.Perm(len(names))[:m.IntN(5)] {
		s := m.schema(depth - 1)
		if m.IntN(10) == 0 {
			s = m.pick("false", `{"type":"string","minLength":2,"maxLength":1}`)
		} else if m.IntN(2) == 0 {
			required = append(required, `"`+names[i]+`"`)
		}
		properties = append(properties, fmt.Sprintf(`"%s":%s`, names[i], s))
	}
	s := fmt.Sprintf(`{"type":"object","properties":{%s},"required":[%s]`, strings.Join(properties, ","), strings.Join(required, ","))
	switch m.IntN(4) {
	case 0:
		s += `,"additionalProperties":false`
	case 1:
		s += `,"additionalProperties":` + m.schema(0) + fmt.Sprintf(`,"minProperties":%d,"maxProperties":%d`, m.IntN(3), len(properties)+1+m.IntN(4))
	case 2:
		s += fmt.Sprintf(`,"minProperties":%d`, min(len(properties), len(required)+m.IntN(2)))
	}
	return s + `}`
}

func (m *maker) list(depth int) string {
	lo := m.IntN(3)
	return fmt.Sprintf(`{"type":"array","items":%s,"minItems":%d,"maxItems":%d}`, m.schema(depth-1), lo, lo+m.IntN(4))
}

func (m *maker) tuple(depth int) string {
	return fmt.Sprintf(`{"type":"array","prefixItems":[%s,%s],"items":%s,"maxItems":%d%s}`, m.schema(depth-1), m.schema(depth-1), m.pick("false", m.schema(0)), 2+m.IntN(2),
		m.maybe(`,"minItems":1`))
}

func (m *maker) any(depth int) string {
	return fmt.Sprintf(`{"anyOf":[%s,%s,%s]}`, m.schema(depth-1), m.schema(depth-1), m.pick("false", m.schema(0)))
}

func (m *maker) all(depth int) string {
	return fmt.Sprintf(`{"allOf":[{"type":"object","properties":{"a":%s}},{"properties":{"b":{"type":"integer"}%s},"required":["b"]}],"properties":{"c":%s}}`,
		m.schema(depth-1), m.maybe(`,"a":{"type":["integer","string","object","null"]}`), m.schema(0))
}

func (m *maker) one(depth int) string {
	branch := func(kind string) string {
		return fmt.Sprintf(`{"type":"object","properties":{"kind":{"const":%q},"of":%s},"required":["kind"%s]}`, kind, m.schema(depth-1), m.maybe(`,"of"`))
	}
	return fmt.Sprintf(`{"oneOf":[%s,%s,{"type":["null","integer"]},{"enum":["x","y"]}]}`, branch("first"), branch("fir"))
}

func (m *maker) choices(depth int) string {
	return fmt.Sprintf(`{"type":"object","properties":{"a":{"type":"integer"},"b":%s,"c":{"type":"boolean"}},"anyOf":[{"required":["a"]},{"required":["b","c"]}],"additionalProperties":false}`,
		m.schema(depth-1))
}
