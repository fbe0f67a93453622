package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/internal/must"
)

// writeDecoder writes a folder of a tiny model with a tokenizer of a few letters and a template.
func writeDecoder(t *testing.T) string {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"config.json": `{"model_type": "llama", "vocab_size": 8, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
			"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "eos_token_id": 7, "torch_dtype": "float32"}`,
		"tokenizer.json":      `{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 6, "h": 7}, "merges": []}, "decoder": {"type": "ByteLevel"}}`,
		"chat_template.jinja": `{% for m in messages %}{{ m.content }}{% endfor %}`,
	} {
		must.Do(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
	}
	return folder
}

// A server has language models and encoders beside its other ones. They are loaded and unloaded on
// the address of -admin, and /metrics has their counts.
func TestServe_Texts(t *testing.T) {
	const vectors = "../../tests/parity/encoders/testdata/bert"
	weights := writeDecoder(t)
	s := start(t, flags{texts: folders{"tiny=" + weights}, encoders: folders{vectors}, random: 3})
	ask := func(path, body string) (int, string) { return s.call(t, "POST", s.main+path, []byte(body)) }
	const chat = `{"model": "tiny", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 5}`
	for _, c := range []struct {
		path, body, want string
	}{
		{"/v1/chat/completions", chat, `"prompt_tokens":3`},
		{"/v1/embeddings", `{"model": "bert", "input": "a"}`, `"embedding":[`},
		{"/v1/completions", `{"model": "tiny", "prompt": "ab", "stream": true}`, "[DONE]"},
	} {
		if status, body := ask(c.path, c.body); status != 200 || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s", c.path, status, body)
		}
	}
	if status, body := ask("/v2/rerank", `{"model": "bert", "query": "a", "documents": ["b"]}`); status != 400 || !strings.Contains(body, "/v1/embeddings") {
		t.Errorf("an encoder that does not rank: %d %s", status, body)
	}
	if status, body := s.call(t, "GET", s.admin+"/metrics", nil); status != 200 || !strings.Contains(body, `streamtorch_text_answers_total{model="tiny"} 2`) || !strings.Contains(body, `streamtorch_text_encoder_texts_total{model="bert"} 1`) {
		t.Errorf("the metrics are %d %s", status, body)
	}
	if status, body := s.call(t, "POST", s.main+"/v1/models/tiny/unload", nil); status != 404 && status != 405 {
		t.Errorf("unload on the public address: %d %s", status, body)
	}
	for range 2 {
		for _, verb := range []string{"unload", "unload", "load", "load"} {
			if status, body := s.call(t, "POST", s.admin+"/v1/models/tiny/"+verb, nil); status != 200 {
				t.Fatalf("%s: %d %s", verb, status, body)
			}
			want := map[string]int{"unload": 404, "load": 200}[verb]
			if status, body := ask("/v1/chat/completions", chat); status != want {
				t.Errorf("a chat after %s: %d %s", verb, status, body)
			}
		}
	}
	if status, _ := s.call(t, "POST", s.admin+"/v1/models/other/load", nil); status != 404 {
		t.Errorf("an unknown model: %d", status)
	}
	_, body := s.call(t, "GET", s.main+"/status", nil)
	var now numbers
	must.Do(t, json.Unmarshal([]byte(body), &now))
	if len(now.Texts) != 2 || now.Texts[0].State != "ready" || !strings.Contains(now.Texts[0].Limits, "256 tokens") || !strings.Contains(now.Limits, "1 MiB") {
		t.Errorf("the page has %s", body)
	}
}

// Two models of one name, and a folder without a model, end the server with an error that names
// them.
func TestServe_TextsRefused(t *testing.T) {
	for _, c := range []struct {
		f    flags
		want string
	}{
		{flags{texts: folders{"a=x", "a=y"}}, `the name "a"`},
		{flags{texts: folders{"a=" + t.TempDir()}}, "config.json"},
		{flags{encoders: folders{t.TempDir()}}, "config.json"},
		{flags{encoders: folders{t.TempDir()}, quantize: "int8"}, "there is no -text"},
	} {
		c.f.listen, c.f.device, c.f.perClient, c.f.timeout, c.f.maxBody = "localhost:0", "cpu", 8, 1e9, 1
		opened := must.Get(open(c.f))(t)
		if err := opened.run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.f.texts, err, c.want)
		}
		opened.close()
	}
}

// What the guard denies has the form of OpenAI's errors, by which clients know the class.
func TestDeny_OpenAI(t *testing.T) {
	for _, c := range []struct {
		path   string
		status int
		want   string
	}{
		{"/v1/models", 401, `{"error":{"code":"invalid_api_key","message":"x","param":null,"type":"authentication_error"}}`},
		{"/v2/rerank", 429, `{"error":{"code":"rate_limit_exceeded","message":"x","param":null,"type":"rate_limit_exceeded"}}`},
		{"/v1/chat/completions", 403, `{"error":{"code":null,"message":"x","param":null,"type":"permission_error"}}`},
		{"/v1/chat/completions", 503, `{"error":{"code":null,"message":"x","param":null,"type":"server_error"}}`},
		{"/v2/models", 429, `{"error":"x"}`},
	} {
		w := httptest.NewRecorder()
		deny(w, httptest.NewRequest("POST", c.path, nil), c.status, "x")
		if got := strings.TrimSpace(w.Body.String()); got != c.want || w.Code != c.status {
			t.Errorf("%s: %d %s, want %d %s", c.path, w.Code, got, c.status, c.want)
		}
	}
}

// A name may have slashes, as those of Hugging Face do.
func TestServe_TextsSlash(t *testing.T) {
	s := start(t, flags{texts: folders{"some/tiny=" + writeDecoder(t)}, random: 3})
	for _, c := range []struct {
		method, url string
		status      int
		want        string
	}{
		{"GET", s.main + "/v1/models/some/tiny", 200, `"id":"some/tiny"`},
		{"GET", s.main + "/v1/models/some%2Ftiny", 200, `"id":"some/tiny"`},
		{"POST", s.admin + "/v1/models/some/tiny/unload", 200, "[]\n"},
		{"GET", s.main + "/v1/models/some/tiny", 404, "model_not_found"},
		{"GET", s.main + "/v1/models", 200, `"data":[]`},
		{"POST", s.admin + "/v1/models/some%2Ftiny/load", 200, `["some/tiny"]`},
		{"POST", s.admin + "/v1/models/some/tiny", 404, "there is no"},
		{"POST", s.admin + "/v1/models/load", 404, `is no model`},
	} {
		if status, body := s.call(t, c.method, c.url, nil); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.url, status, body, c.status, c.want)
		}
	}
}

// Loads and unloads come beside requests, metrics and the page. Each request is answered, or told
// that the model is gone.
func TestServe_TextsComeAndGo(t *testing.T) {
	s := start(t, flags{texts: folders{"a=" + writeDecoder(t), "b=" + writeDecoder(t)}, encoders: folders{"../../tests/parity/encoders/testdata/bert"}, random: 3})
	ended := make(chan struct{})
	var group sync.WaitGroup
	again := func(fn func(i int)) {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := 0; ; i++ {
				select {
				case <-ended:
					return
				default:
					fn(i)
				}
			}
		}()
	}
	for k := range 3 {
		again(func(i int) {
			body := fmt.Sprintf(`{"model": "%c", "messages": [{"role": "user", "content": "abc"}], "max_tokens": %d, "stream": %t}`, "ab"[i%2], 1+i%40, k == 1)
			path := "/v1/chat/completions"
			if k == 2 {
				path, body = "/v1/embeddings", `{"model": "bert", "input": "a"}`
			}
			switch status, got := s.call(t, "POST", s.main+path, []byte(body)); {
			case status == 200 && k == 1 && !strings.Contains(got, "[DONE]") && !strings.Contains(got, "closed"):
				t.Errorf("a stream ends with %s", got)
			case status != 200 && status != 404 && status != 503:
				t.Errorf("a request: %d %s", status, got)
			}
		})
	}
	for _, name := range []string{"a", "a", "b", "bert"} {
		again(func(i int) {
			verb := []string{"load", "unload"}[i%2]
			if status, got := s.call(t, "POST", s.admin+"/v1/models/"+name+"/"+verb, nil); status != 200 {
				t.Errorf("%s %s: %d %s", verb, name, status, got)
			}
		})
	}
	again(func(int) {
		s.answers(t, "GET", s.admin+"/metrics", nil, 200, "streamtorch_text")
		s.answers(t, "GET", s.main+"/status", nil, 200, `"texts"`)
	})
	time.Sleep(700 * time.Millisecond)
	close(ended)
	group.Wait()
}

// An unload whose client has left while it waited changes nothing. Meanwhile the other models are
// shown as ready.
func TestTexts_Left(t *testing.T) {
	x := must.Get(newTexts(flags{texts: folders{"a=" + writeDecoder(t)}, random: 3}, cgotorch.CPU, newMetrics(serve.NewRepository(serve.RepositoryOptions{}), cgotorch.CPU)))(t)
	must.Do(t, x.loadAll(t.Context()))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, fn := range []func(context.Context, string) error{x.load, x.unload} {
		if err := fn(over, "a"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	x.mu.Lock() // as a load of another model
	list := x.status()
	x.mu.Unlock()
	if len(list) != 1 || list[0].State != "ready" {
		t.Errorf("got %+v", list)
	}
	must.Do(t, x.close())
	if list = x.status(); list[0].State != "not loaded" {
		t.Errorf("after close: %+v", list)
	}
}
