package openai

import (
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/text"
)

// A chat with earlier calls and their results reaches the template: arguments as objects, and the
// name of the function beside its result.
func TestChat_Messages(t *testing.T) {
	m := decoderOf(t, "tiny", writeModel(t, template, "<tool_call>", "</tool_call>"), text.BatcherOptions{})
	h := NewHandler(Options{})
	c := &call{h: h, model: &served{Model: m, form: formOf(m.Decoder.Tokenizer)}}
	var err error
	c.in, err = newFields("", []byte(`{"messages": [
		{"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
		{"role": "user", "content": "Rain?"},
		{"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}}]},
		{"role": "tool", "tool_call_id": "c1", "content": "sun"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	q := chatRequest{messages: c.messages()}
	prompt, opened, err := c.prompt(&q)
	const want = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nRain?<|im_end|>\n<|im_start|>assistant\n<call>weather {\"city\": \"Oslo\"}<|im_end|>\n" +
		"<|im_start|>tool\nsun of weather<|im_end|>\n<|im_start|>assistant\n"
	if c.in.err != nil || err != nil || opened || prompt != want {
		t.Errorf("got %q, %v, %v, %v; want %q", prompt, opened, c.in.err, err, want)
	}
}
