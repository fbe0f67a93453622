package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

const question = `"model": "tiny", "messages": [{"role": "user", "content": "Where do streams end?"}], "max_tokens": 24, "temperature": 0.9, "seed": 3`

// A chat gives what the Batcher gives, whole and streamed, with its usage, for each of n answers.
func TestChat(t *testing.T) {
	torchtest.CheckLeaks(t)
	m := decoderOf(t, "tiny", writeModel(t, template), text.BatcherOptions{})
	s := serveModels(t, Options{}, m)
	for _, n := range []int{1, 3} {
		var whole chatResponse
		s.ask("/v1/chat/completions", fmt.Sprintf(`{%s, "n": %d}`, question, n), &whole)
		if len(whole.Choices) != n || whole.Object != "chat.completion" || whole.Model != "tiny" {
			t.Fatalf("got %+v", whole)
		}
		status, body := s.post("/v1/chat/completions", fmt.Sprintf(`{%s, "n": %d, "stream": true, "stream_options": {"include_usage": true}}`, question, n))
		if status != http.StatusOK {
			t.Fatal(body)
		}
		streamed, reasons := make([]string, n), make([]string, n)
		list := events(t, body)
		for _, r := range list[:len(list)-1] {
			c := r.Choices[0]
			if c.Delta.Content != nil {
				streamed[c.Index] += *c.Delta.Content
			}
			if c.Reason != nil {
				reasons[c.Index] += *c.Reason
			}
		}
		tokens := 0
		for i, c := range whole.Choices {
			prompt := m.Decoder.Tokenizer.EncodePart("<|im_start|>user\nWhere do streams end?<|im_end|>\n<|im_start|>assistant\n")
			want, reason := "", ""
			for token, err := range m.Batcher.Generate(t.Context(), prompt, text.GenerateOptions{MaxTokens: 24, Temperature: 0.9, Seed: 3 + uint64(i)}) {
				if err != nil {
					t.Fatal(err)
				}
				want, reason, tokens = want+token.Text, token.Reason, tokens+1
			}
			if *c.Message.Content != want || streamed[i] != want || *c.Reason != reason || reasons[i] != reason {
				t.Errorf("n %d, answer %d: whole %q %s, streamed %q %s; want %q %s", n, i, *c.Message.Content, *c.Reason, streamed[i], reasons[i], want, reason)
			}
			if whole.Usage.Prompt != len(prompt) || *list[len(list)-1].Usage != *whole.Usage || len(list[len(list)-1].Choices) != 0 {
				t.Errorf("the usage is %+v and %+v; the prompt has %d tokens", whole.Usage, list[len(list)-1].Usage, len(prompt))
			}
		}
		if whole.Usage.Completion != tokens || whole.Usage.Total != tokens+whole.Usage.Prompt {
			t.Errorf("the usage is %+v; the answers have %d tokens", whole.Usage, tokens)
		}
	}
}

// A stop ends the content before it, wherever tokens end.
func TestChat_Stop(t *testing.T) {
	m := decoderOf(t, "tiny", writeModel(t, template), text.BatcherOptions{})
	s := serveModels(t, Options{}, m)
	var free, bound chatResponse
	s.ask("/v1/chat/completions", "{"+question+"}", &free)
	whole := *free.Choices[0].Message.Content
	stop := string([]rune(whole)[5:8])
	want := whole[:strings.Index(whole, stop)]
	s.ask("/v1/chat/completions", fmt.Sprintf(`{%s, "stop": [%s, "nothing"]}`, question, marshalled(stop)), &bound)
	if got := bound.Choices[0]; *got.Message.Content != want || *got.Reason != "stop" {
		t.Errorf("got %q %s, want %q", *got.Message.Content, *got.Reason, want)
	}
}

func marshalled(text string) string {
	raw, _ := json.Marshal(text)
	return string(raw)
}

// Probabilities are those of the Batcher, with the bytes of each token.
func TestChat_LogProbs(t *testing.T) {
	m := decoderOf(t, "tiny", writeModel(t, template), text.BatcherOptions{})
	s := serveModels(t, Options{}, m)
	var whole chatResponse
	s.ask("/v1/chat/completions", "{"+question+`, "logprobs": true, "top_logprobs": 3}`, &whole)
	list, joined := whole.Choices[0].LogProbs.Content, []byte(nil)
	for _, p := range list {
		if len(p.Top) != 3 || p.LogProb > p.Top[0].LogProb || p.LogProb >= 0 {
			t.Errorf("token %q has %v among %+v", p.Token, p.LogProb, p.Top)
		}
		for _, b := range p.Bytes {
			joined = append(joined, byte(b))
		}
	}
	if got := strings.ToValidUTF8(string(joined), "\ufffd"); len(list) != 24 || strings.ToValidUTF8(*whole.Choices[0].Message.Content, "") == "" || len(got) == 0 {
		t.Errorf("%d tokens with %q, and the content is %q", len(list), got, *whole.Choices[0].Message.Content)
	}
	_, body := s.post("/v1/chat/completions", "{"+question+`, "logprobs": true, "stream": true}`)
	streamed := 0
	for _, r := range events(t, body) {
		if p := r.Choices[0].LogProbs; p != nil {
			for i := range p.Content {
				if got := p.Content[i]; got.LogProb != list[streamed].LogProb {
					t.Errorf("token %d: %v streamed, %v whole", streamed, got.LogProb, list[streamed].LogProb)
				}
				streamed++
			}
		}
	}
	if streamed != len(list) {
		t.Errorf("%d tokens are streamed, and %d whole", streamed, len(list))
	}
}

// What is wrong in a request is refused with the field and the cure, and nothing is left out in
// silence.
func TestChat_Refused(t *testing.T) {
	m := decoderOf(t, "tiny", writeModel(t, template), text.BatcherOptions{})
	s := serveModels(t, Options{MaxBody: 100_000}, m, encoderOf(t, "vectors", "bert"))
	message := `"messages": [{"role": "user", "content": "a"}]`
	for _, c := range []struct {
		body   string
		status int
		param  string
		text   string
	}{
		{`{`, 400, "", "no JSON"},
		{`[]`, 400, "", "want an object"},
		{`null`, 400, "", "want an object"},
		{`{}`, 400, "model", "want the name"},
		{`{"model": 5}`, 400, "model", "want a text, got 5"},
		{`{"model": "other"}`, 404, "model", `no model "other"`},
		{`{"model": "vectors", ` + message + `}`, 400, "model", "makes no texts"},
		{`{"model": "tiny"}`, 400, "messages", "at least one"},
		{`{"model": "tiny", "messages": []}`, 400, "messages", "at least one"},
		{`{"model": "tiny", "messages": {}}`, 400, "messages", "want a list"},
		{`{"model": "tiny", "messages": [null]}`, 400, "messages[0]", "want an object, got null"},
		{`{"model": "tiny", "messages": ["a"]}`, 400, "messages[0]", "want an object"},
		{`{"model": "tiny", "messages": [{"content": "a"}]}`, 400, "messages[0].role", "missing"},
		{`{"model": "tiny", "messages": [{"role": "boss", "content": "a"}]}`, 400, "messages[0].role", `"boss"`},
		{`{"model": "tiny", "messages": [{"role": "user", "content": 5}]}`, 400, "messages[0].content", "got 5"},
		{`{"model": "tiny", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}`, 400, "messages[0].content[0].type", "texts alone"},
		{`{"model": "tiny", "messages": [{"role": "user", "content": "a", "colour": 1}]}`, 400, "messages[0].colour", "no such field"},
		{`{"model": "tiny", "messages": [{"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "[1]"}}]}]}`, 400, "messages[0].tool_calls[0].function.arguments", "JSON object"},
		{`{"model": "tiny", "n": 0, ` + message + `}`, 400, "n", "want 1 to 64"},
		{`{"model": "tiny", "n": 1.5, ` + message + `}`, 400, "n", "want an integer"},
		{`{"model": "tiny", "temperature": 3, ` + message + `}`, 400, "temperature", "want 0 to 2"},
		{`{"model": "tiny", "temperature": "1", ` + message + `}`, 400, "temperature", `want a number, got "1"`},
		{`{"model": "tiny", "max_tokens": 0, ` + message + `}`, 400, "max_tokens", "want 1"},
		{`{"model": "tiny", "stop": ["a", ""], ` + message + `}`, 400, "stop", "empty"},
		{`{"model": "tiny", "stop": [1], ` + message + `}`, 400, "stop[0]", "want a text"},
		{`{"model": "tiny", "logit_bias": {"300": 1}, ` + message + `}`, 400, "logit_bias.300", "0 to 257"},
		{`{"model": "tiny", "logit_bias": {"05": 1}, ` + message + `}`, 400, "logit_bias.05", "0 to 257"},
		{`{"model": "tiny", "logit_bias": {"a": 1}, ` + message + `}`, 400, "logit_bias.a", "token"},
		{`{"model": "tiny", "top_logprobs": 2, ` + message + `}`, 400, "top_logprobs", "needs logprobs"},
		{`{"model": "tiny", "stream_options": {}, ` + message + `}`, 400, "stream_options", "needs stream"},
		{`{"model": "tiny", "store": true, ` + message + `}`, 400, "store", "want false"},
		{`{"model": "tiny", "functions": [], ` + message + `}`, 400, "functions", "no such field"},
		{`{"model": "tiny", "audio": {}, ` + message + `}`, 400, "audio", "no such field"},
		{`{"model": "tiny", "modalities": ["audio"], ` + message + `}`, 400, "modalities", "not done here"},
		{`{"model": "tiny", "reasoning_effort": "low", ` + message + `}`, 400, "reasoning_effort", "does not read it"},
		{`{"model": "tiny", "tools": [{"type": "function", "function": {"name": "f"}}], ` + message + `}`, 400, "tools", "no form of calls"},
		{`{"model": "tiny", "tools": [{"function": {"name": "f"}}], ` + message + `}`, 400, "tools[0].type", "missing"},
		{`{"model": "tiny", "tools": [{"type": "custom", "function": {"name": "f"}}], ` + message + `}`, 400, "tools[0].type", `"custom"`},
		{`{"model": "tiny", "tool_choice": "required", ` + message + `}`, 400, "tool_choice", "no tools"},
		{`{"model": "tiny", "response_format": {"type": "xml"}, ` + message + `}`, 400, "response_format.type", `"xml"`},
		{`{"model": "tiny", "response_format": {"type": "json_schema"}, ` + message + `}`, 400, "response_format.json_schema", "missing"},
		{`{"model": "tiny", "messages": [{"role": "user", "content": "` + strings.Repeat("a", 3000) + `"}]}`, 400, "messages", "tokens, and the model takes 2048"},
		{`{"model": "tiny", "messages": [{"role": "user", "content": "` + strings.Repeat("a", 100_001) + `"}]}`, 413, "", "too large"},
		{`{"model": "tiny", "messages": [` + strings.Repeat("{},", 5000) + `{}]}`, 400, "messages", "more than 4096"},
	} {
		status, body := s.post("/v1/chat/completions", c.body)
		var f failure
		if err := json.Unmarshal([]byte(body), &f); err != nil {
			t.Errorf("%.80s: %s", c.body, body)
			continue
		}
		param := ""
		if f.Error.Param != nil {
			param = *f.Error.Param
		}
		if status != c.status || param != c.param || !strings.Contains(f.Error.Message, c.text) || strings.Contains(body, "Go ") || strings.Contains(body, "openai.") {
			t.Errorf("%.100s: %d %q %q; want %d %q %q", c.body, status, param, f.Error.Message, c.status, c.param, c.text)
		}
	}
}
