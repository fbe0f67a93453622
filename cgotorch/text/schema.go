package text

import (
	"fmt"
	"slices"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text/internal/jsonschema"
)

// Schema is a JSON schema that answers are to fit. It does not change, so models and goroutines may
// share it.
type Schema struct {
	document string
	grammar  *jsonschema.Grammar
}

// CompileSchema reads a JSON schema. It fails with [cgotorch.ErrInvalidArgument] for a damaged
// document, for a schema that no value fits, and for a keyword that it cannot keep. No keyword is
// ignored, apart from those that only describe. The error names the JSON pointer of the keyword.
//
// It knows type, enum, const, properties, required, additionalProperties, minProperties,
// maxProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern, format,
// minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, anyOf, allOf, oneOf and $ref.
// A pattern has neither a look around nor a back-reference. A format is date, time, date-time,
// uuid, ipv4, email or uri. Of a oneOf, no value may fit two branches: by their types, by
// constants, or by a required property with different constants. A $ref names a place in the
// document.
func CompileSchema(document []byte) (*Schema, error) {
	g, err := jsonschema.Compile(document)
	if err != nil {
		return nil, fmt.Errorf("text: schema: %w: %w", err, cgotorch.ErrInvalidArgument)
	}
	return &Schema{string(document), g}, nil
}

// SchemaMask returns a function for [GenerateOptions].Mask of one answer. The answer then is a JSON
// value that fits the schema. The model may end the answer only behind the value, and nothing else
// comes there. An answer that MaxTokens cuts is not whole: its last Reason is "length".
//
// The value's keys come in the order of properties, and other keys only if additionalProperties
// says so or properties is absent. There is no white space but single spaces behind colons and
// commas. Integers are up to 2^53-1 in magnitude. Other numbers have up to 15 digits.
//
// A program may call the function by itself, with the tokens of the bound part of an answer alone,
// such as those behind a model's thoughts. It sets allowed for each token that may come next, and
// expects all false before. Each call is right by itself. A call is fast if its answer goes on from
// that of the last call. All functions of a model may run at once.
//
// SchemaMask fails with [cgotorch.ErrInvalidArgument] if the model has no token for the end, or no
// tokenizer. It fails too if tokens do not tell their bytes, as [tokenizer.Tokenizer.Bytes] says,
// and if a sign that JSON needs is no token.
func (m *Model) SchemaMask(s *Schema) (func(answer []int64, allowed []bool), error) {
	masks, err := m.schemas.masks(m, s)
	if err != nil {
		return nil, err
	}
	return masks.NewAnswer(m.eos, m.schemas.space).Fill, nil
}

// mostSchemas is how many schemas' masks a model keeps for later answers.
const mostSchemas = 64

// schemaMasks keeps the masks of a model's recent schemas, and the bytes of its tokens.
type schemaMasks struct {
	mu         sync.Mutex
	vocabulary *jsonschema.Vocabulary
	space      bool         // a text's first token has a space that is no part of the text
	recent     []schemaMask // the last one was used last
}

// schemaMask has the masks of one schema.
type schemaMask struct {
	document string
	masks    *jsonschema.Masks
}

// masks returns the masks of a schema, known or new ones.
func (c *schemaMasks) masks(m *Model, s *Schema) (*jsonschema.Masks, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.vocabulary == nil {
		if err := c.open(m); err != nil {
			return nil, err
		}
	}
	at := slices.IndexFunc(c.recent, func(k schemaMask) bool { return k.document == s.document })
	found := schemaMask{document: s.document}
	if at >= 0 {
		found = c.recent[at]
		c.recent = slices.Delete(c.recent, at, at+1)
	} else {
		found.masks = jsonschema.NewMasks(s.grammar, c.vocabulary)
	}
	c.recent = append(c.recent, found)
	if len(c.recent) > mostSchemas {
		c.recent = slices.Delete(c.recent, 0, 1)
	}
	return found.masks, nil
}

// open reads the bytes of the model's tokens.
func (c *schemaMasks) open(m *Model) error {
	switch {
	case m.Tokenizer == nil:
		return refused("a schema needs a tokenizer, and %s has neither tokenizer.json nor tekken.json", m.folder)
	case len(m.eos) == 0:
		return refused("a schema needs a token that ends an answer, and %s names none: set eos_token_id", m.folder)
	}
	tokens, some := make([][]byte, m.d.c.vocab), false
	for id := range tokens {
		if slices.Contains(m.eos, int64(id)) {
			continue
		}
		if b, ok := m.Tokenizer.Bytes(int64(id)); ok {
			tokens[id], some = b, true
		}
	}
	if !some {
		return refused("a schema needs tokens that tell their bytes, and the decoder of %s joins words", m.tokensFolder)
	}
	v, err := jsonschema.NewVocabulary(tokens)
	if err != nil {
		return refused("the tokenizer of %s fits no schema: %v", m.tokensFolder, err)
	}
	if ids := m.Tokenizer.EncodePart("{"); len(ids) > 0 {
		first, _ := m.Tokenizer.Bytes(ids[0])
		c.space = len(first) > 0 && first[0] == ' '
	}
	c.vocabulary = v
	return nil
}
