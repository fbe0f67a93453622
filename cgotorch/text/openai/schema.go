package openai

import (
	"encoding/json"
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

// responseFormat takes response_format. It returns nil if answers are free.
func (c *call) responseFormat() (schema json.RawMessage) {
	f := c.in.object("response_format")
	if f == nil {
		return nil
	}
	kind := ""
	if !f.choice("type", &kind, "text", "json_object", "json_schema") {
		f.refuse("type", "it is missing")
	}
	switch kind {
	case "json_object":
		schema = json.RawMessage(`{"type": "object"}`)
	case "json_schema":
		inner, text, strict := f.object("json_schema"), "", false
		if inner == nil {
			f.refuse("json_schema", "it is missing")
			break
		}
		inner.text("name", &text)
		inner.text("description", &text)
		inner.truth("strict", &strict) // answers always keep to the schema
		if schema = inner.take("schema"); schema == nil {
			inner.refuse("schema", "it is missing")
		}
		f.within(inner)
	}
	c.in.within(f)
	return schema
}

// compile compiles the schema of a field, which its error names.
func compile(param string, schema json.RawMessage) (*text.Schema, error) {
	s, err := text.CompileSchema(schema)
	if err != nil {
		return nil, refuse(param, "%v", err)
	}
	return s, nil
}

// mask returns a function for GenerateOptions.Mask that bounds an answer by a schema. `from` tells
// where the bounded part begins, or -1 as long as it is still to come.
func (c *call) mask(schema *text.Schema, from func(answer []int64) int) (func(answer []int64, allowed []bool), error) {
	inner, err := c.model.Decoder.SchemaMask(schema)
	if err != nil {
		return nil, err
	}
	ends := c.model.Decoder.Ends()
	return func(answer []int64, allowed []bool) {
		if c.over() != nil {
			return // nobody waits for the mask any more
		}
		if at := from(answer); at >= 0 {
			inner(answer[at:], allowed)
			return
		}
		for i := range allowed {
			allowed[i] = true
		}
		for _, id := range ends {
			if id >= 0 && id < int64(len(allowed)) { // a folder may name one that the model lacks
				allowed[id] = false
			}
		}
	}, nil
}

// behindThoughts returns a mask that bounds the content of an answer, and leaves its thoughts free.
// `opened` says that the prompt has begun them.
func (c *call) behindThoughts(schema *text.Schema, opened bool) (func(answer []int64, allowed []bool), error) {
	f := &c.model.form
	mask, err := c.mask(schema, func(answer []int64) int { return f.behindThoughts(c.model.Decoder.Tokenizer, answer, opened) })
	if err != nil || f.kind == harmony || !f.thinks() || opened {
		return mask, err
	}
	return func(answer []int64, allowed []bool) {
		if mask(answer, allowed); len(answer) == 0 && f.ids[thinkMark] < int64(len(allowed)) {
			allowed[f.ids[thinkMark]] = true
		}
	}, nil
}

// behindThoughts returns where the content of an answer begins, or -1 if it is still to come.
func (f *form) behindThoughts(t *tokenizer.Tokenizer, answer []int64, opened bool) int {
	if f.kind == harmony {
		channel := -1
		for i, id := range answer {
			switch f.marks[id] {
			case channelMark:
				channel = i
			case messageMark:
				if channel >= 0 && strings.HasPrefix(t.Decode(answer[channel:i]), "final") {
					return i + 1
				}
				channel = -1
			}
		}
		return -1
	}
	if !f.thinks() || !opened && (len(answer) == 0 || f.marks[answer[0]] != thinkMark) {
		return 0
	}
	for i, id := range answer {
		if f.marks[id] == thoughtMark {
			return i + 1
		}
	}
	return -1
}
