package openai

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
	"github.com/streamtorch/streamtorch/internal/must"
)

// llamaConfig is a model with a token for each byte, for the end of a turn, and for marks.
const llamaConfig = `{"model_type": "llama", "vocab_size": %d, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
	"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
	"rope_theta": 10000.0, "eos_token_id": 256, "bos_token_id": 257, "torch_dtype": "float32"}`

// template writes a chat in the form of Qwen. With the variable `open` it begins the thoughts.
const template = `{%- if tools %}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}{% endif %}{% if m.name %} of {{ m.name }}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if open %}<think>
{% endif %}{% endif -%}`

// byteNames are the names that byte-level BPE gives the 256 bytes.
func byteNames() (names []string) {
	other := rune(256)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			names = append(names, string(rune(b)))
			continue
		}
		names = append(names, string(other))
		other++
	}
	return names
}

// writeModel writes a folder with a tokenizer of bytes, <|im_end|> (256), <|im_start|> (257), and
// the marks from 258 on.
func writeModel(t testing.TB, template string, marks ...string) string {
	folder := t.TempDir()
	vocab := map[string]int{}
	for b, name := range byteNames() {
		vocab[name] = b
	}
	var added []map[string]any
	for i, name := range append([]string{"<|im_end|>", "<|im_start|>"}, marks...) {
		special := strings.HasPrefix(name, "<|") || strings.HasPrefix(name, "[")
		added = append(added, map[string]any{"id": 256 + i, "content": name, "special": special, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false})
	}
	file := map[string]any{
		"added_tokens": added, "pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		"decoder": map[string]any{"type": "ByteLevel"}, "model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
	}
	write := func(name string, text []byte) { must.Do(t, os.WriteFile(filepath.Join(folder, name), text, 0o644)) }
	write("tokenizer.json", must.Get(json.Marshal(file))(t))
	write("config.json", fmt.Appendf(nil, llamaConfig, 258+len(marks)))
	if template != "" {
		write("chat_template.jinja", []byte(template))
	}
	return folder
}

// serving is a server with models.
type serving struct {
	t      testing.TB
	h      *Handler
	server *httptest.Server
}

func serveModels(t testing.TB, o Options, models ...Model) *serving {
	s := &serving{t: t, h: NewHandler(o)}
	for _, m := range models {
		must.Do(t, s.h.Add(m))
	}
	s.server = httptest.NewServer(s.h)
	t.Cleanup(s.server.Close)
	return s
}

// decoderOf opens a folder with random weights, under a name.
func decoderOf(t testing.TB, name, folder string, o text.BatcherOptions) Model {
	m := must.Get(text.Open(cgotorch.CPU, folder, text.Options{RandomWeights: 5, CacheTokens: 8192}))(t)
	t.Cleanup(func() { must.Do(t, m.Close()) })
	b := must.Get(m.NewBatcher(o))(t)
	t.Cleanup(func() { must.Do(t, b.Close()) })
	return Model{Name: name, Decoder: m, Batcher: b}
}

func encoderOf(t testing.TB, name, folder string) Model {
	e := must.Get(text.OpenEncoder(cgotorch.CPU, "../../../tests/parity/encoders/testdata/"+folder, text.EncoderOptions{}))(t)
	t.Cleanup(func() { must.Do(t, e.Close()) })
	return Model{Name: name, Encoder: e}
}

// post sends a request, and returns the status and the body.
func (s *serving) post(path, body string) (int, string) {
	s.t.Helper()
	r, err := http.Post(s.server.URL+path, "application/json", strings.NewReader(body))
	must.Do(s.t, err)
	defer r.Body.Close()
	return r.StatusCode, string(must.Get(io.ReadAll(r.Body))(s.t))
}

// ask sends a request that must succeed, and reads the answer.
func (s *serving) ask(path, body string, to any) {
	s.t.Helper()
	status, text := s.post(path, body)
	if status != http.StatusOK {
		s.t.Fatalf("%s %s: %d %s", path, body, status, text)
	}
	must.Do(s.t, json.Unmarshal([]byte(text), to))
}

// events returns what a stream's lines hold. The last one has to be [DONE].
func events(t testing.TB, body string) (list []chatResponse) {
	t.Helper()
	lines := bufio.NewScanner(bytes.NewReader([]byte(body)))
	done := false
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case lines.Text() == "":
		case !ok || done:
			t.Fatalf("a line of the stream is %q", lines.Text())
		case text == "[DONE]":
			done = true
		default:
			var r chatResponse
			must.Do(t, json.Unmarshal([]byte(text), &r))
			list = append(list, r)
		}
	}
	if !done {
		t.Fatalf("the stream has no end: %.300q", body)
	}
	return list
}

// tokenizerOf opens the tokenizer of writeModel.
func tokenizerOf(t testing.TB, marks ...string) *tokenizer.Tokenizer {
	return must.Get(tokenizer.Open(writeModel(t, "", marks...)))(t)
}
