package openai

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/text"
)

// Fields that the clients of others send are taken, where they change nothing.
func TestClients_Fields(t *testing.T) {
	s := serveModels(t, Options{}, decoderOf(t, "tiny", writeModel(t, template, "<tool_call>", "</tool_call>"), text.BatcherOptions{}), encoderOf(t, "ranks", "cross-bert"))
	const call = `"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}}}]`
	for _, field := range []string{
		`"n": null`, `"stop": null`, `"tools": null`, `"tools": []`, `"response_format": null`, `"response_format": {"type": "text"}`, `"functions": null`,
		`"verbosity": "medium"`, `"modalities": ["text"]`, `"store": false`, `"parallel_tool_calls": true`, `"tool_choice": "none"`, `"logit_bias": {}`, `"logit_bias": null`,
		`"metadata": {"a": "b"}`, `"service_tier": "auto"`, `"prompt_cache_options": {}`, `"prompt_cache_key": "a"`, `"safety_identifier": "a"`, `"user": ""`,
		`"stream": true, "stream_options": {"include_usage": true, "include_obfuscation": false}`,
	} {
		if status, body := s.post("/v1/chat/completions", "{"+question+", "+field+"}"); status != http.StatusOK {
			t.Errorf("%s: %d %s", field, status, body)
		}
	}
	for _, message := range []string{
		`{"role": "assistant", "content": null, "audio": null, "function_call": null, "refusal": null, "annotations": [], "parsed": null, ` + call + `}, {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]}`,
		`{"role": "assistant", "content": "{}", "parsed": {"a": 1}}`,
		`{"role": "user", "content": [{"type": "text", "text": "a", "prompt_cache_breakpoint": {}}], "name": "b"}`,
	} {
		if status, body := s.post("/v1/chat/completions", `{"model": "tiny", "max_tokens": 2, "messages": [`+message+`]}`); status != http.StatusOK {
			t.Errorf("%s: %d %s", message, status, body)
		}
	}
	for _, field := range []string{`"max_tokens_per_doc": 4096`, `"priority": 3`, `"truncation": true`, `"truncate": true`, `"top_n": null`} {
		if status, body := s.post("/v2/rerank", `{"model": "ranks", "query": "a", "documents": ["a"], `+field+`}`); status != http.StatusOK {
			t.Errorf("%s: %d %s", field, status, body)
		}
	}
}

// The same fields are refused by name where they change something.
func TestClients_FieldsRefused(t *testing.T) {
	s := serveModels(t, Options{}, decoderOf(t, "tiny", writeModel(t, template), text.BatcherOptions{}), encoderOf(t, "ranks", "cross-bert"))
	for _, c := range []struct{ path, body, param string }{
		{"/v1/chat/completions", question + `, "verbosity": "low"`, "verbosity"},
		{"/v1/chat/completions", question + `, "web_search_options": {}`, "web_search_options"},
		{"/v1/chat/completions", `"model": "tiny", "messages": [{"role": "assistant", "audio": {"id": "x"}}]`, "messages[0].audio"},
		{"/v1/chat/completions", `"model": "tiny", "messages": [{"role": "assistant", "function_call": {"name": "f"}}]`, "messages[0].function_call"},
		{"/v2/rerank", `"model": "ranks", "query": "a", "documents": ["a", "a a a a a a a a"], "max_tokens_per_doc": 4`, "max_tokens_per_doc"},
		{"/v2/rerank", `"model": "ranks", "query": "a", "documents": ["a"], "truncation": false`, "truncation"},
	} {
		if status, body := s.post(c.path, "{"+c.body+"}"); status != http.StatusBadRequest || !strings.Contains(body, fmt.Sprintf(`"param":%q`, c.param)) {
			t.Errorf("%s: %d %s", c.body, status, body)
		}
	}
}

// Answers have the fields that clients read without asking whether they are there.
func TestClients_Answers(t *testing.T) {
	s := serveModels(t, Options{}, decoderOf(t, "tiny", writeModel(t, template, "<tool_call>", "</tool_call>"), text.BatcherOptions{}))
	const tool = `"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f"}}]`
	for fields, want := range map[string][]string{
		`"stream": false`:  {`"refusal":null`, `"logprobs":null`, `"finish_reason":"length"`},
		tool:               {`"content":null`, `"finish_reason":"tool_calls"`},
		`"logprobs": true`: {`"top_logprobs":[]`, `"refusal":null`},
		`"stream": true`:   {`"delta":{"role":"assistant","content":""}`, `"finish_reason":null`, `"delta":{},`, "data: [DONE]\n\n"},
	} {
		_, body := s.post("/v1/chat/completions", "{"+question+", "+fields+"}")
		for _, part := range want {
			if !strings.Contains(body, part) {
				t.Errorf("%s: %s is missing in %s", fields, part, body)
			}
		}
	}
}
