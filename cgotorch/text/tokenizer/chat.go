package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer/internal/jinja"
)

// Message is one turn of a chat. Its JSON has the fields of OpenAI's interface.
type Message struct {
	Role      string `json:"role"` // system, developer, user, assistant, tool, or what the template knows
	Content   string `json:"content"`
	Reasoning string `json:"reasoning_content,omitempty"` // thoughts before an answer

	// ToolCalls is a JSON list of calls, each {"type": "function", "function": {"name", "arguments"}}.
	// The template gets the list as it is. Most templates want arguments as an object. Some want
	// them as a text that holds the object, such as DeepSeek's.
	ToolCalls  json.RawMessage `json:"tool_calls,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"` // of a tool's result
	Name       string          `json:"name,omitempty"`         // of the tool, or of who speaks
}

// ChatOptions tells how a chat becomes a text.
type ChatOptions struct {
	Tools     json.RawMessage // a JSON list of functions that the model may call; nil for none
	NoPrompt  bool            // leave out the beginning of the answer, at which the model goes on
	Continue  bool            // the model goes on with the last message, which ends in its midst
	Variables map[string]any  // further variables of the template, such as enable_thinking; written as JSON
	Template  string          // a Jinja template, or the name of one of the folder's; "" for the folder's
	Now       time.Time       // for templates that tell the date; zero means the clock
}

// Chat returns a chat as the text that the model was trained on. The chat template of the folder
// writes it, as Hugging Face's transformers does. [Tokenizer.EncodePart] makes its tokens, because
// the template has written those around the text.
//
// The template is chat_template.jinja beside the tokenizer's file, a file of
// additional_chat_templates, or chat_template in tokenizer_config.json. With tools, a template of
// the name tool_use is preferred. A template cannot read files. It may take 5 million steps, about
// half a second, and make texts of 128 MiB.
//
// Chat fails if the template refuses the chat, and its message is then part of the error. It fails
// with [ErrFormat] for a damaged template or file, and with [ErrNoTemplate] if there is none.
func (t *Tokenizer) Chat(messages []Message, o ChatOptions) (string, error) {
	if len(messages) == 0 {
		return "", errors.New("tokenizer: a chat wants at least one message")
	}
	files, err := t.chat()
	if err != nil {
		return "", fmt.Errorf("tokenizer: %w", err)
	}
	name, source, err := files.choose(o)
	if err != nil {
		return "", fmt.Errorf("tokenizer: %w", err)
	}
	variables, err := files.variables(messages, o)
	if err != nil {
		return "", fmt.Errorf("tokenizer: %w", err)
	}
	parsed, err := jinja.Parse(source)
	if err != nil {
		return "", fmt.Errorf("tokenizer: %s: %w: %w", name, ErrFormat, err)
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	text, err := parsed.Render(variables, o.Now)
	if err == nil && o.Continue {
		text, err = unfinished(text, messages[len(messages)-1].Content)
	}
	if err != nil {
		return "", fmt.Errorf("tokenizer: %s: %w", name, err)
	}
	return text, nil
}

// midst marks the end of a message that the model goes on with.
const midst = "CONTINUE_FINAL_MESSAGE_TAG "

// unfinished cuts a text behind the content of its last message, which midst ends.
func unfinished(text, content string) (string, error) {
	mark := strings.TrimSpace(midst)
	i := strings.LastIndex(text, mark)
	if i < 0 || !strings.Contains(text, strings.TrimSpace(content)) {
		return "", errors.New("ChatOptions.Continue: the template leaves out a part of the last message")
	}
	if strings.HasPrefix(text[i:], midst) {
		return text[:i], nil
	}
	return strings.TrimRightFunc(text[:i], unicode.IsSpace), nil // the template strips messages
}

// variables returns what the template may read.
func (f *chatFiles) variables(messages []Message, o ChatOptions) (*jinja.Dict, error) {
	all := jinja.NewDict()
	for name, token := range f.tokens {
		all.Set(name, token)
	}
	all.Set("documents", nil)
	for name, v := range o.Variables {
		switch name {
		case "messages", "tools", "add_generation_prompt":
			return nil, fmt.Errorf("ChatOptions.Variables has %q, which Chat sets itself", name)
		}
		value, err := toValue(v)
		if err != nil {
			return nil, fmt.Errorf("ChatOptions.Variables[%q]: %w", name, err)
		}
		all.Set(name, value)
	}
	tools, err := toValue(o.Tools)
	if err != nil {
		return nil, fmt.Errorf("ChatOptions.Tools: %w", err)
	}
	turns := make([]jinja.Value, len(messages))
	for i, m := range messages {
		if o.Continue && i == len(messages)-1 {
			m.Content += midst
		}
		if turns[i], err = m.value(); err != nil {
			return nil, fmt.Errorf("messages[%d].ToolCalls: %w", i, err)
		}
	}
	all.Set("messages", jinja.NewList(turns))
	all.Set("tools", tools)
	all.Set("add_generation_prompt", !o.NoPrompt && !o.Continue)
	return all, nil
}

func toValue(v any) (jinja.Value, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return jinja.FromJSON(data)
}

// value returns a message in the order of its fields. Templates of gpt-oss read the reasoning as
// "thinking", which transformers puts first.
func (m Message) value() (jinja.Value, error) {
	d := jinja.NewDict()
	set := func(name, text string) {
		if text != "" {
			d.SetText(name, text)
		}
	}
	set("thinking", m.Reasoning)
	d.SetText("role", m.Role)
	d.SetText("content", m.Content)
	set("reasoning_content", m.Reasoning)
	if len(m.ToolCalls) > 0 {
		calls, err := jinja.FromJSON(m.ToolCalls)
		if err != nil {
			return nil, err
		}
		if calls != nil {
			d.Set("tool_calls", calls)
		}
	}
	set("tool_call_id", m.ToolCallID)
	set("name", m.Name)
	return d, nil
}
