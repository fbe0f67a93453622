package openai

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/text"
)

// A stream has what the whole answer has: content, thoughts, calls, probabilities and reasons, for
// random answers of each family with stops, bounds and limits.
func TestChat_StreamIsWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	for name, marks := range map[string][]string{
		"hermes": {"<think>", "</think>", "<tool_call>", "</tool_call>"}, "mistral": {"[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"}, "llama": {"<|python_tag|>"},
		"harmony": {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"},
	} {
		m := decoderOf(t, "tiny", writeModel(t, template, marks...), text.BatcherOptions{Reproducible: true})
		s := serveModels(t, Options{}, m)
		for range 40 {
			bias := map[string]int{"256": r.IntN(4), "123": r.IntN(4)}
			for i := range marks {
				bias[fmt.Sprint(258+i)] = r.IntN(7)
			}
			weights, _ := json.Marshal(bias)
			body := fmt.Sprintf(`{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "temperature": 1, "seed": %d, "n": %d, "max_tokens": %d, "logit_bias": %s, "logprobs": true, "top_logprobs": 1%s`,
				r.IntN(1000), 1+r.IntN(3), 1+r.IntN(60), weights, pick("", "", `, "stop": ["a", "{", "<|end|>"]`, `, "stop": "[ARGS]"`))
			body += pick("", `, "tools": [`+clock+`]`, `, "tools": [`+clock+`], "parallel_tool_calls": false`, `, "tools": [`+clock+`], "tool_choice": {"type": "function", "function": {"name": "clock"}}`,
				`, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [1, "a", {"b": [null]}]}}}`)
			body += pick("", `, "chat_template_kwargs": {"open": true}`)
			var whole chatResponse
			s.ask("/v1/chat/completions", body+"}", &whole)
			_, stream := s.post("/v1/chat/completions", body+`, "stream": true}`)
			got := make([]chatChoice, len(whole.Choices))
			for i := range got {
				got[i] = chatChoice{Index: i, Message: &chatMessage{Content: new(string)}, LogProbs: &chatLogProbs{}}
			}
			for _, e := range events(t, stream) {
				c := e.Choices[0]
				to := &got[c.Index]
				if c.Delta.Content != nil {
					*to.Message.Content += *c.Delta.Content
				}
				to.Message.Reasoning += c.Delta.Reasoning
				to.Message.ToolCalls = append(to.Message.ToolCalls, c.Delta.ToolCalls...)
				if c.LogProbs != nil {
					to.LogProbs.Content = append(to.LogProbs.Content, c.LogProbs.Content...)
				}
				if to.Reason != nil {
					t.Errorf("%s: something comes behind the reason", body)
				}
				to.Reason = c.Reason
			}
			for i := range got {
				if streamed, want := wholeOf(got[i]), wholeOf(whole.Choices[i]); streamed != want {
					t.Fatalf("%s, %s: answer %d is %s streamed, and %s whole", name, body, i, streamed, want)
				}
			}
		}
	}
}

// wholeOf writes an answer without what differs between two of them.
func wholeOf(c chatChoice) string {
	var text strings.Builder
	if c.Message.Content != nil {
		fmt.Fprintf(&text, "%q ", *c.Message.Content)
	} else {
		text.WriteString(`"" `)
	}
	fmt.Fprintf(&text, "%q %s %v", c.Message.Reasoning, *c.Reason, c.LogProbs.Content)
	for _, call := range c.Message.ToolCalls {
		fmt.Fprintf(&text, " %s(%s)", call.Function.Name, call.Function.Arguments)
	}
	return text.String()
}
