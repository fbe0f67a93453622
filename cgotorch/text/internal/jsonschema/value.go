package jsonschema

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"
)

// canonical returns a text that equal values share, and no others.
func canonical(value any) string {
	var b strings.Builder
	writeCanonical(&b, value)
	return b.String()
}

func writeCanonical(b *strings.Builder, value any) {
	switch v := value.(type) {
	case json.Number:
		if r, ok := rationalOf(v); ok {
			b.WriteString(r.RatString())
		} else {
			b.WriteString(string(v))
		}
	case []any:
		b.WriteByte('[')
		for _, item := range v {
			writeCanonical(b, item)
			b.WriteByte(',')
		}
		b.WriteByte(']')
	case *object:
		b.WriteByte('{')
		for _, key := range slices.Sorted(slices.Values(v.keys)) {
			writeCanonical(b, key)
			b.WriteByte(':')
			writeCanonical(b, v.of[key])
			b.WriteByte(',')
		}
		b.WriteByte('}')
	default:
		data, _ := json.Marshal(v)
		b.Write(data)
	}
}

// typeOf returns the type of a value.
func typeOf(value any) types {
	switch value.(type) {
	case nil:
		return null
	case bool:
		return boolean
	case json.Number:
		return number
	case string:
		return text
	case []any:
		return array
	}
	return objects
}

// fits reports whether a value of an enum or a const fits the schema at a location. It panics with
// a fault if references lead in a circle.
func (c *compiler) fits(l *location, value any, depth int) bool {
	if depth > mostChain {
		panic(bad(l, "references lead to themselves, or through too many others"))
	}
	a := c.read(l)
	if a.trivial && a.never == nil && len(a.all)+len(a.choices) == 0 {
		return true
	}
	for _, other := range a.all {
		if !c.fits(other, value, depth+1) {
			return false
		}
	}
	for _, choice := range a.choices {
		count := 0
		for _, branch := range choice.branches {
			if c.fits(branch, value, depth+1) {
				count++
			}
		}
		if count == 0 || choice.one && count > 1 {
			return false
		}
	}
	return c.fitsSpec(merged([]*atom{a}, l), value, depth)
}

// fitsSpec is fits for the atoms of a spec, without the schemas to which these refer.
func (c *compiler) fitsSpec(s *spec, value any, depth int) bool {
	c.spend(1)
	if s.why != nil || s.types&typeOf(value) == 0 {
		return false
	}
	for _, e := range s.enums {
		if !c.enumSet(e)[canonical(value)] {
			return false
		}
	}
	switch v := value.(type) {
	case json.Number:
		return fitsNumber(s, v)
	case string:
		n := utf8.RuneCountInString(v)
		return n >= s.minLength.n && n <= s.maxLength.n && !slices.ContainsFunc(s.patterns, func(p pattern) bool {
			d := c.pattern(p)
			return d == nil || !d.matches(v)
		})
	case []any:
		if len(v) < s.minItems.n || len(v) > s.maxItems.n {
			return false
		}
		for i, item := range v {
			if !c.fitsAll(s.item(i), item, depth+1) {
				return false
			}
		}
	case *object:
		if len(v.keys) < s.minProperties.n || len(v.keys) > s.maxProperties.n {
			return false
		}
		for _, a := range s.atoms {
			for _, key := range a.required {
				if _, ok := v.of[key]; !ok {
					return false
				}
			}
		}
		for _, key := range v.keys {
			if !c.fitsAll(s.property(c, key), v.of[key], depth+1) {
				return false
			}
		}
	}
	return true
}

func (c *compiler) fitsAll(all []*location, value any, depth int) bool {
	return !slices.ContainsFunc(all, func(l *location) bool { return !c.fits(l, value, depth) })
}

func fitsNumber(s *spec, n json.Number) bool {
	r, ok := rationalOf(n)
	if !ok || s.integer && !r.IsInt() {
		return false
	}
	if s.low != nil {
		if so := r.Cmp(s.low.value); so < 0 || so == 0 && s.low.strict {
			return false
		}
	}
	if s.high != nil {
		if so := r.Cmp(s.high.value); so > 0 || so == 0 && s.high.strict {
			return false
		}
	}
	for _, m := range s.multiple {
		if !new(big.Rat).Quo(r, m.of).IsInt() {
			return false
		}
	}
	return true
}
