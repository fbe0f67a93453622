package text_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// openServed opens a model of configs, on a GPU one that the kernels of a token take.
func openServed(t *testing.T, name string, o text.Options) *text.Model {
	t.Helper()
	if torchtest.Device().IsCUDA() {
		o.DType = cgotorch.BFloat16
	}
	return openRandom(t, servedConfig(name), o)
}

// servedConfig returns one of configs, on a GPU with heads that the kernels of a token take.
func servedConfig(name string) string {
	config := configs[name]
	if torchtest.Device().IsCUDA() {
		config = strings.NewReplacer(`"hidden_size": 32`, `"hidden_size": 64`, `"head_dim": 8`, `"head_dim": 16`, "[1, 1.1, 1.2, 1.3]", "[1, 1.1, 1.2, 1.3, 1, 1, 1, 1]",
			"[2, 3, 4, 5]", "[2, 3, 4, 5, 1, 1, 1, 1]").Replace(config)
	}
	return config
}

// batcherOf makes a Batcher that is closed before the test's model.
func batcherOf(t *testing.T, m *text.Model, o text.BatcherOptions) *text.Batcher {
	t.Helper()
	b := must.Get(m.NewBatcher(o))(t)
	t.Cleanup(func() { must.Do(t, b.Close()) })
	return b
}

// answerOf runs a whole Generate of a Batcher. It may be called from any goroutine.
func answerOf(ctx context.Context, b *text.Batcher, prompt []int64, o text.GenerateOptions) (ids []int64, logs []float64, err error) {
	for token, err := range b.Generate(ctx, prompt, o) {
		if err != nil {
			return ids, logs, err
		}
		ids, logs = append(ids, token.ID), append(logs, token.LogProb)
	}
	return ids, logs, nil
}

// servedOptions are answers that need different things of a step.
func servedOptions(i, vocab int) text.GenerateOptions {
	all := []text.GenerateOptions{
		{Greedy: true},
		{Temperature: 1.2, TopK: -1},
		{Temperature: 0.8, TopK: 7},
		{Temperature: 1.5, TopK: -1, TopP: 0.8},
		{Temperature: 1, TopK: 20, MinP: 0.05},
		{Greedy: true, RepetitionPenalty: 1.3, PresencePenalty: 0.2, FrequencyPenalty: 0.1},
		{Greedy: true, Bias: map[int64]float64{3: 4, 5: -4}},
		{Temperature: 1, Mask: func(answer []int64, allowed []bool) {
			for id := range allowed {
				allowed[id] = id%3 == len(answer)%3
			}
		}},
		{Greedy: true, Ranked: 3},
	}
	o := all[i%len(all)]
	o.Seed, o.IgnoreEnd = uint64(i), true
	return o
}

// Each answer is the one that a conversation gives.
func TestBatcher_Answers(t *testing.T) {
	for name := range configs {
		t.Run(name, func(t *testing.T) { checkAnswers(t, name, false) })
		t.Run(name+"/beside", func(t *testing.T) { checkAnswers(t, name, true) })
	}
}

// checkAnswers compares answers. With `beside` steps take pieces of prompts with them, on the CPU
// too.
func checkAnswers(t *testing.T, name string, beside bool) {
	m := openServed(t, name, text.Options{Context: 200, CacheTokens: 4000})
	b := batcherOf(t, m, text.BatcherOptions{MaxBatch: 6, Piece: 16})
	if able := b.CapturePieces(beside); beside && !able {
		t.Skip("its pieces are not captured")
	}
	const requests = 24
	r := rand.New(rand.NewPCG(1, 2))
	prompts := make([][]int64, requests)
	for i := range prompts {
		prompts[i] = randomTokens(r, 1+r.IntN(90))
	}
	var wg sync.WaitGroup
	ids, logs, errs := make([][]int64, requests), make([][]float64, requests), make([]error, requests)
	options := func(i int) text.GenerateOptions {
		o := servedOptions(i, 61)
		o.MaxTokens = 1 + i*7%40
		return o
	}
	for i := range requests {
		wg.Add(1)
		go func() {
			defer wg.Done()
			ids[i], logs[i], errs[i] = answerOf(t.Context(), b, prompts[i], options(i))
		}()
	}
	wg.Wait()
	for i := range requests {
		if errs[i] != nil {
			t.Fatalf("request %d: %v", i, errs[i])
		}
		if torchtest.Device().IsCUDA() { // other kernels round otherwise
			if len(ids[i]) != options(i).MaxTokens {
				t.Errorf("request %d has %d tokens, want %d", i, len(ids[i]), options(i).MaxTokens)
			}
			continue
		}
		c := m.NewConversation()
		want, wantLogs := tokensOf(t, c, prompts[i], options(i))
		must.Do(t, c.Close())
		if !slices.Equal(ids[i], want) {
			t.Errorf("request %d: got %v, want %v", i, ids[i], want)
			continue
		}
		for k := range want {
			if math.Abs(logs[i][k]-wantLogs[k]) > 1e-3 {
				t.Errorf("request %d, token %d: its log probability is %v, want %v", i, k, logs[i][k], wantLogs[k])
				break
			}
		}
	}
	if n := b.StepsBeside(); beside && n < 10 {
		t.Errorf("%d steps had a piece beside", n)
	}
}

// With Reproducible an answer has the same bits alone and beside others, where pages are scarce,
// callers leave, and prompts begin alike.
func TestBatcher_Reproducible(t *testing.T) {
	for name := range configs {
		t.Run(name, func(t *testing.T) {
			m := openServed(t, name, text.Options{Context: 160, CacheTokens: 320})
			b := batcherOf(t, m, text.BatcherOptions{MaxBatch: 8, Piece: 32, Reproducible: true})
			const requests = 40
			r := rand.New(rand.NewPCG(3, 4))
			prompts, same := make([][]int64, requests), randomTokens(r, 70)
			for i := range prompts {
				prompts[i] = randomTokens(r, 1+r.IntN(60))
				if i%3 == 0 {
					prompts[i] = slices.Concat(same, prompts[i][:min(len(prompts[i]), 20)])
				}
			}
			options := func(i int) text.GenerateOptions {
				o := servedOptions(i, 61)
				o.MaxTokens = 30 + i%20
				return o
			}
			var wg sync.WaitGroup
			ids, logs, errs := make([][]int64, requests), make([][]float64, requests), make([]error, requests)
			for i := range requests {
				wg.Add(1)
				go func() {
					defer wg.Done()
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if i%2 == 1 {
						time.AfterFunc(time.Duration(i)*time.Millisecond, cancel)
					}
					ids[i], logs[i], errs[i] = answerOf(ctx, b, prompts[i], options(i))
				}()
			}
			wg.Wait()
			stats := b.Stats()
			alone := batcherOf(t, m, text.BatcherOptions{MaxBatch: 8, Piece: 32, Reproducible: true})
			for i := range requests {
				if errs[i] != nil && !(i%2 == 1 && errors.Is(errs[i], context.Canceled)) {
					t.Fatalf("request %d: %v", i, errs[i])
				}
				want, wantLogs, err := answerOf(t.Context(), alone, prompts[i], options(i))
				must.Do(t, err)
				n := len(ids[i])
				if errs[i] == nil && n != len(want) || !slices.Equal(ids[i], want[:n]) || !slices.Equal(logs[i], wantLogs[:n]) {
					t.Errorf("request %d: got\n%v\n%v, want\n%v\n%v", i, ids[i], logs[i], want[:n], wantLogs[:n])
				}
			}
			if name == "llama" && (stats.Preempted == 0 || stats.Shared == 0) {
				t.Errorf("%d requests were preempted, and %d tokens were shared: the test means both to happen", stats.Preempted, stats.Shared)
			}
		})
	}
}

// An equal beginning is computed once, also by requests that come together.
func TestBatcher_EqualBeginnings(t *testing.T) {
	m := openServed(t, "llama", text.Options{Context: 600, CacheTokens: 1200})
	b := batcherOf(t, m, text.BatcherOptions{MaxBatch: 16, Piece: 64})
	r := rand.New(rand.NewPCG(5, 6))
	system := randomTokens(r, 480)
	var wg sync.WaitGroup
	for i := range 16 {
		prompt := slices.Concat(system, randomTokens(r, 5))
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, _, err := answerOf(t.Context(), b, prompt, text.GenerateOptions{MaxTokens: 8, IgnoreEnd: true}); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		}()
	}
	wg.Wait()
	if s := b.Stats(); s.Prompts != 480+16*5 || s.Shared != 15*480 {
		t.Errorf("%d tokens of prompts were computed and %d shared, want %d and %d", s.Prompts, s.Shared, 480+16*5, 15*480)
	}
}

// Requests that cannot be served get an error at once. The others are not disturbed.
func TestBatcher_Refusals(t *testing.T) {
	m := openServed(t, "llama", text.Options{Context: 100, CacheTokens: 100})
	b := batcherOf(t, m, text.BatcherOptions{MaxBatch: 1, Queue: 1})
	for name, prompt := range map[string][]int64{"an empty prompt": {}, "no token": {61}, "too long": make([]int64, 100)} {
		if _, _, err := answerOf(t.Context(), b, prompt, text.GenerateOptions{}); !errors.Is(err, cgotorch.ErrInvalidArgument) {
			t.Errorf("%s: got %v, want ErrInvalidArgument", name, err)
		}
	}
	for _, o := range []text.BatcherOptions{{MaxBatch: -1}, {MaxBatch: 2000}, {Queue: -1}, {Piece: 7}} {
		if b, err := m.NewBatcher(o); !errors.Is(err, cgotorch.ErrInvalidArgument) {
			b.Close()
			t.Errorf("%+v: got %v, want ErrInvalidArgument", o, err)
		}
	}
	if _, _, err := answerOf(t.Context(), b, []int64{1}, text.GenerateOptions{Mask: func([]int64, []bool) { panic("no") }}); err == nil {
		t.Error("a Mask that panics gives no error")
	}

	// One has the seat, one waits, and the third is refused.
	began, release := make(chan bool), make(chan bool)
	slow := text.GenerateOptions{MaxTokens: 2, IgnoreEnd: true, Mask: func(answer []int64, allowed []bool) {
		if len(answer) == 0 {
			close(began)
			<-release
		}
		allowed[1] = true
	}}
	errs := make(chan error, 2)
	go func() {
		_, _, err := answerOf(t.Context(), b, []int64{1, 2}, slow)
		errs <- err
	}()
	<-began
	go func() {
		_, _, err := answerOf(t.Context(), b, []int64{1, 2}, text.GenerateOptions{MaxTokens: 2})
		errs <- err
	}()
	for b.Stats().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	if _, _, err := answerOf(t.Context(), b, []int64{1}, text.GenerateOptions{}); !errors.Is(err, serve.ErrQueueFull) {
		t.Errorf("with a full queue: got %v, want ErrQueueFull", err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, fmt.Errorf("too late"))
	defer cancel()
	<-ctx.Done()
	if _, _, err := answerOf(ctx, b, []int64{1}, text.GenerateOptions{}); err == nil || err.Error() != "text: Generate: too late" {
		t.Errorf("behind its deadline: got %v, want the cause", err)
	}
	close(release)
	for range 2 {
		must.Do(t, <-errs)
	}
	must.Do(t, b.Close())
	if _, _, err := answerOf(t.Context(), b, []int64{1}, text.GenerateOptions{}); !errors.Is(err, cgotorch.ErrClosed) {
		t.Errorf("behind Close: got %v, want ErrClosed", err)
	}
}

// Conversations come and go, half of them cancelled, with pages for a third of them. None is lost
// or mixed up, and all pages come back.
func TestBatcher_ComeAndGo(t *testing.T) {
	m := openServed(t, "llama", text.Options{Context: 128, CacheTokens: 640})
	free := m.FreePages()
	b := must.Get(m.NewBatcher(text.BatcherOptions{MaxBatch: 16, Piece: 32}))(t)
	want := map[int][]int64{}
	promptOf := func(i int) []int64 { return randomTokens(rand.New(rand.NewPCG(uint64(i), 9)), 20+i%50) }
	o := func(i int) text.GenerateOptions {
		return text.GenerateOptions{Temperature: 1, Seed: uint64(i), MaxTokens: 10 + i%30, IgnoreEnd: true}
	}
	for i := range 10 {
		c := m.NewConversation()
		want[i], _ = tokensOf(t, c, promptOf(i), o(i))
		must.Do(t, c.Close())
	}
	tokens := 1000
	if torchtest.Device().IsCUDA() {
		tokens = 100000
	}
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for made := 0; made < tokens/16; {
				i, leaves := r.IntN(10), r.IntN(2) == 0
				var got []int64
				for token, err := range b.Generate(t.Context(), promptOf(i), o(i)) {
					if err != nil {
						t.Errorf("request %d: %v", i, err)
						return
					}
					got = append(got, token.ID)
					if leaves && len(got) > r.IntN(20) {
						break
					}
				}
				made += len(got)
				if !torchtest.Device().IsCUDA() && !slices.Equal(got, want[i][:len(got)]) || !leaves && len(got) != len(want[i]) {
					t.Errorf("request %d: got %v, want %v", i, got, want[i])
				}
			}
		}()
	}
	wg.Wait()
	must.Do(t, b.Close())
	if now := m.FreePages(); now != free {
		t.Errorf("%d pages are free, want %d", now, free)
	}
}

// A long prompt in short pieces gives the logits of one pass.
func TestBatcher_LongPrompt(t *testing.T) {
	long := 2000
	if torchtest.Device().IsCUDA() { // there the keys of a long prompt are split
		long = 6000
	}
	config := strings.Replace(servedConfig("llama"), "4096", "8192", 1)
	o := text.Options{Context: long + 10}
	if torchtest.Device().IsCUDA() {
		o.DType = cgotorch.BFloat16
	}
	m := openRandom(t, config, o)
	b := batcherOf(t, m, text.BatcherOptions{MaxBatch: 2, Piece: 48, Reproducible: true})
	prompt := randomTokens(rand.New(rand.NewPCG(8, 8)), long)
	greedy := text.GenerateOptions{Greedy: true, MaxTokens: 3, IgnoreEnd: true}
	ids, logs, err := answerOf(t.Context(), b, prompt, greedy)
	must.Do(t, err)
	want := logsOf(t, m, prompt, ids, greedy) // takes the pages that only the Batcher's prefixes have
	within := 1e-3
	if torchtest.Device().IsCUDA() {
		within = 0.1
	}
	for i := range want {
		if math.Abs(logs[i]-want[i]) > within {
			t.Errorf("token %d: its log probability is %v, want %v", i, logs[i], want[i])
		}
	}
}
