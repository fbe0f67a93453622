package jsonschema

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/schematest"
)

const end = 0 // the token of the end: byte 0 is never allowed by itself

// write writes a value of tokens that are drawn among those that are allowed. It fails where none
// is, and returns false if the value does not end.
func write(t *testing.T, r *rand.Rand, m *Masks, most int) (text string, ok bool) {
	t.Helper()
	answer := m.NewAnswer([]int64{end}, r.IntN(2) == 0)
	var tokens []int64
	allowed := make([]bool, len(m.v.bytes))
	for len(tokens) < most {
		clear(allowed)
		answer.Fill(tokens, allowed)
		var some []int64
		for id, ok := range allowed {
			if ok {
				some = append(some, int64(id))
			}
		}
		if len(some) == 0 {
			t.Fatalf("no token is allowed behind %q", text)
		}
		id := some[r.IntN(len(some))]
		if len(tokens) > most/4 { // what ends a value comes oftener
			for range 20 {
				if b := m.v.bytes[id]; id == end || len(b) > 0 && (b[0] == '"' || b[0] == ']' || b[0] == '}') {
					break
				}
				id = some[r.IntN(len(some))]
			}
		}
		if id == end {
			return text, true
		}
		tokens, text = append(tokens, id), text+string(m.v.bytes[id])
	}
	return text, false
}

// Whatever is drawn among the allowed tokens is a value that fits, says another library.
func TestMasks_RandomSchemas(t *testing.T) {
	all := 1000
	if testing.Short() {
		all = 300
	}
	vocabularies := vocabularies(t)
	refused, cut, values := map[string]int{}, 0, 0
	for seed := range uint64(all) {
		r := rand.New(rand.NewPCG(20, seed))
		schema := schematest.Random(r)
		fits := must.Get(schematest.Validator(schema))(t)
		g, err := Compile([]byte(schema))
		if err != nil {
			refused[err.Error()]++
			continue
		}
		for name, v := range vocabularies {
			m := NewMasks(g, v)
			for range 3 {
				text, ok := write(t, r, m, 1000)
				if t.Failed() {
					t.Fatal(schema)
				}
				if values++; !ok {
					cut++
					continue
				}
				if err := fits(text); err != nil {
					t.Fatalf("schema %d with %s: %s\ngave %s\n%v", seed, name, schema, text, err)
				}
			}
		}
	}
	t.Logf("%d values, %d cut, %d schemas refused", values, cut, len(refused))
	if cut*50 > values || len(refused)*5 > all {
		t.Errorf("%d of %d values are cut, and %d of %d schemas refused: %v", cut, values, len(refused), all, fmt.Sprint(refused))
	}
}
