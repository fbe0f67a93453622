package jsonschema

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

// A vocabulary that lacks a byte cannot complete every value.
func TestNewVocabulary_Lacks(t *testing.T) {
	for _, b := range []byte(needed) {
		tokens := byteTokens(string(b) + "x")
		tokens[b] = nil
		if _, err := NewVocabulary(tokens); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", b)) {
			t.Errorf("without %q: %v", b, err)
		}
	}
}

// Without tokens for all bytes, no token may end within a character, because nothing might go on.
func TestNewVocabulary_Pieces(t *testing.T) {
	v := must.Get(NewVocabulary(pieces()))(t)
	m := NewMasks(must.Get(Compile([]byte(`{"const":"流ö"}`)))(t), v)
	r := rand.New(rand.NewPCG(1, 1))
	seen := map[string]bool{}
	for range 200 {
		text, ok := write(t, r, m, 100)
		if seen[text] = true; !ok || strings.Contains(text, "\xe6\xb5\"") {
			t.Fatalf("got %q", text)
		}
	}
	if !seen[`"流\u00f6"`] && !seen[`"流\u00F6"`] || seen[`"流ö"`] {
		t.Errorf("got %v", seen)
	}
}

// What stands around a value and how many characters are left changes no more than it must: masks
// equal those of a walk with each token alone.
func TestMasks_EqualWalks(t *testing.T) {
	for name, v := range vocabularies(t) {
		for _, schema := range []string{
			`{"type":"array","items":{"anyOf":[{"type":"string","minLength":3,"maxLength":9},{"type":"number"},{"type":"object","properties":{"a":{"type":"string","maxLength":40}},"additionalProperties":true}]},"maxItems":4}`,
			`{}`, `{"anyOf":[{"type":"array","items":{"type":"string","maxLength":3}},{"type":"array","items":{"type":"string","minLength":2}},{"type":"array","items":{"type":"array","items":{"type":"string","pattern":"^a*$"}}}]}`,
		} {
			m := NewMasks(must.Get(Compile([]byte(schema)))(t), v)
			r := rand.New(rand.NewPCG(2, 3))
			for range 40 {
				s := m.start(false)
				for range 60 {
					mask := m.maskOf(s)
					var some []int
					for id, b := range v.bytes {
						to := s
						for _, b := range b {
							to = m.step(to, b)
						}
						want := len(b) > 0 && to.alive()
						if got := mask[id>>6]>>(id&63)&1 != 0; got != want {
							t.Fatalf("%s, %s: %q is allowed: %v, want %v", name, schema, b, got, want)
						}
						if want {
							some = append(some, id)
						}
					}
					if len(some) == 0 {
						break
					}
					for _, b := range v.bytes[some[r.IntN(len(some))]] {
						s = m.step(s, b)
					}
				}
			}
		}
	}
}

// Texts that nest deep, and many ways of reading one, take little time and memory.
func TestMasks_Hostile(t *testing.T) {
	v := vocabularies(t)["straddling"]
	for name, test := range map[string]struct{ schema, text string }{
		"depth": {`{}`, strings.Repeat(`[{"a":`, 20_000)},
		"two ways at each level": {`{"$defs":{"a":{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]}},"b":{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/b"},{"$ref":"#/$defs/a"},{"type":"null"}]}}},
			"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]}`, strings.Repeat(`[`, 10_000) + strings.Repeat("]", 10_000)},
		"many branches": {`{"anyOf":[` + strings.TrimSuffix(strings.Repeat(`{"type":"array","items":{"type":"array","items":{"type":"string","maxLength":N}}},`, 400), ",") + `]}`, `[["` + strings.Repeat("a", 500)},
		"many keys":     {`{}`, `{` + strings.Repeat(`"N":1,`, 3000)},
		"long string":   {`{"type":"string","minLength":60000,"maxLength":100000}`, `"` + strings.Repeat("流", 70_000)},
	} {
		for n := 1; strings.Contains(test.schema, "N"); n++ {
			test.schema = strings.Replace(test.schema, "N}", fmt.Sprint(n+100, "}"), 1)
		}
		for n := 1; strings.Contains(test.text, "N"); n++ {
			test.text = strings.Replace(test.text, "N", fmt.Sprint(n), 1)
		}
		began := time.Now()
		m := NewMasks(must.Get(Compile([]byte(test.schema)))(t), v)
		var tokens []int64
		for i := range len(test.text) {
			tokens = append(tokens, int64(test.text[i]))
		}
		answer := m.NewAnswer([]int64{end}, false)
		allowed := make([]bool, len(v.bytes))
		for n := 0; n <= len(tokens); n += max(1, len(tokens)/50) {
			clear(allowed)
			if answer.Fill(tokens[:n], allowed); !slices.Contains(allowed, true) {
				t.Fatalf("%s: nothing is allowed behind %d bytes", name, n)
			}
		}
		spent := time.Since(began)
		if t.Logf("%s: %v, %d MiB", name, spent.Round(time.Millisecond), v.used.Load()>>20); spent > 20*time.Second {
			t.Errorf("%s took %v", name, spent)
		}
	}
}

// Caches that are full are dropped, also in the middle of an answer.
func TestMasks_FullCache(t *testing.T) {
	v := vocabularies(t)["straddling"]
	m := NewMasks(must.Get(Compile([]byte(`{"type":"array","items":{"type":"array","items":{"type":"string"},"maxItems":100},"maxItems":100}`)))(t), v)
	other := NewMasks(m.g, v)
	r := rand.New(rand.NewPCG(1, 2))
	answer, again, tokens := m.NewAnswer(nil, false), other.NewAnswer(nil, false), []int64{}
	drops := 0
	for range 500 {
		allowed, want := make([]bool, len(v.bytes)), make([]bool, len(v.bytes))
		if r.IntN(5) == 0 {
			m.cost.add(mostCache)
			drops++
		}
		if answer.Fill(tokens, allowed); m.cost.own > mostCache/2 {
			t.Fatalf("the cache has %d bytes", m.cost.own)
		}
		if s := answer.state; len(s.entries) > 0 && m.intern(slices.Clone(s.entries), s.final) != s {
			t.Fatal("an answer holds old caches")
		}
		if again.Fill(tokens, want); !slices.Equal(allowed, want) {
			t.Fatalf("other tokens are allowed behind %d tokens", len(tokens))
		}
		id := int64(r.IntN(len(v.bytes)))
		for tries := 0; !allowed[id] || v.bytes[id][0] == ']' && tries < 2*len(v.bytes); tries++ { // ] only where nothing else may come
			id = (id + 1) % int64(len(v.bytes))
		}
		if tokens = append(tokens, id); answer.state.final {
			break
		}
	}
	if drops < 10 {
		t.Errorf("%d drops", drops)
	}
}

// Behind each token that is allowed, another one or the end is. Keys that have come are the hard
// case.
func TestAnswer_NoDeadEnd(t *testing.T) {
	v := vocabularies(t)["straddling"]
	for schema, texts := range map[string]string{
		`{}`: `|{|{"a":1,|{"a":1,"a|{"a":1,"|{"a":1,"\u0061|{"a":1,"\u006|{"a":{"b":1|[{"a":1},{"a|{"a":1,"b":2|{"a\"":1,"a\|"a|{"a":{"a":"x|{"":1,`,
		`{"type":"object","properties":{"a":{"type":"null"}},"additionalProperties":{"type":"string","maxLength":2}}`: `{|{"b":"|{"a":null,|{"ab":"x","a|{"b":"x","b|{"b":"x"`,
	} {
		m := NewMasks(must.Get(Compile([]byte(schema)))(t), v)
		for _, text := range strings.Split(texts, "|") {
			var tokens []int64
			for i := range len(text) {
				tokens = append(tokens, int64(text[i]))
			}
			allowed := make([]bool, len(v.bytes))
			m.NewAnswer([]int64{end}, false).Fill(tokens, allowed)
			some := 0
			for id, ok := range allowed {
				if !ok {
					continue
				}
				next := make([]bool, len(v.bytes))
				m.NewAnswer([]int64{end}, false).Fill(append(slices.Clone(tokens), int64(id)), next)
				if some++; !slices.Contains(next, true) {
					t.Errorf("%s: behind %s, %q is allowed, and nothing behind it", schema, text, v.bytes[id])
				}
			}
			if some == 0 {
				t.Errorf("%s: nothing is allowed behind %s", schema, text)
			}
		}
	}
}
