package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// soak is a server under requests of all kinds.
type soak struct {
	*serving
	chats   map[string]string // the content of each chat, by its body
	vectors map[string][]float32
	scores  []float32
	counts  [8]atomic.Int64
}

var rankTexts = []string{"the tide", "a ship", "the sea"}

// Requests of all kinds come at once. Some clients leave, read slowly, close half of their
// connection, or send what is damaged. Models come and go. Each answer is that of the request
// alone, and nothing is left in the end. STREAMTORCH_SOAK is the number of requests.
func TestHandler_Soak(t *testing.T) {
	torchtest.CheckLeaks(t)
	count := 1000
	if text := os.Getenv("STREAMTORCH_SOAK"); text != "" {
		count = must.Get(strconv.Atoi(text))(t)
	}
	// Pages for a third of what is under way.
	m := must.Get(text.Open(cgotorch.CPU, writeModel(t, template), text.Options{RandomWeights: 5, Context: 512, CacheTokens: 1024}))(t)
	t.Cleanup(func() { must.Do(t, m.Close()) })
	b := must.Get(m.NewBatcher(text.BatcherOptions{MaxBatch: 8, Queue: 1000, Reproducible: true}))(t)
	t.Cleanup(func() { must.Do(t, b.Close()) })
	s := &soak{serving: serveModels(t, Options{MaxBody: 64 << 10, Stall: 2 * time.Second}, Model{Name: "tiny", Decoder: m, Batcher: b}, encoderOf(t, "bert", "bert"), encoderOf(t, "ranks", "cross-bert"))}
	s.learn()

	var group sync.WaitGroup
	next := atomic.Int64{}
	for worker := range 12 {
		group.Add(1)
		go func() {
			defer group.Done()
			r := rand.New(rand.NewPCG(uint64(worker), 9))
			for next.Add(1) <= int64(count) {
				s.request(r)
			}
		}()
	}
	ended := make(chan struct{})
	go s.comeAndGo(ended)
	group.Wait()
	<-time.After(10 * time.Millisecond)
	ended <- struct{}{}
	http.DefaultClient.CloseIdleConnections()
	s.server.Close()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		stats := b.Stats()
		if stats.Running+stats.Waiting == 0 && stats.FreePages+stats.PrefixPages == stats.Pages && s.h.bodies.Used() == 0 {
			break
		}
		if time.Since(began) > 5*time.Second {
			t.Fatalf("left: %+v, %d bytes of bodies", stats, s.h.bodies.Used())
		}
	}
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	t.Logf("chats %d, cancelled %d, vectors %d, ranks %d, damaged %d, half closed %d, slow %d, models gone %d; %d MiB", s.counts[0].Load(), s.counts[1].Load(),
		s.counts[2].Load(), s.counts[3].Load(), s.counts[4].Load(), s.counts[5].Load(), s.counts[6].Load(), s.counts[7].Load(), memory.HeapAlloc>>20)
	for i := range s.counts {
		if s.counts[i].Load() == 0 {
			t.Errorf("no request was of kind %d", i)
		}
	}
}

// learn asks for all answers alone.
func (s *soak) learn() {
	s.chats, s.vectors = map[string]string{}, map[string][]float32{}
	for i := range 24 {
		body := fmt.Sprintf(`{"model": "tiny", "messages": [{"role": "system", "content": "%s"}, {"role": "user", "content": "question %d"}], "max_tokens": %d, "temperature": 1, "seed": %d`,
			strings.Repeat("Be brief. ", i%5), i, 5+i*3, i)
		if i%6 == 5 {
			body += `, "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": ` + person + `}}`
		}
		s.chats[body] = s.chat(body)
	}
	for i := range 12 {
		text := strings.Repeat("tide ", i%3) + fmt.Sprint(i)
		s.vectors[text] = s.vector(text)
	}
	s.scores = s.ranks()
}

func (s *soak) chat(body string) string {
	var r chatResponse
	s.ask("/v1/chat/completions", body+"}", &r)
	return *r.Choices[0].Message.Content + "|" + *r.Choices[0].Reason
}

func (s *soak) vector(text string) []float32 {
	var r struct {
		Data []struct{ Embedding []float32 }
	}
	s.ask("/v1/embeddings", fmt.Sprintf(`{"model": "bert", "input": %q}`, text), &r)
	return r.Data[0].Embedding
}

func (s *soak) ranks() []float32 {
	var r struct {
		Results []struct {
			Index int
			Score float32 `json:"relevance_score"`
		}
	}
	s.ask("/v1/rerank", `{"model": "ranks", "query": "the sea", "documents": ["the tide", "a ship", "the sea"]}`, &r)
	scores := make([]float32, len(rankTexts))
	for _, one := range r.Results {
		scores[one.Index] = one.Score
	}
	return scores
}

// one returns a random element of a map.
func one[V any](r *rand.Rand, of map[string]V) (string, V) {
	at := r.IntN(len(of))
	for key, v := range of {
		if at--; at < 0 {
			return key, v
		}
	}
	panic("unreachable")
}

// request sends one request of a random kind.
func (s *soak) request(r *rand.Rand) {
	switch kind := r.IntN(100); {
	case kind < 25:
		s.counts[0].Add(1)
		body, want := one(r, s.chats)
		if got := s.chat(body); got != want {
			s.t.Errorf("a chat got %q, want %q", got, want)
		}
	case kind < 60:
		s.counts[1].Add(1)
		s.leave(r)
	case kind < 70:
		s.counts[2].Add(1)
		text, want := one(r, s.vectors)
		for i, v := range s.vector(text) {
			if math.Abs(float64(v-want[i])) > 1e-5 {
				s.t.Errorf("the vector of %q differs", text)
				break
			}
		}
	case kind < 75:
		s.counts[3].Add(1)
		for i, v := range s.ranks() {
			if math.Abs(float64(v-s.scores[i])) > 1e-5 {
				s.t.Errorf("the scores differ")
			}
		}
	case kind < 90:
		s.counts[4].Add(1)
		s.damage(r)
	case kind < 95:
		s.counts[5].Add(1)
		s.half(r)
	default:
		s.counts[6].Add(1)
		s.slow(r)
	}
}

// leave begins a chat, and leaves before, in or behind its answer.
func (s *soak) leave(r *rand.Rand) {
	body, want := one(r, s.chats)
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	if r.IntN(2) == 0 {
		time.AfterFunc(time.Duration(r.IntN(20_000))*time.Microsecond, cancel)
	}
	request := must.Get(http.NewRequestWithContext(ctx, "POST", s.server.URL+"/v1/chat/completions", strings.NewReader(body+`, "stream": true}`)))(s.t)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		s.t.Errorf("a stream has the status %d", answer.StatusCode)
		return
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, int64(r.IntN(6000))))
	if err != nil || !bytes.Contains(text, []byte("[DONE]")) {
		return
	}
	got, reason := "", ""
	for _, e := range events(s.t, string(text)) {
		if c := e.Choices[0]; c.Delta.Content != nil {
			got += *c.Delta.Content
		} else if c.Reason != nil {
			reason = *c.Reason
		}
	}
	if got+"|"+reason != want {
		s.t.Errorf("a stream got %q, want %q", got, want)
	}
}

// damage sends what cannot be answered.
func (s *soak) damage(r *rand.Rand) {
	body, _ := one(r, s.chats)
	body += "}"
	want := http.StatusBadRequest
	switch r.IntN(5) {
	case 0:
		body = body[:r.IntN(len(body))]
	case 1:
		body = strings.Replace(body, `"max_tokens"`, `"max_tokns"`, 1)
	case 2:
		body, want = strings.Replace(body, "Be brief", strings.Repeat("x", 70_000), 1)+strings.Repeat(" ", 70_000), http.StatusRequestEntityTooLarge
	case 3:
		body, want = strings.Replace(body, `"tiny"`, `"none"`, 1), http.StatusNotFound
	case 4:
		body = strings.Replace(body, `"user"`, `"nobody"`, 1)
	}
	if status, text := s.post("/v1/chat/completions", body); status != want || !strings.Contains(text, `"error"`) {
		s.t.Errorf("%.100s: %d %s, want %d", body, status, text, want)
	}
}

// half sends a request, or a part of it, and then closes its half of the connection.
func (s *soak) half(r *rand.Rand) {
	body, _ := one(r, s.chats)
	body += `, "stream": true}`
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.server.URL, "http://"))
	if err != nil {
		s.t.Error(err)
		return
	}
	defer conn.Close()
	sent := len(body)
	if r.IntN(2) == 0 {
		sent = r.IntN(len(body))
	}
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:sent])
	_ = conn.(*net.TCPConn).CloseWrite()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.Copy(io.Discard, conn); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		s.t.Error("a half-closed connection is still open after five seconds")
	}
}

// slow reads an answer byte by byte for a while.
func (s *soak) slow(r *rand.Rand) {
	body, _ := one(r, s.chats)
	answer, err := http.Post(s.server.URL+"/v1/chat/completions", "application/json", strings.NewReader(body+`, "stream": true, "n": 3}`))
	if err != nil {
		s.t.Error(err)
		return
	}
	defer answer.Body.Close()
	for range 20 {
		if _, err := answer.Body.Read(make([]byte, 8)); err != nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// comeAndGo adds and removes a model that its clients see ready, closed, or not at all.
func (s *soak) comeAndGo(ended chan struct{}) {
	folder := writeModel(s.t, template)
	for {
		m := must.Get(text.Open(cgotorch.CPU, folder, text.Options{RandomWeights: 6}))(s.t)
		b := must.Get(m.NewBatcher(text.BatcherOptions{}))(s.t)
		must.Check(s.t, s.h.Add(Model{Name: "guest", Decoder: m, Batcher: b}))
		var group sync.WaitGroup
		for i := range 3 {
			group.Add(1)
			go func() {
				defer group.Done()
				status, body := s.post("/v1/chat/completions", fmt.Sprintf(`{"model": "guest", "messages": [{"role": "user", "content": "%d"}], "max_tokens": 60}`, i))
				var r chatResponse
				if status == 200 && (json.Unmarshal([]byte(body), &r) != nil || r.Choices[0].Reason == nil) || status != 200 && status != 404 && status != 503 {
					s.t.Errorf("a guest answers %d %s", status, body)
				}
			}()
		}
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Duration(rand.IntN(15))*time.Millisecond)
		_ = s.h.Remove(ctx, "guest") // at worst its requests go on, and Close ends them
		cancel()
		must.Check(s.t, b.Close())
		must.Check(s.t, m.Close())
		group.Wait()
		s.counts[7].Add(1)
		select {
		case <-ended:
			return
		default:
		}
	}
}
