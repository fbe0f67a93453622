package jsonschema

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/schematest"
)

// No document makes Compile panic or take long. Masks of what it compiles lead to no dead end, and
// what they write fits.
func FuzzCompileSchema(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(schematest.Random(rand.New(rand.NewPCG(9, seed))))
	}
	for _, schema := range []string{`{}`, `{"type":"string","pattern":"^(a|[^b-d\\s]{2,3})+$|x"}`, `{"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{}]},"b":{"items":{"$ref":"#/$defs/a"}}},"$ref":"#/$defs/b"}`,
		`{"allOf":[{"$ref":"#/properties/a"}],"properties":{"a":{"type":"object","additionalProperties":{"minimum":1e2,"maximum":1e-2}}}}`, `{"format":"email"}`, `{"format":"uri"}`} {
		f.Add(schema)
	}
	vocabulary := vocabularies(f)["straddling"]
	f.Fuzz(func(t *testing.T, schema string) {
		began := time.Now()
		g, err := Compile([]byte(schema))
		if spent := time.Since(began); spent > 20*time.Second {
			t.Fatalf("Compile took %v", spent)
		}
		if err != nil {
			return
		}
		text, ok := write(t, rand.New(rand.NewPCG(1, uint64(len(schema)))), NewMasks(g, vocabulary), 100)
		if spent := time.Since(began); spent > 30*time.Second {
			t.Fatalf("an answer took %v", spent)
		}
		if fits, err := schematest.Validator(schema); err == nil && ok {
			if err := fits(text); err != nil {
				t.Errorf("%s gave %s: %v", schema, text, err)
			}
		}
	})
}
