package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/cgotorch/text/openai"
)

// benchTextHTTP measures the callers of benchArrivals over HTTP, beside those in the process.
// Client and server are one process.
func benchTextHTTP(c *config, emit func(row)) error {
	llama := maps.Clone(llamas["8b"])
	if c.brief {
		llama = maps.Clone(llamas["tiny"])
	}
	llama["eos_token_id"] = 0
	r := &callersRun{c: c, emit: emit, cached: c.or(20_000, 300_000)}
	var err error
	if r.folder, err = configFolder(llama); err != nil {
		return err
	}
	defer os.RemoveAll(r.folder)
	if err := writeTokenizer(r.folder, llama["vocab_size"].(int)); err != nil {
		return err
	}
	if r.m, err = text.Open(c.device, r.folder, text.Options{RandomWeights: 1, Context: 4096, CacheTokens: r.cached}); err != nil {
		return err
	}
	defer r.m.Close()
	b, err := r.batcher(64, 0)
	if err != nil {
		return err
	}
	defer b.Close()
	h := openai.NewHandler(openai.Options{})
	if err := h.Add(openai.Model{Name: "llama", Decoder: r.m, Batcher: b}); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h}
	go server.Serve(l) //nolint:errcheck // it ends with the Close below
	defer server.Close()
	r.note = fmt.Sprintf("bfloat16, random weights, streamed; client and server in one process; %s", c.settings())
	return errors.Join(r.overHTTP(b, "http://"+l.Addr().String()), r.bounded())
}

// bounded makes the row of what a schema adds to a token.
func (r *callersRun) bounded() error {
	conversation := r.m.NewConversation()
	defer conversation.Close()
	schema, err := text.CompileSchema([]byte(`{"type": "array", "minItems": 1000, "items": {"type": "string", "minLength": 20, "maxLength": 60}}`))
	if err != nil {
		return err
	}
	side := func(bound bool) side {
		return func() (each float64, err error) {
			o := text.GenerateOptions{Greedy: true}
			if bound {
				if o.Mask, err = r.m.SchemaMask(schema); err != nil {
					return 0, err
				}
			}
			_, each, err = answer(conversation, o, 100, r.c.or(4, 128))
			return each, err
		}
	}
	values, err := interleave(r.c.roundsOr(5), side(true), side(false))
	if err != nil {
		return err
	}
	r.emit(inTurns("text/http-8b/schema", values[0], "ms", "an answer without a schema", values[1], lower, "a token of a conversation, a list of strings; "+r.note))
	return nil
}

// writeTokenizer writes a tokenizer with a token for each sign of ASCII, and others up to `size`.
func writeTokenizer(folder string, size int) error {
	vocab := map[string]int{}
	for id := range size {
		name := fmt.Sprintf("t%d", id)
		if id > ' ' && id <= '~' {
			name = string(rune(id))
		}
		vocab[name] = id
	}
	file, err := json.Marshal(map[string]any{"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}}, "decoder": map[string]string{"type": "ByteLevel"}})
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "tokenizer.json"), file, 0o666)
	}
	return err
}

// overHTTP makes the rows.
func (r *callersRun) overHTTP(b *text.Batcher, url string) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}}
	defer client.CloseIdleConnections()
	asked := func(_ context.Context, q textRequest) (first time.Duration, tokens int, err error) {
		return streamed(client, url, q)
	}
	inside := func(ctx context.Context, q textRequest) (first time.Duration, tokens int, err error) {
		began := time.Now()
		when, err := served(ctx, b, q.prompt, q.most)
		if err != nil {
			return 0, 0, err
		}
		return when[0].Sub(began), len(when), nil
	}
	if err := r.firstTokens(asked, inside); err != nil {
		return err
	}
	for _, n := range []int{16, 64} {
		if r.c.brief && n > 16 {
			break
		}
		if _, err := rateOf(r.requests(n, 98), n, inside); err != nil { // makes graphs
			return err
		}
		var sides []side
		round := 0
		for _, ask := range []func(context.Context, textRequest) (time.Duration, int, error){asked, inside} {
			sides = append(sides, func() (float64, error) {
				round++
				return rateOf(r.again(r.requests(2*n, uint64(n)), round), n, ask)
			})
		}
		values, err := interleave(r.c.roundsOr(3), sides...)
		if err != nil {
			return err
		}
		r.emit(inTurns(fmt.Sprintf("text/http-8b/closed-%d", n), values[0], "tokens/s", "in the process", values[1], higher,
			fmt.Sprintf("%d callers, %d requests; %s", n, 2*n, r.note)))
	}
	return nil
}

// firstTokens makes the row of what HTTP adds to the time to the first token.
func (r *callersRun) firstTokens(asked, inside func(context.Context, textRequest) (time.Duration, int, error)) error {
	random := rand.New(rand.NewPCG(8, 8))
	var over, within sample
	for i := range 2 * r.c.or(3, 40) {
		ask, to := inside, &within
		if i%2 == 1 {
			ask, to = asked, &over
		}
		first, _, err := ask(context.Background(), textRequest{randomPrompt(random, r.c.or(20, 500)), 2})
		if err != nil {
			return err
		}
		if i > 3 {
			*to = append(*to, first.Seconds()*1e3)
		}
	}
	r.emit(against("text/http-8b/first-token", over.median(), "ms", "in the process", within.median(), lower,
		fmt.Sprintf("a prompt of 500 tokens, alone, in turns; %v over HTTP, %v in the process; %s", over, within, r.note)))
	return nil
}

// rateOf lets n callers ask all requests, and returns the tokens a second.
func rateOf(all []textRequest, n int, ask func(context.Context, textRequest) (time.Duration, int, error)) (float64, error) {
	var made atomic.Int64
	seconds, err := askAll(n, len(all), func(_, i int) error {
		_, tokens, err := ask(context.Background(), all[i])
		made.Add(int64(tokens))
		return err
	})
	return float64(made.Load()) / seconds, err
}

// streamed asks for one answer over HTTP.
func streamed(client *http.Client, url string, q textRequest) (first time.Duration, tokens int, err error) {
	body, err := json.Marshal(map[string]any{
		"model": "llama", "prompt": q.prompt, "max_tokens": q.most, "temperature": 0, "ignore_eos": true, "stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	answer, err := client.Post(url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		return 0, 0, fmt.Errorf("%s: %s", answer.Status, text)
	}
	lines := bufio.NewScanner(answer.Body)
	var usage struct {
		Usage *struct {
			Completion int `json:"completion_tokens"`
		}
	}
	for lines.Scan() {
		line, data := strings.CutPrefix(lines.Text(), "data: ")
		if data && first == 0 {
			first = time.Since(began)
		}
		if strings.Contains(line, `"usage"`) {
			if err := json.Unmarshal([]byte(line), &usage); err != nil {
				return 0, 0, err
			}
		}
	}
	if usage.Usage == nil {
		return 0, 0, errors.Join(errors.New("a stream has no usage"), lines.Err())
	}
	return first, usage.Usage.Completion, lines.Err()
}
