package openai

import (
	"fmt"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/text"
)

const weather = `{"type": "function", "function": {"name": "weather", "description": "Tells the weather", "parameters": ` + person + `}}`
const clock = `{"type": "function", "function": {"name": "clock"}}`

// A forced call names a function of the request, and its arguments fit the function's schema.
func TestChat_ForcedCall(t *testing.T) {
	for name, marks := range map[string][]string{
		"hermes": {"<think>", "</think>", "<tool_call>", "</tool_call>"}, "mistral": {"[TOOL_CALLS]", "[ARGS]"}, "llama": {"<|python_tag|>"},
		"harmony": {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"},
	} {
		t.Run(name, func(t *testing.T) {
			m := decoderOf(t, "tiny", writeModel(t, template, marks...), text.BatcherOptions{})
			s := serveModels(t, Options{}, m)
			for _, choice := range []string{`"required"`, `{"type": "function", "function": {"name": "weather"}}`} {
				if name == "harmony" && choice == `"required"` {
					continue
				}
				whole := 0
				for seed := range 12 {
					body := fmt.Sprintf(`{"model": "tiny", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": %d, "temperature": 1, "seed": %d,
						"tools": [%s, %s], "tool_choice": %s, "chat_template_kwargs": {"open": %t}`, []int{300, 6}[seed/10], seed, clock, weather, choice, seed%2 == 1)
					var r chatResponse
					s.ask("/v1/chat/completions", body+"}", &r)
					c := r.Choices[0]
					if *c.Reason == "length" {
						if choice != `"required"` && (len(c.Message.ToolCalls) != 1 || c.Message.ToolCalls[0].Function.Name != "weather" || c.Message.Content != nil) {
							t.Errorf("seed %d: an answer that is cut is %+v", seed, c.Message)
						}
						continue
					}
					whole++
					if *c.Reason != "tool_calls" || len(c.Message.ToolCalls) != 1 || c.Message.Content != nil {
						t.Fatalf("%s, seed %d: %s %+v", choice, seed, *c.Reason, c.Message)
					}
					call := c.Message.ToolCalls[0]
					if f := call.Function; f.Name == "weather" && fitsPerson(f.Arguments) != nil || f.Name == "clock" && f.Arguments != "{}" || f.Name != "weather" && (f.Name != "clock" || choice != `"required"`) {
						t.Errorf("%s, seed %d: got %+v", choice, seed, call)
					}
					_, stream := s.post("/v1/chat/completions", body+`, "stream": true}`)
					found := false
					for _, e := range events(t, stream) {
						if d := e.Choices[0].Delta; len(d.ToolCalls) > 0 {
							found = d.ToolCalls[0].Function == call.Function && *d.ToolCalls[0].Index == 0 && d.ToolCalls[0].ID != ""
						}
					}
					if !found {
						t.Errorf("%s, seed %d: the stream lacks the call: %s", choice, seed, stream)
					}
				}
				if whole < 8 {
					t.Errorf("%s: only %d of 12 answers are whole", choice, whole)
				}
			}
		})
	}
}
