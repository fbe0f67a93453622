package openai

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

// mostMessages bounds the messages of a chat, the parts of one, and its calls.
const mostMessages = 4096

// messages takes the messages of a chat.
func (c *call) messages() (list []tokenizer.Message) {
	raws := c.in.list("messages", mostMessages)
	if len(raws) == 0 && c.in.err == nil {
		c.in.refuse("messages", "want a list of at least one message")
	}
	names := map[string]string{}
	for i, raw := range raws {
		f, err := newFields(fmt.Sprintf("messages[%d]", i), raw)
		var m tokenizer.Message
		if err == nil {
			m, err = c.message(f, names)
		}
		if c.in.keep(err); c.in.err != nil {
			return nil
		}
		list = append(list, m)
	}
	return list
}

// message reads a message. `names` are those of functions, by the id of a call: a message adds its
// calls, and one of a tool finds its function.
func (c *call) message(f *fields, names map[string]string) (m tokenizer.Message, err error) {
	if !f.choice("role", &m.Role, "system", "developer", "user", "assistant", "tool") {
		f.refuse("role", "it is missing: want system, developer, user, assistant or tool")
	}
	given := f.all["content"] != nil
	m.Content = content(f)
	if !given && m.Role != "assistant" {
		f.refuse("content", "it is missing")
	}
	f.text("name", &m.Name)
	switch m.Role {
	case "developer":
		if c.model.form.kind != harmony { // other templates know no developer
			m.Role = "system"
		}
	case "assistant":
		f.text("reasoning_content", &m.Reasoning)
		if refusal := ""; f.text("refusal", &refusal) && m.Content == "" {
			m.Content = refusal
		}
		c.weigh(f.all["tool_calls"])
		m.ToolCalls = toolCalls(f, c.model.form.kind, names)
		f.ignore("annotations", "parsed") // what clients add to an answer, which comes back in the history
		f.neutral("audio")
		f.neutral("function_call")
	case "tool":
		f.text("tool_call_id", &m.ToolCallID)
		m.ToolCallID = callID(c.model.form.kind, m.ToolCallID)
		if m.Name == "" {
			m.Name = names[m.ToolCallID] // some templates write it
		}
	}
	return m, f.done()
}

// content takes the content of a message: a text, or a list of parts that are texts.
func content(f *fields) string {
	raw := f.all["content"]
	if raw == nil || raw[0] != '[' {
		text := ""
		f.text("content", &text)
		return text
	}
	var whole strings.Builder
	for i, raw := range f.list("content", mostMessages) {
		part, err := newFields(fmt.Sprintf("%s[%d]", f.path("content"), i), raw)
		if err == nil {
			kind, text := "", ""
			if part.text("type", &kind); kind == "refusal" {
				part.text("refusal", &text)
			} else if kind != "text" {
				part.refuse("type", "is %q, and models here read texts alone", kind)
			}
			part.text("text", &text)
			part.ignore("prompt_cache_breakpoint")
			whole.WriteString(text)
			err = part.done()
		}
		if err != nil {
			f.keep(err)
			break
		}
	}
	return whole.String()
}

// toolCall is a call of a function as templates read it.
type toolCall struct {
	ID       string `json:"id,omitempty"`
	Type     string `json:"type"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"` // an object
	} `json:"function"`
}

// callID returns the id of a call as templates take it. Those of Mistral refuse ids of other
// servers.
func callID(kind formKind, id string) string {
	other := func(c rune) bool { return c > 'z' || !unicode.IsLetter(c) && !unicode.IsDigit(c) }
	if kind != mistral || id == "" || len(id) == 9 && !strings.ContainsFunc(id, other) {
		return id
	}
	hash := sha256.Sum256([]byte(id))
	return hex.EncodeToString(hash[:])[:9]
}

// toolCalls takes the calls of an assistant's message, whose arguments are texts that hold objects.
func toolCalls(f *fields, kind formKind, names map[string]string) json.RawMessage {
	var calls []toolCall
	for i, raw := range f.list("tool_calls", mostMessages) {
		in, err := newFields(fmt.Sprintf("%s[%d]", f.path("tool_calls"), i), raw)
		if err != nil {
			f.keep(err)
			return nil
		}
		call := toolCall{Type: "function"}
		in.text("id", &call.ID)
		call.ID = callID(kind, call.ID)
		in.choice("type", &call.Type, "function")
		in.ignore("index")
		if function := in.object("function"); function != nil {
			arguments := "{}"
			if !function.text("name", &call.Function.Name) {
				function.refuse("name", "it is missing")
			}
			function.text("arguments", &arguments)
			function.ignore("parsed_arguments") // of Python's client
			made, ok := functionOf(call.Function.Name, arguments, true)
			if call.Function.Arguments = json.RawMessage(made.arguments); !ok {
				function.refuse("arguments", "want a text that is a JSON object, got %s", short([]byte(arguments)))
			}
			in.within(function)
		} else {
			in.refuse("function", "it is missing")
		}
		if f.within(in); f.err != nil {
			return nil
		}
		names[call.ID] = call.Function.Name
		calls = append(calls, call)
	}
	if calls == nil {
		return nil
	}
	if len(calls) > 1 {
		delete(names, "") // a result without an id may be of any of them
	}
	text, err := json.Marshal(calls)
	f.keep(err)
	return text
}
