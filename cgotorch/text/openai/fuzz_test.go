package openai

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
)

// Any body is answered or refused, quickly, and never by a failure of the server. Answers are of
// few tokens here, because an input that takes a second counts as one that hangs.
func FuzzBody(f *testing.F) {
	h := NewHandler(Options{Choices: 4, Texts: 8})
	m := must.Get(text.Open(cgotorch.CPU, writeModel(f, template, "<think>", "</think>", "<tool_call>", "</tool_call>"), text.Options{RandomWeights: 5, Context: 768, CacheTokens: 4096}))(f)
	f.Cleanup(func() { must.Do(f, m.Close()) })
	b := must.Get(m.NewBatcher(text.BatcherOptions{}))(f)
	f.Cleanup(func() { must.Do(f, b.Close()) })
	for _, one := range []Model{{Name: "tiny", Decoder: m, Batcher: b}, encoderOf(f, "bert", "bert"), encoderOf(f, "ranks", "cross-bert")} {
		if err := h.Add(one); err != nil {
			f.Fatal(err)
		}
	}
	paths := []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank"}
	message := `"messages": [{"role": "user", "content": "a"}], "max_tokens": 2`
	for path, seeds := range [][]string{
		{`{"model": "tiny", ` + message + `}`, `{"model": "tiny", ` + message + `, "stream": true, "n": 2, "stop": ["a"], "logprobs": true, "top_logprobs": 2, "logit_bias": {"1": 2}}`,
			`{"model": "tiny", ` + message + `, "tools": [` + clock + `, ` + weather + `], "tool_choice": "required"}`,
			`{"model": "tiny", ` + message + `, "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": ` + person + `}}}`,
			`{"model": "tiny", "messages": [{"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "b"}], "max_tokens": 2, "chat_template_kwargs": {"open": true}}`},
		{`{"model": "tiny", "prompt": ["a", "b"], "max_tokens": 2, "echo": true}`, `{"model": "tiny", "prompt": [[1, 2], [3]], "max_tokens": 1, "logprobs": 2}`},
		{`{"model": "bert", "input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 4}`, `{"model": "bert", "input": [5, 6], "truncate": true}`},
		{`{"model": "ranks", "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": true}`},
	} {
		for _, seed := range seeds {
			f.Add(byte(path), []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, path byte, body []byte) {
		r := httptest.NewRequest("POST", paths[int(path)%len(paths)], strings.NewReader(string(body)))
		w := httptest.NewRecorder()
		began := time.Now()
		h.ServeHTTP(w, r)
		if w.Code >= 500 && w.Code != http.StatusServiceUnavailable || w.Code == 499 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
