package jsonschema

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
)

// types is a set of JSON's types.
type types uint8

const (
	null types = 1 << iota
	boolean
	number
	text
	array
	objects
	anyType = null | boolean | number | text | array | objects
)

// limit is a count with the keyword that gives it.
type limit struct {
	n  int
	at *location
}

// none is a limit that does not bind.
const none = math.MaxInt32

// counts are the limits of characters, items and properties.
type counts struct {
	minLength, maxLength         limit
	minItems, maxItems           limit
	minProperties, maxProperties limit
}

// anyCounts returns limits that do not bind.
func anyCounts(at *location) counts {
	least, most := limit{at: at}, limit{none, at}
	return counts{least, most, least, most, least, most}
}

// bound is an end of a range of numbers.
type bound struct {
	value  *big.Rat
	strict bool
	at     *location
}

// choice is an anyOf or a oneOf.
type choice struct {
	branches []*location
	one      bool
	at       *location
	path     *link
}

// atom is what one schema says by itself, without the schemas to which it refers.
type atom struct {
	at      *location
	trivial bool // every value fits
	never   *fault

	types   types
	integer bool // numbers are integers

	enums    []enum
	lows     []bound
	highs    []bound
	multiple []multiple

	counts

	patterns []pattern

	prefix []*location
	items  *location
	unique *location // of uniqueItems: true

	properties *location // of the keyword, or nil
	extra      *location // of additionalProperties, or nil
	required   []string
	requiredAt *location

	all     []*location // $ref and allOf
	choices []choice
}

// enum is a list of values, that of enum or const.
type enum struct {
	values []any
	at     *location
}

type multiple struct {
	of *big.Rat
	at *location
}

// pattern is a regular expression that a string must have a match of.
type pattern struct {
	text string
	at   *location
}

// read returns what the schema at a location says. It panics with a fault for a keyword that cannot
// be kept.
func (c *compiler) read(l *location) *atom {
	if l.atom != nil {
		return l.atom
	}
	c.spend(1)
	a := &atom{at: l, types: anyType, counts: anyCounts(l)}
	switch of := l.value.(type) {
	case bool:
		if a.trivial = of; !of {
			a.never = bad(l, "false accepts no value")
		}
	case *object:
		a.trivial = true
		for _, name := range of.keys {
			at := c.child(l, name)
			read, ok := keywords[name]
			if !ok {
				panic(bad(at, "the keyword %.100q is refused: what it asks cannot be kept while an answer is written", name))
			}
			if read != nil {
				read(c, a, at)
				a.trivial = false
			}
		}
		if a.unique != nil && a.types&array != 0 && a.maxItems.n > 1 {
			panic(bad(a.unique, "the keyword \"uniqueItems\" is refused where a list may have two items"))
		}
	default:
		panic(bad(l, "it is no schema, want an object, true or false"))
	}
	l.atom = a
	return a
}

// schemas returns the locations of a list of schemas.
func (c *compiler) schemas(at *location) (all []*location) {
	list, ok := at.value.([]any)
	if !ok || len(list) == 0 {
		panic(bad(at, "it is no list of schemas"))
	}
	for i := range list {
		all = append(all, c.child(at, strconv.Itoa(i)))
	}
	return all
}

// texts returns the value of a location, which must be a list of different texts.
func texts(at *location) (all []string) {
	list, ok := at.value.([]any)
	if !ok {
		panic(bad(at, "it is no list of texts"))
	}
	seen := map[string]bool{}
	for _, item := range list {
		s, ok := item.(string)
		if !ok || seen[s] {
			panic(bad(at, "it is no list of different texts"))
		}
		seen[s] = true
		all = append(all, s)
	}
	return all
}

// count returns the value of a location, which must be an integer that is not negative.
func count(at *location) limit {
	n, ok := at.value.(json.Number)
	if ok {
		r := rational(at, n)
		if r.IsInt() && r.Sign() >= 0 {
			if r.Cmp(big.NewRat(none-1, 1)) > 0 {
				return limit{none - 1, at}
			}
			return limit{int(r.Num().Int64()), at}
		}
	}
	panic(bad(at, "it is no count"))
}

// rational returns the value of a number. It panics with a fault for one that takes too many
// digits.
func rational(at *location, n json.Number) *big.Rat {
	r, ok := rationalOf(n)
	if !ok {
		panic(bad(at, "the number %.40s is too long", string(n)))
	}
	return r
}

// rationalOf returns the value of a number, unless it takes too many digits.
func rationalOf(n json.Number) (*big.Rat, bool) {
	if f, err := n.Float64(); len(n) > 100 || err != nil || f != 0 && math.Abs(f) < 1e-300 {
		return nil, false
	}
	if f, _ := n.Float64(); f == 0 { // perhaps of a huge exponent
		for _, digit := range n {
			if digit == 'e' || digit == 'E' {
				break
			}
			if digit >= '1' && digit <= '9' {
				return nil, false
			}
		}
		return new(big.Rat), true
	}
	return new(big.Rat).SetString(string(n))
}

func bounds(at *location, strict bool) bound {
	n, ok := at.value.(json.Number)
	if !ok {
		panic(bad(at, "it is no number"))
	}
	return bound{rational(at, n), strict, at}
}
