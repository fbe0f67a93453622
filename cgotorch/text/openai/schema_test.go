package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/text"
)

const person = `{"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
	"tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}, "required": ["name", "age", "tags"], "additionalProperties": false}`

// fitsPerson checks an answer without a validator.
func fitsPerson(text string) error {
	var p struct {
		Name *string
		Age  *int
		Tags *[]string
	}
	in := json.NewDecoder(strings.NewReader(text))
	in.DisallowUnknownFields()
	if err := in.Decode(&p); err != nil {
		return err
	}
	if p.Name == nil || p.Age == nil || p.Tags == nil || len([]rune(*p.Name)) > 5 || *p.Age < 0 || *p.Age > 120 || len(*p.Tags) > 3 || in.More() {
		return fmt.Errorf("%q does not fit", text)
	}
	return nil
}

// An answer that a schema bounds fits it, behind thoughts, in the last channel of gpt-oss, and
// where the template has begun the thoughts.
func TestChat_ResponseFormat(t *testing.T) {
	for name, marks := range map[string][]string{
		"plain": nil, "thinks": {"<think>", "</think>"},
		"harmony": {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"},
	} {
		t.Run(name, func(t *testing.T) {
			m := decoderOf(t, "tiny", writeModel(t, template, marks...), text.BatcherOptions{})
			s := serveModels(t, Options{}, m)
			whole := 0
			for seed := range 24 {
				variables := ""
				if seed%2 == 1 {
					variables = `, "chat_template_kwargs": {"open": true}`
				}
				bias := ""
				if name == "thinks" { // else a random model thinks for long
					bias = `, "logit_bias": {"259": 8}`
				}
				var r chatResponse
				s.ask("/v1/chat/completions", fmt.Sprintf(`{"model": "tiny", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 400, "temperature": 1, "seed": %d%s%s,
					"response_format": {"type": "json_schema", "json_schema": {"name": "person", "strict": true, "schema": %s}}}`, seed, variables, bias, person), &r)
				c := r.Choices[0]
				if *c.Reason == "length" {
					continue
				}
				if c.Message.Content == nil {
					t.Fatalf("seed %d: the answer has no content: %+v", seed, c.Message)
				}
				whole++
				if err := fitsPerson(*c.Message.Content); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
				if name == "thinks" && seed%2 == 1 && c.Message.Reasoning == "" && r.Usage.Completion > len(*c.Message.Content)+2 {
					t.Errorf("seed %d: the thoughts are gone", seed)
				}
			}
			if name != "harmony" && whole < 20 {
				t.Errorf("only %d of 24 answers are whole", whole)
			}
		})
	}
}

// The bounded part of an answer of gpt-oss begins behind the mark of its last channel.
func TestForm_behindThoughts(t *testing.T) {
	gpt := []string{"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"}
	for _, c := range []struct {
		marks  []string
		answer string
		opened bool
		want   string // what is bounded; "-" means that it is still to come
	}{
		{nil, "abc", false, "abc"},
		{[]string{"<think>", "</think>"}, "abc", false, "abc"},
		{[]string{"<think>", "</think>"}, "<think>abc", false, "-"},
		{[]string{"<think>", "</think>"}, "<think>abc</think>d", false, "d"},
		{[]string{"<think>", "</think>"}, "abc", true, "-"},
		{[]string{"<think>", "</think>"}, "abc</think>d</think>", true, "d</think>"},
		{gpt, "", false, "-"},
		{gpt, "<|channel|>analysis<|message|>final", false, "-"},
		{gpt, "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", false, "b"},
		{gpt, "<|channel|>final <|constrain|>json<|message|>", false, ""},
		{gpt, "final<|message|>b", false, "-"},
	} {
		tok := tokenizerOf(t, c.marks...)
		f := formOf(tok)
		ids := tok.EncodePart(c.answer)
		got := "-"
		if at := f.behindThoughts(tok, ids, c.opened); at >= 0 {
			got = ""
			for _, id := range ids[at:] {
				name, _ := tok.Token(id)
				got += name
			}
		}
		if got != c.want {
			t.Errorf("%q: %q is bounded, want %q", c.answer, got, c.want)
		}
	}
}

// A schema that cannot be kept is refused, with the keyword.
func TestChat_SchemaRefused(t *testing.T) {
	m := decoderOf(t, "tiny", writeModel(t, template, "<tool_call>", "</tool_call>"), text.BatcherOptions{})
	s := serveModels(t, Options{}, m)
	for body, want := range map[string]string{
		`"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}`:                                                        "not",
		`"response_format": {"type": "json_object"}, "tools": [` + clock + `]`:                                                                                   "cannot call functions",
		`"tool_choice": "required", "tools": [` + clock + `, {"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/$defs/a", "$defs": {}}}}]`: "$ref",
		`"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [` + clock + `]`:                                                               `no function \"g\"`,
	} {
		status, got := s.post("/v1/chat/completions", `{"model": "tiny", "messages": [{"role": "user", "content": "a"}], `+body+`}`)
		if status != 400 || !strings.Contains(got, want) {
			t.Errorf("%s: %d %s", body, status, got)
		}
	}
}
