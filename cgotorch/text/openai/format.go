package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

// mostTools bounds the functions of a request.
const mostTools = 256

// tool is a function that the model may call.
type tool struct {
	name       string
	parameters json.RawMessage // a schema; nil if it takes none
}

// tools takes the functions, and which of them must be called: forced is "" if the model chooses,
// "required" if it must call one, or "function" if it must call the only one of the list.
func (c *call) tools() (raw json.RawMessage, list []tool, forced string) {
	raw = c.in.all["tools"]
	c.weigh(raw)
	for i, one := range c.in.list("tools", mostTools) {
		f, err := newFields(fmt.Sprintf("tools[%d]", i), one)
		if err != nil {
			c.in.err = err
			return nil, nil, ""
		}
		kind, t, text := "", tool{}, ""
		if !f.choice("type", &kind, "function") {
			f.refuse("type", `it is missing: want "function"`)
		}
		if function := f.object("function"); function != nil {
			if !function.text("name", &t.name) || t.name == "" {
				function.refuse("name", "it is missing")
			}
			t.check(function, list)
			function.text("description", &text)
			t.parameters = function.take("parameters")
			function.ignore("strict") // it binds with tool_choice alone
			f.within(function)
		} else {
			f.refuse("function", "it is missing")
		}
		if err := f.done(); err != nil && c.in.err == nil {
			c.in.err = err
		}
		list = append(list, t)
	}
	if len(list) == 0 {
		raw = nil
	}
	c.in.ignore("parallel_tool_calls") // see chat
	return c.toolChoice(raw, list)
}

// check refuses a name that answers could not tell from the text around it, and one that another
// function has.
func (t tool) check(function *fields, list []tool) {
	if strings.ContainsFunc(t.name, func(c rune) bool {
		return !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("_-.:/", c)
	}) {
		function.refuse("name", "is %q: want letters, digits and any of _-.:/ alone", t.name)
	}
	for i, other := range list {
		if other.name == t.name {
			function.refuse("name", "is %q, as that of tools[%d]: give each function a name of its own", t.name, i)
		}
	}
}

// toolChoice takes tool_choice.
func (c *call) toolChoice(raw json.RawMessage, list []tool) (json.RawMessage, []tool, string) {
	forced := ""
	if choice := c.in.all["tool_choice"]; choice != nil && choice[0] == '{' {
		f, kind, name := c.in.object("tool_choice"), "", ""
		f.choice("type", &kind, "function")
		if function := f.object("function"); function != nil {
			function.text("name", &name)
			f.within(function)
		}
		if err := f.done(); err != nil && c.in.err == nil {
			c.in.err = err
		}
		for _, t := range list {
			if t.name == name {
				list, forced = []tool{t}, "function"
			}
		}
		if forced == "" {
			c.in.refuse("tool_choice", "there is no function %q in tools", name)
		}
	} else if c.in.choice("tool_choice", &forced, "none", "auto", "required") {
		switch {
		case forced == "none":
			return nil, nil, ""
		case forced == "auto":
			forced = ""
		case len(list) == 0:
			c.in.refuse("tool_choice", "it is %q, and there are no tools", forced)
		}
	}
	if len(list) > 0 && c.model.form.kind == noCalls {
		c.in.refuse("tools", "the model %q has no form of calls that is known here: those of Qwen, Hermes, Mistral, Llama 3 and gpt-oss are", c.model.Name)
	}
	return raw, list, forced
}

// schemaOf takes response_format. It is nil if answers are free.
func (c *call) schemaOf() (schema json.RawMessage) {
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
	if err := f.done(); err != nil && c.in.err == nil {
		c.in.err = err
	}
	return schema
}

// forcedCall is a call that an answer has to be.
type forcedCall struct {
	begin  string // is part of the prompt
	name   string // of the function; "" if the answer names it
	schema json.RawMessage
}

// arguments returns the schema of a function's arguments, which are an object always.
func (t tool) arguments() (json.RawMessage, error) {
	var fields map[string]json.RawMessage
	var kind string
	switch text := string(t.parameters); {
	case t.parameters == nil:
		return json.RawMessage(`{"type": "object", "properties": {}, "additionalProperties": false}`), nil
	case text == "true" || json.Unmarshal(t.parameters, &fields) == nil && len(fields) == 0:
		return json.RawMessage(`{"type": "object"}`), nil
	case fields == nil:
		return nil, fmt.Errorf("want the schema of an object, got %s", short(t.parameters))
	case fields["type"] == nil:
		return json.RawMessage(`{"type": "object", ` + text[1:]), nil
	case json.Unmarshal(fields["type"], &kind) != nil || kind != "object":
		return nil, fmt.Errorf(`the type is %s: want "object", because arguments are one`, short(fields["type"]))
	}
	return t.parameters, nil
}

// force returns the call of one of some functions. `opened` says that the prompt has begun
// thoughts.
func (c *call) force(list []tool, opened bool) (f forcedCall, err error) {
	kind, field := c.model.form.kind, "arguments"
	if kind == llama {
		field = "parameters"
	}
	f.begin = map[formKind]string{hermes: callMark + "\n", mistral: callsMark + "["}[kind]
	if opened {
		f.begin = "\n" + thoughtMark + "\n\n" + f.begin
	}
	if len(list) == 1 {
		if f.schema, err = list[0].arguments(); err != nil {
			return f, refuse("tools", "function %q: parameters: %v", list[0].name, err)
		}
		f.name = list[0].name
		if kind == harmony {
			f.begin = channelMark + "commentary to=functions." + f.name + " " + constrainMark + "json" + messageMark
			return f, nil
		}
		if _, newer := c.model.form.ids[argumentsMark]; kind == mistral && newer {
			f.begin = strings.TrimSuffix(f.begin, "[") + f.name + argumentsMark
			return f, nil
		}
		name, err := marshal(f.name)
		f.begin += fmt.Sprintf(`{"name": %s, %q: `, name, field)
		return f, err
	}
	if kind == harmony {
		return f, refuse("tool_choice", "this model must be told which function: name it")
	}
	var branches []any
	for i, t := range list {
		at := fmt.Sprintf("tools[%d].function.parameters", i)
		parameters, err := t.arguments()
		if err != nil {
			return f, refuse(at, "%v", err)
		}
		if bytes.Contains(parameters, []byte(`"$ref"`)) { // it counts from the root of the function's schema
			return f, refuse(at, `it has a $ref: name one function in tool_choice, or put the definition in its place`)
		}
		branches = append(branches, map[string]any{
			"type": "object", "required": []string{"name", field}, "additionalProperties": false,
			"properties": ordered{{"name", map[string]string{"const": t.name}}, {field, parameters}},
		})
	}
	f.schema, err = marshal(map[string]any{"anyOf": branches})
	return f, err
}

// ordered is an object whose fields have an order.
type ordered []struct {
	name  string
	value any
}

// MarshalJSON writes the object.
func (o ordered) MarshalJSON() ([]byte, error) {
	var text strings.Builder
	for i, f := range o {
		name, err := marshal(f.name)
		if err != nil {
			return nil, err
		}
		value, err := marshal(f.value)
		if err != nil {
			return nil, err
		}
		text.WriteByte("{,"[min(i, 1)])
		text.Write(name)
		text.WriteByte(':')
		text.Write(value)
	}
	text.WriteByte('}')
	return []byte(text.String()), nil
}

// compile compiles a schema of a field.
func compile(param string, schema json.RawMessage) (*text.Schema, error) {
	s, err := text.CompileSchema(schema)
	if err != nil {
		return nil, refuse(param, "%v", err)
	}
	return s, nil
}

// mask bounds an answer by a schema, from the place on that `from` tells. It is -1 as long as the
// bounded part is still to come.
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

// behindThoughts bounds the content of an answer, and leaves its thoughts free. `opened` says that
// the prompt has begun them.
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
