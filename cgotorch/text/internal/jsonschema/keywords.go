package jsonschema

import "encoding/json"

// keywords are the known ones, each with the function that reads it into an atom. A nil function
// ignores the keyword, which asks nothing of a value.
var keywords = map[string]func(c *compiler, a *atom, at *location){
	"title": nil, "description": nil, "default": nil, "examples": nil, "$schema": nil, "$comment": nil, "deprecated": nil, "readOnly": nil, "writeOnly": nil,
	"$defs": nil, "definitions": nil,
	"$id": readID,

	"type":  readType,
	"enum":  readEnum,
	"const": func(_ *compiler, a *atom, at *location) { a.enums = append(a.enums, enum{[]any{at.value}, at}) },

	"minimum":          func(_ *compiler, a *atom, at *location) { a.lows = append(a.lows, bounds(at, false)) },
	"maximum":          func(_ *compiler, a *atom, at *location) { a.highs = append(a.highs, bounds(at, false)) },
	"exclusiveMinimum": func(_ *compiler, a *atom, at *location) { a.lows = append(a.lows, bounds(at, true)) },
	"exclusiveMaximum": func(_ *compiler, a *atom, at *location) { a.highs = append(a.highs, bounds(at, true)) },
	"multipleOf":       readMultiple,

	"minLength": func(_ *compiler, a *atom, at *location) { a.minLength = count(at) },
	"maxLength": func(_ *compiler, a *atom, at *location) { a.maxLength = count(at) },
	"pattern":   readPattern,
	"format":    readFormat,

	"items":       readItems,
	"prefixItems": func(c *compiler, a *atom, at *location) { a.prefix = c.schemas(at) },
	"minItems":    func(_ *compiler, a *atom, at *location) { a.minItems = count(at) },
	"maxItems":    func(_ *compiler, a *atom, at *location) { a.maxItems = count(at) },
	"uniqueItems": readUnique,

	"properties":           readProperties,
	"additionalProperties": func(_ *compiler, a *atom, at *location) { a.extra = at },
	"required":             func(_ *compiler, a *atom, at *location) { a.required, a.requiredAt = texts(at), at },
	"minProperties":        func(_ *compiler, a *atom, at *location) { a.minProperties = count(at) },
	"maxProperties":        func(_ *compiler, a *atom, at *location) { a.maxProperties = count(at) },

	"$ref":  func(c *compiler, a *atom, at *location) { a.all = append(a.all, c.resolve(at)) },
	"allOf": func(c *compiler, a *atom, at *location) { a.all = append(a.all, c.schemas(at)...) },
	"anyOf": func(c *compiler, a *atom, at *location) {
		a.choices = append(a.choices, choice{branches: c.schemas(at), at: at})
	},
	"oneOf": func(c *compiler, a *atom, at *location) {
		a.choices = append(a.choices, choice{branches: c.schemas(at), one: true, at: at})
	},
}

// readID refuses an $id within a document, because it changes what references name.
func readID(c *compiler, _ *atom, at *location) {
	if at.up != c.root {
		panic(bad(at, "the keyword \"$id\" is refused within a document: it changes what $ref names"))
	}
}

func readType(_ *compiler, a *atom, at *location) {
	names := []any{at.value}
	if list, ok := at.value.([]any); ok {
		if names = list; len(list) == 0 {
			panic(bad(at, "it is an empty list"))
		}
	}
	a.types = 0
	integers, others := false, false
	for _, name := range names {
		name, _ := name.(string)
		one, ok := map[string]types{"null": null, "boolean": boolean, "number": number, "integer": number, "string": text, "array": array, "object": objects}[name]
		if !ok {
			panic(bad(at, "%.100q is no type", name))
		}
		a.types |= one
		integers, others = integers || name == "integer", others || name == "number"
	}
	a.integer = integers && !others
}

func readEnum(_ *compiler, a *atom, at *location) {
	list, ok := at.value.([]any)
	if !ok {
		panic(bad(at, "it is no list"))
	}
	if len(list) == 0 {
		a.never = bad(at, "it is empty, so no value fits")
	}
	a.enums = append(a.enums, enum{list, at})
}

func readMultiple(_ *compiler, a *atom, at *location) {
	n, ok := at.value.(json.Number)
	if !ok {
		panic(bad(at, "it is no number"))
	}
	r := rational(at, n)
	if r.Sign() <= 0 {
		panic(bad(at, "it is %s, want a number above 0", n))
	}
	a.multiple = append(a.multiple, multiple{r, at})
}

func readPattern(_ *compiler, a *atom, at *location) {
	s, ok := at.value.(string)
	if !ok {
		panic(bad(at, "it is no text"))
	}
	a.patterns = append(a.patterns, pattern{s, at})
}

func readFormat(_ *compiler, a *atom, at *location) {
	name, _ := at.value.(string)
	s, ok := formats[name]
	if !ok {
		panic(bad(at, "the format %.100q is refused: only date, time, date-time, uuid, ipv4, email and uri are known", name))
	}
	a.patterns = append(a.patterns, pattern{s, at})
}

func readItems(_ *compiler, a *atom, at *location) {
	if _, ok := at.value.([]any); ok {
		panic(bad(at, "a list of schemas is refused: it is prefixItems since draft 2020-12"))
	}
	a.items = at
}

func readUnique(_ *compiler, a *atom, at *location) {
	unique, ok := at.value.(bool)
	if !ok {
		panic(bad(at, "it is neither true nor false"))
	}
	if unique {
		a.unique = at
	}
}

func readProperties(_ *compiler, a *atom, at *location) {
	if _, ok := at.value.(*object); !ok {
		panic(bad(at, "it is no object"))
	}
	a.properties = at
}

// Regular expressions of formats. Each match is valid beyond doubt. Some valid texts match none,
// such as an address of e-mail with a quoted name.
const (
	day = `(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))` +
		`|(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)`
	clock  = `([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)`
	octet  = `(\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])`
	label  = `[A-Za-z0-9]([A-Za-z0-9-]{0,14}[A-Za-z0-9])?`
	domain = label + `(\.` + label + `){0,3}\.[A-Za-z]{2,12}`
	word   = `[A-Za-z0-9_+-]{1,20}`
	part   = `([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})`
	behind = `(\?(` + part + `|[/?])*)?(#(` + part + `|[/?])*)?`
)

var formats = map[string]string{
	"date":      `^` + day + `$`,
	"time":      `^` + clock + `$`,
	"date-time": `^` + day + `T` + clock + `$`,
	"uuid":      `^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`,
	"ipv4":      `^` + octet + `(\.` + octet + `){3}$`,
	"email":     `^` + word + `(\.` + word + `){0,2}@` + domain + `$`,
	"uri": `^[A-Za-z][A-Za-z0-9+.-]{0,15}:(//` + label + `(\.` + label + `){0,4}(:\d{1,4})?(/` + part + `*)*|/?` + part + `+(/` + part + `*)*)` +
		behind + `$`,
}
