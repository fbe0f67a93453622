package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// mostTools bounds the functions of a request.
const mostTools = 256

// tool is a function that the model may call.
type tool struct {
	name       string
	parameters json.RawMessage // a schema; nil if it takes none
}

// tools takes the functions and tool_choice. It returns them as the template reads them, and as a
// list of those that the model may call. With `forced` it must call one of them.
func (c *call) tools() (raw json.RawMessage, list []tool, forced bool) {
	raw = c.in.all["tools"]
	c.weigh(raw)
	for i, one := range c.in.list("tools", mostTools) {
		f, err := newFields(fmt.Sprintf("tools[%d]", i), one)
		if err != nil {
			c.in.keep(err)
			return nil, nil, false
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
			if t.parameters = function.take("parameters"); t.parameters != nil && !strings.ContainsRune("{tf", rune(t.parameters[0])) {
				function.refuse("parameters", "want a JSON schema, which is an object, true or false, got %s", short(t.parameters))
			}
			function.ignore("strict") // it binds with tool_choice alone
			f.within(function)
		} else {
			f.refuse("function", "it is missing")
		}
		c.in.within(f)
		list = append(list, t)
	}
	if len(list) == 0 {
		raw = nil
	}
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

// toolChoice takes tool_choice. It returns what [call.tools] returns.
func (c *call) toolChoice(raw json.RawMessage, list []tool) (_ json.RawMessage, _ []tool, forced bool) {
	mode := ""
	if choice := c.in.all["tool_choice"]; choice != nil && choice[0] == '{' {
		f, kind, name := c.in.object("tool_choice"), "", ""
		f.choice("type", &kind, "function")
		if function := f.object("function"); function != nil {
			function.text("name", &name)
			f.within(function)
		}
		c.in.within(f)
		for _, t := range list {
			if t.name == name {
				list, forced = []tool{t}, true
			}
		}
		if !forced {
			c.in.refuse("tool_choice", "there is no function %q in tools", name)
		}
	} else if c.in.choice("tool_choice", &mode, "none", "auto", "required") {
		switch forced = mode == "required"; {
		case mode == "none":
			return nil, nil, false
		case forced && len(list) == 0:
			c.in.refuse("tool_choice", "it is %q, and there are no tools", mode)
		}
	}
	if len(list) > 0 && c.model.form.kind == noCalls {
		c.in.refuse("tools", "the model %q has no form of calls that is known here: those of Qwen, Hermes, Mistral, Llama 3 and gpt-oss are", c.model.Name)
	}
	return raw, list, forced
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
