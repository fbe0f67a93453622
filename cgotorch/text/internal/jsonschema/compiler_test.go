package jsonschema

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// nested returns a text within so many others.
func nested(before, text, behind string, times int) string {
	return strings.Repeat(before, times) + text + strings.Repeat(behind, times)
}

// What cannot be kept is refused, with the place of the keyword.
func TestCompile_Refuses(t *testing.T) {
	for _, test := range []struct{ schema, want string }{
		{``, "the document is not JSON"},
		{`{"a":1`, "the document is not JSON"},
		{`{} {}`, "the document is not JSON"},
		{"\"\xff\"", "the document is not UTF-8"},
		{`{"const":"\ud800"}`, "half of a surrogate pair"},
		{`{"const":"\udc00\ud800"}`, "half of a surrogate pair"},
		{`{"type":"null","type":"null"}`, `the key "type" comes twice`},
		{`{"const":{"a":1,"a":2}}`, `the key "a" comes twice`},
		{`[]`, "it is no schema"}, {`"x"`, "it is no schema"},
		{nested(`{"items":`, `{}`, `}`, 300), "levels deep"},
		{`{"const":"` + strings.Repeat("x", mostDocument) + `"}`, "the document has"},

		{`{"not":{}}`, `/not: the keyword "not" is refused`},
		{`{"properties":{"a/b~":{"if":{}}}}`, `/properties/a~1b~0/if: the keyword "if"`},
		{`{"items":{"anyOf":[{},{"patternProperties":{}}]}}`, `/items/anyOf/1/patternProperties: `},
		{`{"dependentRequired":{}}`, "/dependentRequired: "}, {`{"contains":{}}`, "/contains: "}, {`{"propertyNames":{}}`, "/propertyNames: "},
		{`{"unevaluatedProperties":false}`, "/unevaluatedProperties: "}, {`{"$dynamicRef":"#"}`, "/$dynamicRef: "}, {`{"$anchor":"a"}`, "/$anchor: "},
		{`{"nullable":true}`, "/nullable: "}, {`{"minimun":1}`, "/minimun: "}, {`{"contentEncoding":"base64"}`, "/contentEncoding: "},
		{`{"uniqueItems":true}`, `/uniqueItems: the keyword "uniqueItems"`}, {`{"uniqueItems":1}`, "/uniqueItems: "},
		{`{"properties":{"a":{"$id":"x"}}}`, "/properties/a/$id: "},
		{`{"items":[{}]}`, "/items: a list of schemas"},
		{`{"format":"hostname"}`, `/format: the format "hostname"`}, {`{"format":3}`, "/format: "},

		{`{"type":"int"}`, `/type: "int" is no type`}, {`{"type":[]}`, "/type: "}, {`{"type":["null",3]}`, "/type: "},
		{`{"minLength":-1}`, "/minLength: it is no count"}, {`{"maxItems":1.5}`, "/maxItems: it is no count"}, {`{"minItems":"1"}`, "/minItems: it is no count"},
		{`{"minimum":"1"}`, "/minimum: it is no number"}, {`{"maximum":1e999999999}`, "/maximum: the number"}, {`{"exclusiveMinimum":true}`, "/exclusiveMinimum: "},
		{`{"minimum":1e-999999999}`, "/minimum: the number"},
		{`{"required":"a"}`, "/required: "}, {`{"required":["a","a"]}`, "/required: "}, {`{"properties":[]}`, "/properties: "},
		{`{"enum":1}`, "/enum: "}, {`{"anyOf":[]}`, "/anyOf: "}, {`{"allOf":{}}`, "/allOf: "}, {`{"properties":{"a":1}}`, "/properties/a: it is no schema"},

		{`{"pattern":"("}`, "/pattern: "}, {`{"pattern":")"}`, "/pattern: "}, {`{"pattern":"(?=a)"}`, "/pattern: a look around"}, {`{"pattern":"(?<!a)"}`, "/pattern: a look around"},
		{`{"pattern":"(a)\\1"}`, `/pattern: \1`}, {`{"pattern":"\\bx"}`, `/pattern: \b`}, {`{"pattern":"\\p{L}"}`, `/pattern: \p`}, {`{"pattern":"a**"}`, "/pattern: a repeated"},
		{`{"pattern":"[z-a]"}`, "/pattern: a range"}, {`{"pattern":"[a"}`, "/pattern: "}, {`{"pattern":"a{2,1}"}`, "/pattern: "}, {`{"pattern":"*"}`, "/pattern: "}, {`{"pattern":"\\"}`, "/pattern: "},
		{`{"pattern":"a{5000}"}`, "/pattern: a count"}, {`{"pattern":"a{05}"}`, "/pattern: a count"}, {`{"pattern":"((a{90}){90}){90}"}`, "/pattern: the expression is too large"},
		{`{"pattern":"a.{25}b$"}`, "/pattern: it needs an automaton"}, {`{"pattern":"` + strings.Repeat("(", 300) + `"}`, "/pattern: the expression is nested too deep"},
		{`{"pattern":"^a+$","maxLength":100000}`, "/maxLength: "},
		{`{"type":"number","multipleOf":0.5}`, "/multipleOf: "}, {`{"type":"integer","multipleOf":1001}`, "/multipleOf: "}, {`{"multipleOf":0}`, "/multipleOf: "},
		{`{"properties":{"age":{"type":"number","multipleOf":0.01}}}`, "/properties/age/multipleOf: "},

		{`{"$ref":"other.json"}`, "/$ref: "}, {`{"$ref":"#/$defs/a"}`, "/$ref: "}, {`{"$ref":"#a"}`, "/$ref: "}, {`{"$ref":"#/%zz"}`, "/$ref: "}, {`{"$ref":3}`, "/$ref: "},
		{`{"$ref":"#"}`, "refers to itself"}, {`{"anyOf":[{"type":"null"},{"$ref":"#"}]}`, "refers to itself"}, {`{"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}`, "refers to itself"},

		{`false`, "false accepts no value"}, {`{"enum":[]}`, "/enum: it is empty"}, {`{"type":"string","const":3}`, "/const: no value"},
		{`{"type":"string","minLength":3,"maxLength":2}`, "/minLength: it is more"}, {`{"type":"integer","minimum":1.2,"maximum":1.8}`, "/minimum: no number"},
		{`{"type":"number","exclusiveMinimum":1,"exclusiveMaximum":1.00000000000000001}`, "/exclusiveMinimum: no number"}, {`{"type":"integer","minimum":1e17}`, "/minimum: no number"},
		{`{"type":"array","minItems":2,"maxItems":1}`, "/minItems: "}, {`{"type":"array","minItems":2,"items":false}`, "/items: false"}, {`{"type":"array","prefixItems":[false],"minItems":1}`, "/prefixItems/0: false"},
		{`{"type":"object","minProperties":2,"maxProperties":1}`, "/minProperties: "}, {`{"type":"object","properties":{"a":{}},"minProperties":2}`, "/minProperties: there are 1"},
		{`{"type":"object","required":["a","b"],"maxProperties":1}`, "/maxProperties: "},
		{`{"type":"object","properties":{"a":false},"required":["a"]}`, "/properties/a: false"}, {`{"type":"object","properties":{"a":{"properties":{"b":{"type":"string","pattern":"a^"}},"required":["b"],"type":"object"}},"required":["a"]}`,
			"/properties/a/properties/b/pattern: no text"},
		{`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`, "no finite value"},
		{`{"type":"array","items":{"$ref":"#"},"minItems":1}`, "no finite value"},
		{`{"anyOf":[false,{"enum":[]}]}`, "/anyOf/1/enum: it is empty"}, {`{"allOf":[{"type":"string"},{"type":"null"}]}`, "/allOf/1: no type"},
		{`{"type":"string","pattern":"^a{3}$","maxLength":2}`, "/maxLength: no text"}, {`{"allOf":[{"pattern":"^a$"},{"pattern":"^b$"}],"type":"string"}`, "pattern: no text"},

		{`{"oneOf":[{"type":"integer"},{"type":"number"}]}`, "/oneOf: the branches 0 and 1"}, {`{"oneOf":[{},{"type":"null"}]}`, "/oneOf: "},
		{`{"oneOf":[{"type":"string"},{"enum":["a",1]}]}`, "/oneOf: "},
		{`{"oneOf":[{"type":"object","properties":{"k":{"const":1}}},{"type":"object","properties":{"k":{"const":2}}}]}`, "/oneOf: "},
		{`{"oneOf":[{"type":"object","required":["a"]},{"type":"object","required":["b"]}]}`, "/oneOf: "},
	} {
		began := time.Now()
		_, err := Compile([]byte(test.schema))
		if err == nil || !strings.Contains(err.Error(), test.want) || test.want[0] == '/' && !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%.200s: got %v, want %s", test.schema, err, test.want)
		}
		if spent := time.Since(began); spent > time.Second {
			t.Logf("%.200s took %v", test.schema, spent)
		}
	}
}

// Documents that ask for much are refused before they take much.
func TestCompile_Hostile(t *testing.T) {
	many := func(n int, one func(i int) string) string {
		var all []string
		for i := range n {
			all = append(all, one(i))
		}
		return strings.Join(all, ",")
	}
	for name, schema := range map[string]string{
		"product of choices":  `{"allOf":[` + many(40, func(i int) string { return fmt.Sprintf(`{"anyOf":[{"minLength":%d},{"maxLength":%d}]}`, i, i+100) }) + `]}`,
		"nested choices":      nested(`{"anyOf":[{"type":"null"},{"type":"string"},`, `{}`, `]}`, 90),
		"chain of references": `{"$ref":"#/$defs/0","$defs":{` + many(20000, func(i int) string { return fmt.Sprintf(`"%d":{"$ref":"#/$defs/%d"}`, i, i+1) }) + `,"20000":{}}}`,
		"chain of properties": `{"$ref":"#/$defs/0","$defs":{` + many(12000, func(i int) string {
			return fmt.Sprintf(`"%d":{"type":"object","properties":{"a":{"$ref":"#/$defs/%d"}},"required":["a"]}`, i, i+1)
		}) + `,"12000":{"type":"null"}}}`,
		"many properties":   `{"type":"object","properties":{` + many(40000, func(i int) string { return fmt.Sprintf(`"%d":{"type":"null"}`, i) }) + `}}`,
		"many enums":        `{"enum":[` + many(100000, func(i int) string { return fmt.Sprint(i) }) + `]}`,
		"many branches":     `{"oneOf":[` + many(5000, func(i int) string { return fmt.Sprintf(`{"const":%d}`, i) }) + `]}`,
		"many patterns":     `{"anyOf":[` + many(5000, func(i int) string { return fmt.Sprintf(`{"type":"string","pattern":"a.{%d}b$"}`, i%12) }) + `]}`,
		"product of shapes": `{"allOf":[` + many(60, func(i int) string { return fmt.Sprintf(`{"pattern":"a.{%d}b"}`, i%7) }) + `],"type":"string"}`,
		"sets of schemas": `{"allOf":[` + many(18, func(i int) string {
			return fmt.Sprintf(`{"$ref":"#/$defs/%d"}`, i)
		}) + `],"$defs":{` + many(18, func(i int) string {
			return fmt.Sprintf(`"%d":{"type":"object","properties":{"a":{"$ref":"#/$defs/%d"},"b":{"anyOf":[{"$ref":"#/$defs/%d"},{"type":"null"}]}}}`, i, (i+1)%18, (i*7+3)%18)
		}) + `}}`,
		"long keys":       `{"type":"object","properties":{"` + strings.Repeat("k", 400_000) + `":{"anyOf":[` + many(10_000, func(i int) string { return fmt.Sprintf(`{"const":%d}`, i) }) + `]}}}`,
		"large multiples": `{"anyOf":[` + many(300, func(i int) string { return fmt.Sprintf(`{"type":"integer","multipleOf":%d,"minimum":%d}`, 1000-i, i) }) + `]}`,
	} {
		began := time.Now()
		_, err := Compile([]byte(schema))
		spent := time.Since(began)
		t.Logf("%s: %v, %.80v", name, spent.Round(time.Millisecond), err)
		if spent > 30*time.Second {
			t.Errorf("%s took %v", name, spent)
		}
	}
}
