package jsonschema

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// accepts reports whether the masks allow a text, cut into tokens at random, and then the end.
func accepts(r *rand.Rand, m *Masks, text string) bool {
	answer, tokens, allowed := m.NewAnswer([]int64{end}, false), []int64{}, make([]bool, len(m.v.bytes))
	for at := 0; ; {
		clear(allowed)
		answer.Fill(tokens, allowed)
		if at == len(text) {
			return allowed[end]
		}
		var next []int64
		for id, b := range m.v.bytes {
			if len(b) > 0 && strings.HasPrefix(text[at:], string(b)) {
				next = append(next, int64(id))
			}
		}
		id := next[r.IntN(len(next))]
		if !allowed[id] {
			return false
		}
		tokens, at = append(tokens, id), at+len(m.v.bytes[id])
	}
}

// Values in the written form are allowed however they are cut into tokens. Values that do not fit
// are not.
func TestMasks_Instances(t *testing.T) {
	vocabularies := vocabularies(t)
	delete(vocabularies, "pieces") // has not all bytes
	for _, test := range []struct{ schema, good, bad string }{
		{`{}`, "1|-1.5e+10|\"a\"|null|[]|[1, {\"a\": []}]|{}|{\"a\":1, \"b\":[true,false]}|\"\\ud83d\\uDE00\\u00e4\\/\"", " 1|1 |01|[1,]|{,}|[1  ,2]|{\"a\":1,\"a\":2}|{\"a\":1,\"\\u0061\":2}|{\"\\u00E4\":1,\"ä\":2}|\"\\ud83d\"|\"\\udc00\"|\"\\udc00\\udc00\"|\"\\ud83d\\udb00\"|\"\\ud83d\\ud83d\"|\"\\ud83dx\"|\"\\x\"|nul|tru|+1|1.|.5|1e|1e100|--1"},
		{`true`, "1|{\"a\":{\"a\":1}, \"b\":{\"a\":1}}|[{\"a\":1},{\"a\":2}]", "[{\"a\":1,\"b\":{},\"a\":1}]|{\"a\":[{\"a\":1}],\"a\":2}|{\"\":1,\"\":2}"},
		{`{"type":"string"}`, "\"\"|\"流😀\u007f\"|\"\\n\\\"\\\\\"", "\"\n\"|\"\x00\"|\"\xc0\x80\"|\"\xe0\x80\x80\"|\"\xed\xa0\x80\"|\"\xf0\x80\x80\x80\"|\"\xf0\x8f\xbf\xbf\"|\"\xf4\x90\x80\x80\"|\"\xf5\x80\x80\x80\"|\"\xff\"|\"\x80\"|\"\xe6\xb5\"|\"\xe0\x9f\xbf\"|\"\xc3\"|\"\\u12\"|\"\\u12g4\"|\"a"},
		{`{"type":"string","minLength":2,"maxLength":3}`, `"ab"|"流流流"|"😀😀"|"\ud83d\ude00a"|"\n\u0041"|"\\\""`, `"a"|"abcd"|"流流流流"|"😀"|"\ud83d\ude00"|"\u0041"|"😀😀😀😀"`},
		{`{"type":"string","pattern":"b+"}`, `"b"|"abba"|"\u0062"|"ab😀"`, `"a"|""|"\u0061"`},
		{`{"type":"string","pattern":"^ä[^x]$"}`, `"äa"|"ä流"|"\u00e4😀"|"ä\ud83d\ude00"|"ä\n"`, `"äx"|"ä"|"äab"|"å1"|"\u00e5a"|"ä\u0078"`},
		{`{"type":"string","pattern":"^a$|c$"}`, `"a"|"c"|"xc"`, `"ab"|"ba"|"cx"`},
		{`{"type":"string","pattern":"^(?:a|b){2,3}(?<n>x)?\\d*?$"}`, `"ab"|"aba"|"abx12"`, `"a"|"abab"|"ab1x"`},
		{`{"type":"string","pattern":"^[\\s\\S]\\W[\\]\\-a-c][^\\]]$"}`, `"a-]x"|"\n\t-é"`, `"a-d1"|"aa]x"|"a-]]"`},
		{`{"type":"string","pattern":"^[^\\s]$"}`, `"x"`, "\"\u00a0\"|\" \"|\"\\t\""},
		{`{"type":"string","pattern":"^[^\\S]$"}`, `" "`, "\"\u00a0\"|\"x\""},
		{`{"type":"string","pattern":"^\\S\\s$"}`, `"x "`, "\"x\u00a0\"|\"\u00a0 \""},
		{`{"type":"string","pattern":"^.$"}`, `"x"|"😀"`, "\"\\n\"|\"\u2028\"|\"\\r\""},
		{`{"type":"string","pattern":"$^"}`, `""`, `"a"`},
		{`{"allOf":[{"pattern":"^a"},{"pattern":"b$"},{"minLength":3}],"type":"string"}`, `"axb"|"aab"`, `"ab"|"abx"|"xab"`},
		{`{"type":"string","format":"date"}`, `"2024-02-29"|"2000-02-29"|"1999-12-31"`, `"2023-02-29"|"1900-02-29"|"2024-04-31"|"2024-13-01"|"2024-1-01"|"2024-00-10"|"2024-01-00"`},
		{`{"type":"string","format":"date-time"}`, `"2024-02-29T23:59:59Z"|"2024-01-01T00:00:00.123+01:30"`, `"2024-02-29 23:59:59Z"|"2024-02-29T24:00:00Z"|"2024-02-29T23:59:59"`},
		{`{"type":"string","format":"time"}`, `"00:00:00Z"`, `"00:60:00Z"|"0:00:00Z"`},
		{`{"type":"string","format":"uuid"}`, `"123e4567-e89b-12d3-a456-426614174000"`, `"123e4567e89b12d3a456426614174000"|"123e4567-e89b-12d3-a456-42661417400g"`},
		{`{"type":"string","format":"ipv4"}`, `"0.10.255.199"`, `"256.0.0.1"|"01.0.0.1"|"1.1.1"`},
		{`{"type":"string","format":"email"}`, `"a.b+c@mail.example.com"`, `"a@b"|"@b.com"|"a..b@c.com"`},
		{`{"type":"string","format":"uri"}`, `"https://a.example:80/b%20c?d=e#f"|"urn:isbn:12"|"mailto:a@b.c"`, `"a"|"http://"|"//a"|"http://a/%2"|"1a:b"`},

		{`{"type":"integer"}`, "0|-1|12|9007199254740991", "-0|01|1.0|1e2|9007199254740992|99999999999999999"},
		{`{"type":"integer","minimum":-12,"maximum":105}`, "-12|-9|0|99|105|100", "-13|106|-20|110|1000|-0"},
		{`{"type":"integer","exclusiveMinimum":9,"exclusiveMaximum":21}`, "10|20", "9|21|1|2|3|100"},
		{`{"type":"integer","minimum":3.2,"maximum":1e1}`, "4|10", "3|11|1"},
		{`{"type":"integer","multipleOf":7,"minimum":-20}`, "0|7|14|-14|700", "-21|1|15|-7.0"},
		{`{"type":"integer","multipleOf":1.5}`, "0|3|-6", "1|2|4"},
		{`{"allOf":[{"multipleOf":4},{"multipleOf":6}],"type":"number"}`, "12|24|0", "4|6|18"},
		{`{"type":"number","minimum":-1.25,"exclusiveMaximum":2.5}`, "-1.25|-1.2|0|0.0|2.49|2|2.4999", "-1.26|2.5|2.50|3|-2|-0|25|1e0"},
		{`{"type":"number","minimum":1.25}`, "1.25|1.3|1.250|2", "1.2|1.0|1|1.24"},
		{`{"type":"number","maximum":0}`, "0|0.0|-1|-0.5", "-0|-0.0|0.1|1"},
		{`{"type":"number","minimum":1.2345678901234512}`, "1.23456789012346", "1.23456789012345"},
		{`{"type":"number","maximum":-1.2345678901234512}`, "-1.23456789012346", "-1.23456789012345"},
		{`{"type":"number","maximum":1.2345678901234567}`, "1.23456789012345", "1.23456789012346"},
		{`{"type":"number","exclusiveMinimum":0}`, "0.1|5|0.001|123456.75", "0|0.0|0.00|-1|1e5"},
		{`{"type":"number","exclusiveMinimum":1.2,"maximum":1.3}`, "1.21|1.3|1.30|1.25", "1.2|1.20|1.31|1|2"},
		{`{"type":"number"}`, "0|-1.5|1e5|1.25e+3|1e-99|123456789012345", "1e-100|1234567890123456|1.|1.5e"},

		{`{"enum":["a","ab",1,12,null,{"x":[1, "y"]},1.0]}`, `"a"|"ab"|1|12|1.0|null|{"x":[1,"y"]}|{"x": [1, "y"]}`, `"b"|"abc"|2|123|{"x":[1]}|{"x":[1,"y",2]}|true`},
		{`{"const":2.0}`, "2|2.0", "2.00|20"}, {`{"const":"\"\u0000ä"}`, `"\"\u0000ä"|"\u0022\u0000\u00E4"`, `"\"\u0000"`},
		{`{"const":false}`, "false", "true|0"}, {`{"const":[]}`, "[]", "[1]|{}"}, {`{"const":{}}`, "{}", `{"a":1}`},
		{`{"enum":["aa","b","ccc"],"minLength":2,"type":["string","null"]}`, `"aa"|"ccc"`, `"b"|null`},
		{`{"enum":[1,2,3,"3"],"type":"integer","minimum":2,"multipleOf":3}`, "3", `1|2|"3"`},

		{`{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3}`, "[1]|[1, 2,3]", "[]|[1,2,3,4]|[null]|[1 ,2]|[ 1]"},
		{`{"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"items":{"type":"integer"},"minItems":1}`, "[null]|[null,true]|[null,false,1,2]", "[]|[true]|[null,1]|[null,true,null]"},
		{`{"type":"array","prefixItems":[{"type":"null"},false]}`, "[]|[null]", "[null,null]|[1]"},
		{`{"anyOf":[{"type":"array","prefixItems":[{"type":"string"},{"type":"null"}]},{"type":"array","prefixItems":[{"type":"string"},{"type":"boolean"}]}]}`,
			`["a",null]|["b",true]|[]`, `["a",1]|[1]`},
		{`{"type":"array","items":false}`, "[]", "[1]"},
		{`{"type":"array","uniqueItems":true,"maxItems":1}`, "[]|[1]", "[1,2]"},

		{`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"},"c":{"type":"boolean"}},"required":["b"]}`,
			`{"b":null}|{"a":1, "b": null,"c":true}|{"b":null,"c":false}`, `{}|{"a":1}|{"b":null,"a":1}|{"b":null,"d":1}|{"b":null,"b":null}|{"a":null,"b":null}|{ "b":null}|{"b":null }`},
		{`{"type":"object","properties":{"a":{}},"additionalProperties":{"type":"integer"}}`, `{}|{"a":null}|{"a":"x","b":1,"ab":2}|{"":3}`, `{"b":null}|{"b":1,"a":1}|{"b":1,"b":2}|{"b":1,"\u0062":2}`},
		{`{"type":"object","properties":{"a":false},"additionalProperties":true}`, `{}|{"b":1}|{"aa":1}`, `{"a":1}|{"\u0061":1}`},
		{`{"type":"object","properties":{"a":{},"b":{},"c":{}},"minProperties":2,"maxProperties":2}`, `{"a":1,"b":1}|{"b":1,"c":1}|{"a":1,"c":1}`, `{}|{"a":1}|{"c":1}|{"a":1,"b":1,"c":1}`},
		{`{"type":"object","properties":{"a":{},"b":{},"c":{}},"required":["c"],"maxProperties":2}`, `{"c":1}|{"b":1,"c":1}`, `{"a":1,"b":1}|{"a":1,"b":1,"c":1}`},
		{`{"type":"object","minProperties":1,"maxProperties":2}`, `{"x":1}|{"x":1,"y":2}`, `{}|{"x":1,"y":2,"z":3}`},
		{`{"type":"object","required":["x"]}`, `{"x":1}|{"x":1,"a":2}`, `{}|{"a":2}`},
		{`{"type":"object","properties":{"a":{}},"required":["a","z"],"additionalProperties":{"type":"null"}}`, `{"a":1,"z":null}`, `{"a":1}|{"a":1,"z":1}`},

		{`{"anyOf":[{"type":"object","properties":{"a":{"type":"array","items":{"$ref":"#"}}},"required":["a"]},{"type":"object","properties":{"a":{"type":"null"},"b":{"type":"integer"}}}]}`,
			`{"a":[]}|{"a":[{"a":null,"b":1},{"a":[{}]}]}|{"a":null}|{"b":1}`, `{"a":[],"b":1}|{"a":1}|{"a":[1]}`},
		{`{"oneOf":[{"type":"object","properties":{"k":{"const":"x"},"v":{"type":"integer"}},"required":["k"]},{"type":"object","properties":{"k":{"enum":["y","xy"]},"w":{"type":"null"}}}]}`,
			`{"k":"x","v":1}|{"k":"y","w":null}|{"w":null}|{"k":"xy"}`, `{"k":"x","w":null}|{"k":"y","v":1}|{"v":1}`},
		{`{"oneOf":[{"type":"integer","maximum":3},{"type":"integer","minimum":4,"maximum":9}]}`, "3|4|-1", "10"},
		{`{"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false},{"properties":{"a":{"minimum":5},"b":{"type":"null"}}}]}`, `{"a":5}|{}`, `{"a":4}|{"b":null}`},
		{`{"type":["integer","null","array"],"minimum":3,"maxItems":1}`, "3|null|[{}]", "2|[1,2]|\"\"|{}"},
		{`{"type":"object","properties":{"v":{"type":"integer"},"n":{"$ref":"#"}},"required":["v"]}`, `{"v":1}|{"v":1,"n":{"v":2, "n":{"v":3}}}`, `{"n":{"v":1}}|{"v":1,"n":{}}|{"v":1,"n":null}`},
		{`{"$defs":{"a%b/c~":{"type":"null"}},"$ref":"#/$defs/a%25b~1c~0","title":"t","default":1,"examples":[1],"$id":"x","$schema":"y","$comment":"z","deprecated":true,"readOnly":true,"writeOnly":true}`, "null", "1"},
	} {
		g := must.Get(Compile([]byte(test.schema)))(t)
		for name, v := range vocabularies {
			m := NewMasks(g, v)
			for range 4 {
				r := rand.New(rand.NewPCG(4, rand.Uint64()))
				for _, text := range strings.Split(test.good, "|") {
					if !accepts(r, m, text) {
						t.Errorf("%s: %s does not allow %s", test.schema, name, text)
					}
				}
				for _, text := range strings.Split(test.bad, "|") {
					if accepts(r, m, text) {
						t.Errorf("%s: %s allows %s", test.schema, name, text)
					}
				}
			}
		}
	}
}
