package openai

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
)

// What a small body becomes is counted before it does. Nothing counts in the end.
func TestMemory(t *testing.T) {
	m := decoderOf(t, "tiny", writeModel(t, template, "<tool_call>", "</tool_call>"), text.BatcherOptions{})
	s := serveModels(t, Options{MaxBody: 1 << 20, Memory: 8 << 20}, m, encoderOf(t, "bert", "bert"), encoderOf(t, "ranks", "cross-bert"))
	lists, ones, keys := strings.Repeat("[],", 300_000)+"[]", strings.Repeat("1,", 1<<18)+"1", strings.Builder{}
	long := strings.Repeat("ab ", 300_000)
	for i := range 60_000 {
		fmt.Fprintf(&keys, `"%d": 1,`, i)
	}
	const hi = `"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]`
	for name, c := range map[string]struct {
		path, body string
		status     int
		param      string
	}{
		"variables": {"chat/completions", `{` + hi + `, "chat_template_kwargs": {"a": [` + lists + `]}}`, 413, ""},
		"tools":     {"chat/completions", `{` + hi + `, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"enum": [` + lists + `]}}}]}`, 413, ""},
		"calls":     {"chat/completions", `{"model": "tiny", "messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"a\": [` + lists + `]}"}}]}]}`, 413, ""},
		"biases":    {"chat/completions", `{` + hi + `, "n": 64, "logit_bias": {` + keys.String() + `"99999": 2}}`, 413, ""},
		"chat":      {"chat/completions", `{"model": "tiny", "messages": [{"role": "user", "content": "` + long + `"}]}`, 413, "messages"},
		"prompt":    {"completions", `{"model": "tiny", "prompt": "` + long + `"}`, 413, "prompt"},
		"tokens":    {"completions", `{"model": "tiny", "prompt": [` + ones + `]}`, 400, "prompt[0]"},
		"text":      {"embeddings", `{"model": "bert", "input": "` + long + `"}`, 413, "input[0]"},
		"query":     {"rerank", `{"model": "ranks", "query": "` + long + `", "documents": ["a"]}`, 413, "documents"},
	} {
		began := time.Now()
		status, got := s.post("/v1/"+c.path, c.body)
		if status != c.status || !strings.Contains(got, `"param":"`+c.param) && c.param != "" || time.Since(began) > 5*time.Second {
			t.Errorf("%s: %d %.300s after %v", name, status, got, time.Since(began))
		}
	}
	if _, err := newFields("a", []byte("{"+strings.Repeat(`"a":1,`, mostFields)+`"a":1}`)); err == nil || !strings.Contains(err.Error(), "more than 262144 fields") {
		t.Errorf("many fields: %v", err)
	}
	if s.h.bodies.Used() != 0 || s.h.texts.free != 8<<20 {
		t.Errorf("%d bytes of bodies and %d of texts count after the last request", s.h.bodies.Used(), 8<<20-s.h.texts.free)
	}
}

// Long texts wait for each other, and leave the queue with their clients.
func TestTurns(t *testing.T) {
	turns, used := newTurns(100), atomic.Int64{}
	var group sync.WaitGroup
	for i := range 200 {
		group.Add(1)
		go func() {
			defer group.Done()
			r := rand.New(rand.NewPCG(3, uint64(i)))
			n := 1 + r.Int64N(100)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(10))*time.Millisecond)
			defer cancel()
			if err := turns.take(ctx, n); err != nil {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				return
			}
			if used.Add(n) > 100 {
				t.Error("more is taken than there is")
			}
			runtime.Gosched()
			used.Add(-n)
			turns.give(n)
		}()
	}
	group.Wait()
	must.Do(t, turns.take(t.Context(), 100))
	if len(turns.first) != 0 || turns.free != 0 {
		t.Errorf("left: %d waits, %d bytes", len(turns.first), turns.free)
	}
}

// A client that leaves while its text waits for memory is not answered.
func TestTurns_Leave(t *testing.T) {
	m := decoderOf(t, "tiny", writeModel(t, template), text.BatcherOptions{})
	s := serveModels(t, Options{}, m)
	must.Do(t, s.h.texts.take(t.Context(), s.h.o.Memory))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r := must.Get(http.NewRequestWithContext(ctx, "POST", s.server.URL+"/v1/chat/completions", strings.NewReader("{"+question+"}")))(t)
	if _, err := http.DefaultClient.Do(r); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	for began := time.Now(); s.h.bodies.Used() != 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > 5*time.Second {
			t.Fatal("the request still waits")
		}
	}
	s.h.texts.give(s.h.o.Memory)
	var whole chatResponse
	s.ask("/v1/chat/completions", "{"+question+"}", &whole)
}
