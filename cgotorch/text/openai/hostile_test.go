package openai

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
)

// What is doubtful in a chat is refused with the field, and nothing of it is changed in silence.
func TestChat_Doubtful(t *testing.T) {
	m := decoderOf(t, "tiny", writeModel(t, template, "<tool_call>", "</tool_call>"), text.BatcherOptions{})
	s := serveModels(t, Options{}, m)
	const hi, forced = `"messages": [{"role": "user", "content": "a"}], `, `"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": `
	for _, c := range []struct{ body, param, text string }{
		{hi + `"tools": [{"type": "web", "function": {"name": "f"}}]`, "tools[0].type", "web"},
		{hi + `"tools": [` + clock + `], "tool_choice": {"type": "web", "function": {"name": "clock"}}`, "tool_choice.type", "web"},
		{hi + `"tools": [` + clock + `, ` + clock + `]`, "tools[1].function.name", "tools[0]"},
		{hi + `"tools": [{"type": "function", "function": {"name": " f\n"}}]`, "tools[0].function.name", "letters, digits"},
		{hi + forced + `{"type": "integer"}}}]`, "tools", "object"},
		{hi + forced + `{"type": ["object", "null"]}}}]`, "tools", "object"},
		{hi + forced + `{"enum": [5]}}}]`, "tools", "no value"},
		{hi + forced + `[5]}}]`, "tools[0].function.parameters", "object"},
		{hi + `"chat_template_kwargs": {"a": 1, "a": 2}`, "chat_template_kwargs.a", "twice"},
		{hi + `"ignore_eos": true, "response_format": {"type": "json_object"}`, "ignore_eos", "leave it out"},
		{hi + `"ignore_eos": true, "tool_choice": "required", "tools": [` + clock + `]`, "ignore_eos", "leave it out"},
		{hi + `"chat_template_kwargs": {"messages": []}`, "chat_template_kwargs.messages", "leave it out"},
		{hi + `"chat_template_kwargs": [1]`, "chat_template_kwargs", "want an object"},
		{hi + `"seed": 1, "se\u0065d": 2`, "seed", "twice"},
		{`"messages": [{"role": "user", "content": "a", "role": "tool"}]`, "messages[0].role", "twice"},
		{`"max_completion_tokens": 3, "messages": [{"role": "user", "content": "a"}]`, "max_completion_tokens", "send one"},
		{`"messages": [{"role": "user"}]`, "messages[0].content", "missing"},
		{`"messages": [{"role": "tool", "tool_call_id": "a", "content": null}]`, "messages[0].content", "missing"},
		{`"messages": [{"role": "user", "content": "\ud83d"}]`, "", "half of a character"},
		{`"messages": [{"role": "user", "content": "\\\ude00\ud83d"}]`, "", `\\ude00`},
		{`"messages": [{"role": "user", "content": "\ud83d\u0041"}]`, "", "half of a character"},
		{`"messages": [{"role": "user", "content": "` + "\xff" + `"}]`, "", "UTF-8"},
	} {
		status, got := s.post("/v1/chat/completions", `{"model": "tiny", "max_tokens": 2, `+c.body+`}`)
		if status != 400 || !strings.Contains(got, c.text) || c.param != "" && !strings.Contains(got, `"param":"`+c.param+`"`) {
			t.Errorf("%s: %d %s; want %q %q", c.body, status, got, c.param, c.text)
		}
	}
	for _, body := range []string{
		`"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": null}]`,
		`"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]}]`,
		`"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1, \"a\": 2}"}}]}]`, // as a model may write it
		`"max_completion_tokens": 2, "messages": [{"role": "user", "content": ",,"}]`,
		`"messages": [{"role": "user", "content": "\ud83d\ude00 \\ud83d \\\\"}]`,
	} {
		if status, got := s.post("/v1/chat/completions", `{"model": "tiny", "max_tokens": 2, `+body+`}`); status != 200 {
			t.Errorf("%s: %d %s", body, status, got)
		}
	}
	for _, parameters := range []string{`true`, `{}`, `{"additionalProperties": false, "properties": {}}`, `{"$ref": "#/$defs/a", "$defs": {"a": {"properties": {}, "additionalProperties": false}}}`} {
		var r chatResponse
		s.ask("/v1/chat/completions", `{"model": "tiny", "max_tokens": 500, "temperature": 1, "seed": 7, `+hi+forced+parameters+"}}]}", &r)
		if c := r.Choices[0]; *c.Reason != "length" && (*c.Reason != "tool_calls" || !strings.HasPrefix(c.Message.ToolCalls[0].Function.Arguments, "{")) {
			t.Errorf("%s: got %s %+v", parameters, *c.Reason, c.Message)
		}
	}
}

// The numbers of a template's variables keep their digits.
func TestChat_Variables(t *testing.T) {
	m := decoderOf(t, "tiny", writeModel(t, `{{ a | tojson }} {{ b }}`), text.BatcherOptions{})
	c := &call{h: NewHandler(Options{}), model: &served{Model: m, form: formOf(m.Decoder.Tokenizer)}}
	var err error
	if c.in, err = newFields("", []byte(`{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": {"z": 12345678901234567890, "b": 1.0}, "b": null}}`)); err != nil {
		t.Fatal(err)
	}
	q := chatRequest{messages: c.messages()}
	c.variables(&q)
	if prompt, _, err := c.prompt(&q); err != nil || c.in.err != nil || prompt != `{"z": 12345678901234567890, "b": 1.0} None` {
		t.Errorf("got %q, %v, %v", prompt, err, c.in.err)
	}
}

// An error does not send back what a client has sent, however long it is.
func TestErrors_Short(t *testing.T) {
	s := serveModels(t, Options{})
	long := strings.Repeat("é\u0001", 200_000)
	for _, body := range []string{`{"model": %s}`, `{%s: 1, "model": "a"}`, `{"model": [%s]}`} {
		if status, got := s.post("/v1/completions", fmt.Sprintf(body, marshalled(long))); status < 400 || len(got) > 20_000 {
			t.Errorf("%s: %d with %d bytes", body, status, len(got))
		}
	}
}

// A client that takes a long answer slowly, and never nothing, gets all of it.
func TestWrite_Slow(t *testing.T) {
	h := NewHandler(Options{Stall: 300 * time.Millisecond})
	ended := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{h: h, w: w, r: r}
		ended <- c.reply(strings.Repeat("a", 24<<20))
	}))
	defer server.Close()
	answer := must.Get(http.Get(server.URL))(t)
	defer answer.Body.Close()
	got := 0
	for part := make([]byte, 512<<10); ; time.Sleep(20 * time.Millisecond) {
		n, err := io.ReadFull(answer.Body, part)
		if got += n; err != nil {
			break
		}
	}
	if err := <-ended; err != nil || got != 24<<20+3 {
		t.Errorf("%d bytes came: %v", got, err)
	}
}

// A stop that is the name of a special token ends the answer at that token, in thoughts too.
func TestParts_StopIsToken(t *testing.T) {
	tok := tokenizerOf(t, "<think>", "</think>", "<|eot|>")
	f := formOf(tok)
	for answer, want := range map[string]string{"ab<|eot|>cd": "C:ab", "<think>ab<|eot|>cd": "T:ab", "a<|im_start|>b": "C:ab", "": ""} {
		p := newParts(tok, &f, []string{"<|eot|>", strings.Repeat("x", 1<<20)}, nil)
		var list []part
		for _, id := range tok.EncodePart(answer) {
			if list = append(list, p.add(id)...); p.stopped {
				break
			}
		}
		if list = append(list, p.end()...); told(list) != want || p.stopped != strings.Contains(answer, "eot") {
			t.Errorf("%q: got %q, %v", answer, told(list), p.stopped)
		}
	}
}

// Where an answer is one JSON value, what gpt-oss says before it is no part of the content.
func TestParts_Bound(t *testing.T) {
	tok := tokenizerOf(t, "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
	f := formOf(tok)
	p := newParts(tok, &f, nil, nil)
	p.bound = true
	var list []part
	for _, id := range tok.EncodePart("<|channel|>commentary<|message|>I look<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>") {
		list = append(list, p.add(id)...)
	}
	if got := told(append(list, p.end()...)); got != "T:I lookC:{}" {
		t.Errorf("got %q", got)
	}
}

// Two tokens that are parts of characters have two names among the probabilities of a completion.
func TestCompletion_PartsOfCharacters(t *testing.T) {
	m := decoderOf(t, "tiny", writeModel(t, ""), text.BatcherOptions{})
	s := serveModels(t, Options{}, m)
	var r response[completionChoice]
	s.ask("/v1/completions", `{"model": "tiny", "prompt": "a", "max_tokens": 8, "temperature": 0, "logprobs": 20}`, &r)
	parts := 0
	for _, top := range r.Choices[0].LogProbs.Top {
		if len(top) != 20 {
			t.Errorf("%d tokens of 20 have a name of their own: %v", len(top), top)
		}
		for name := range top {
			if strings.HasPrefix(name, `bytes:\x`) {
				parts++
			}
		}
	}
	if parts == 0 {
		t.Error("no token is a part of a character")
	}
}

// The ids of another server's calls become what Mistral's templates take, the same for a call and
// its result.
func TestChat_MistralIDs(t *testing.T) {
	const names = `{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }} {% endfor %}{{ m.tool_call_id }} {% endfor %}`
	m := decoderOf(t, "tiny", writeModel(t, names, "[TOOL_CALLS]"), text.BatcherOptions{})
	c := &call{h: NewHandler(Options{}), model: &served{Model: m, form: formOf(m.Decoder.Tokenizer)}}
	var err error
	if c.in, err = newFields("", []byte(`{"messages": [
		{"role": "assistant", "tool_calls": [{"id": "call_é1", "type": "function", "function": {"name": "f"}}, {"id": "aB3456789", "type": "function", "function": {"name": "g"}}]},
		{"role": "tool", "tool_call_id": "aB3456789", "content": "2"}, {"role": "tool", "tool_call_id": "call_é1", "content": "1"}]}`)); err != nil {
		t.Fatal(err)
	}
	q := chatRequest{messages: c.messages()}
	prompt, _, err := c.prompt(&q)
	ids := strings.Fields(prompt)
	if c.in.err != nil || err != nil || len(ids) != 4 || len(ids[0]) != 9 || ids[0] != ids[3] || ids[1] != "aB3456789" || ids[1] != ids[2] || q.messages[1].Name != "g" || q.messages[2].Name != "f" {
		t.Errorf("got %q, %+v, %v, %v", prompt, q.messages, c.in.err, err)
	}
}

// A prompt without tokens, and one that the cache has no room for, are refused with the field. The
// list of models has what the cache has room for.
func TestPrompt_Refused(t *testing.T) {
	m := must.Get(text.Open(cgotorch.CPU, writeModel(t, `{{ messages[0].content }}`), text.Options{RandomWeights: 5, CacheTokens: 64}))(t)
	t.Cleanup(func() { must.Do(t, m.Close()) })
	b := must.Get(m.NewBatcher(text.BatcherOptions{}))(t)
	t.Cleanup(func() { must.Do(t, b.Close()) })
	s := serveModels(t, Options{}, Model{Name: "tiny", Decoder: m, Batcher: b})
	most := b.Context()
	if most < 16 || most > 64 {
		t.Fatalf("the cache has room for %d tokens", most)
	}
	for _, c := range []struct{ path, body, param string }{
		{"completions", `"prompt": ""`, "prompt[0]"}, {"completions", `"prompt": ["a", ""]`, "prompt[1]"}, {"completions", `"prompt": [[]]`, "prompt[0]"},
		{"completions", `"prompt": "` + strings.Repeat("a", most) + `"`, "prompt[0]"},
		{"chat/completions", `"messages": [{"role": "user", "content": ""}]`, "messages"},
		{"chat/completions", `"messages": [{"role": "user", "content": "` + strings.Repeat("a", most) + `"}]`, "messages"},
	} {
		if status, got := s.post("/v1/"+c.path, `{"model": "tiny", `+c.body+`}`); status != 400 || !strings.Contains(got, `"param":"`+c.param+`"`) {
			t.Errorf("%s: %d %s", c.body, status, got)
		}
	}
	var r response[completionChoice]
	s.ask("/v1/completions", `{"model": "tiny", "prompt": "`+strings.Repeat("a", most-1)+`"}`, &r)
	if r.Usage.Completion != 1 || *r.Choices[0].Reason != "length" {
		t.Errorf("behind the longest prompt: %+v", r)
	}
	answer := must.Get(http.Get(s.server.URL + "/v1/models/tiny"))(t)
	defer answer.Body.Close()
	if got := string(must.Get(io.ReadAll(answer.Body))(t)); !strings.Contains(got, fmt.Sprintf(`"max_model_len":%d`, most)) {
		t.Errorf("got %s, want %d", got, most)
	}
}

// Fields that drop no token, sent or not, leave the likeliest one.
func TestCompletion_Neutral(t *testing.T) {
	s := serveModels(t, Options{}, decoderOf(t, "tiny", writeModel(t, template), text.BatcherOptions{}))
	var answers [6]string
	for i, field := range []string{"", `, "top_p": 1`, `, "min_p": 0`, `, "top_k": 0`, `, "top_k": -1`, `, "temperature": 0`} {
		var got response[completionChoice]
		s.ask("/v1/completions", `{"model": "tiny", "prompt": "abc", "max_tokens": 6`+field+`}`, &got)
		answers[i] = got.Choices[0].Text
	}
	if slices.ContainsFunc(answers[:], func(a string) bool { return a != answers[0] }) {
		t.Errorf("got %q", answers)
	}
}

// A model whose logits are not numbers has failed: that is no fault of the request.
func TestChat_NaN(t *testing.T) {
	stream := cgotorch.DefaultStream(cgotorch.CPU)
	m := must.Get(text.Open(cgotorch.CPU, writeModel(t, template), text.Options{RandomWeights: 5, Stream: stream}))(t)
	t.Cleanup(func() { must.Do(t, m.Close()) })
	b := must.Get(m.NewBatcher(text.BatcherOptions{}))(t)
	t.Cleanup(func() { must.Do(t, b.Close()) })
	s := serveModels(t, Options{}, Model{Name: "tiny", Decoder: m, Batcher: b})
	must.Do(t, stream.Do(func(x *cgotorch.Exec) error {
		x.NoGrad().FillInPlace(m.Weights[3].Tensor, math.NaN())
		return nil
	}))
	status, got := s.post("/v1/chat/completions", "{"+question+"}")
	if status != 500 || !strings.Contains(got, "not numbers") || !strings.Contains(got, "server_error") {
		t.Errorf("got %d %s", status, got)
	}
}

// The content of an answer that could have been a call has its probabilities, whole and streamed.
func TestChat_LogProbsOfNoCall(t *testing.T) {
	for _, marks := range [][]string{{"<|python_tag|>"}, {"<tool_call>", "</tool_call>"}} {
		m := decoderOf(t, "tiny", writeModel(t, template, marks...), text.BatcherOptions{})
		s := serveModels(t, Options{}, m)
		for seed := range 8 {
			body := fmt.Sprintf(`{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "tools": [%s], "max_tokens": 12, "temperature": 1, "seed": %d, "logprobs": true,
				"logit_bias": {"123": 100, "258": %d, "65": 99}, "frequency_penalty": 1`, clock, seed, 100*(len(marks)-1)-50)
			var whole chatResponse
			s.ask("/v1/chat/completions", body+"}", &whole)
			_, stream := s.post("/v1/chat/completions", body+`, "stream": true}`)
			streamed, text := 0, ""
			for _, r := range events(t, stream) {
				if p := r.Choices[0].LogProbs; p != nil {
					streamed += len(p.Content)
				}
			}
			c := whole.Choices[0]
			for _, p := range c.LogProbs.Content {
				text += p.Token
			}
			if want := strings.ReplaceAll(*c.Message.Content, "<tool_call>", ""); want == "" || text != strings.ReplaceAll(want, "</tool_call>", "") || streamed != len(c.LogProbs.Content) {
				t.Errorf("%q: the content is %q, and probabilities are of %q; %d are streamed", marks, *c.Message.Content, text, streamed)
			}
		}
	}
}

// A forced call of a newer Mistral begins as such models write it.
func TestForce_Mistral(t *testing.T) {
	for want, marks := range map[string][]string{`[TOOL_CALLS]f[ARGS]`: {"[TOOL_CALLS]", "[ARGS]"}, `[TOOL_CALLS][{"name": "f", "arguments": `: {"[TOOL_CALLS]"}} {
		c := &call{model: &served{form: formOf(tokenizerOf(t, marks...))}}
		if f, err := c.force([]tool{{name: "f"}}, false); err != nil || f.begin != want || f.name != "f" {
			t.Errorf("got %+v, %v; want %q", f, err, want)
		}
	}
}
