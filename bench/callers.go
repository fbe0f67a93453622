package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/text"
)

// callersRun is a run of the rows of text/callers-8b: many callers of one model.
type callersRun struct {
	c      *config
	folder string
	emit   func(row)
	note   string
	long   int // tokens of a long prompt
	cached int // tokens of the cache
	m      *text.Model
}

// benchCallers measures answers for many goroutines, by a [text.Batcher] with a model of the shapes
// of Llama-3.1-8B. PyTorch's own loop over batches has a program of its own.
func benchCallers(c *config, emit func(row)) error {
	return benchBatcher(c, emit, (*callersRun).prompt, (*callersRun).steady, (*callersRun).beginning, (*callersRun).beside)
}

// benchArrivals measures callers that come and go, as benchCallers does.
func benchArrivals(c *config, emit func(row)) error {
	return benchBatcher(c, emit, (*callersRun).closed)
}

func benchBatcher(c *config, emit func(row), parts ...func(r *callersRun) error) error {
	r := &callersRun{c: c, emit: emit, long: c.or(600, 32768), cached: c.or(20_000, 300_000)}
	llama := maps.Clone(llamas["8b"])
	if c.brief {
		llama = maps.Clone(llamas["tiny"])
	}
	llama["max_position_embeddings"] = 40960
	var err error
	if r.folder, err = configFolder(llama); err != nil {
		return err
	}
	defer os.RemoveAll(r.folder)
	if r.m, err = text.Open(c.device, r.folder, text.Options{RandomWeights: 1, Context: r.long + 1024, CacheTokens: r.cached}); err != nil {
		return err
	}
	defer r.m.Close()
	r.note = fmt.Sprintf("bfloat16, random weights; %s", c.settings())
	for _, part := range parts {
		if err := part(r); err != nil {
			return err
		}
	}
	return nil
}

// served runs one answer and returns the times of its tokens.
func served(ctx context.Context, b *text.Batcher, prompt []int64, most int) (when []time.Time, err error) {
	for _, err := range b.Generate(ctx, prompt, text.GenerateOptions{Greedy: true, MaxTokens: most, IgnoreEnd: true}) {
		if err != nil {
			return when, err
		}
		when = append(when, time.Now())
	}
	return when, nil
}

func randomPrompt(r *rand.Rand, n int) []int64 {
	prompt := make([]int64, n)
	for i := range prompt {
		prompt[i] = 1 + r.Int64N(100_000)
	}
	return prompt
}

func (r *callersRun) batcher(n, queue int) (*text.Batcher, error) {
	return r.m.NewBatcher(text.BatcherOptions{MaxBatch: n, Queue: queue})
}

// prompt makes the row of one prompt of 4,096 tokens, alone.
func (r *callersRun) prompt() error {
	n := r.c.or(256, 4096)
	b, err := r.batcher(1, 1)
	if err != nil {
		return err
	}
	defer b.Close()
	random := rand.New(rand.NewPCG(1, 1))
	var took sample
	for range r.c.or(2, 9) + 2 {
		began := time.Now()
		when, err := served(context.Background(), b, randomPrompt(random, n), 1)
		if err != nil {
			return err
		}
		took = append(took, when[0].Sub(began).Seconds()*1e3)
	}
	took = took[2:]
	r.emit(alone(fmt.Sprintf("text/callers-8b/prompt-%d", n), took.median(), "ms", fmt.Sprintf("its first token, alone; %v; %s", took, r.note)))
	return nil
}

// steady makes the rows of steps with contexts from 128 to 2,048 tokens, while none comes or goes.
func (r *callersRun) steady() error {
	for _, n := range []int{1, 8, 32, 64, 128} {
		if r.c.brief && n > 8 {
			break
		}
		if err := r.steadyOf(n); err != nil {
			return err
		}
	}
	return nil
}

func (r *callersRun) steadyOf(n int) error {
	b, err := r.batcher(n, 0)
	if err != nil {
		return err
	}
	defer b.Close()
	random := rand.New(rand.NewPCG(2, uint64(n)))
	lengths := make([]int, n)
	for i := range lengths {
		lengths[i] = r.c.or(64, 128) + i*r.c.or(64, 1920)/max(n-1, 1)
	}
	random.Shuffle(n, func(i, k int) { lengths[i], lengths[k] = lengths[k], lengths[i] })
	var prompts [][]int64
	keys := 0. // of all answers, in the middle of the steps that count
	for _, length := range lengths {
		prompts = append(prompts, randomPrompt(random, length))
		keys += float64(length)
	}
	e := startEndless(b, prompts)
	from, before := e.await(20 * n) // graphs are made for these sizes
	to, after := e.await(r.c.or(8, 200) * n)
	if err := e.stop(); err != nil {
		return err
	}
	ms := to.Sub(from).Seconds() * 1e3 * float64(n) / float64(after-before)
	keys += float64(before+after) / 2
	bytes := r.bytesOfStep(keys)
	r.emit(alone(fmt.Sprintf("text/callers-8b/steady-%d", n), ms, "ms",
		fmt.Sprintf("a step of %d answers, contexts of %.0f tokens in the mean; %.2f GB of weights and live cache: %.3f TB/s; %s",
			n, keys/float64(n), bytes/1e9, bytes/ms/1e9, r.note)))
	return nil
}

// bytesOfStep returns how much a step over so many keys reads: the weights, and the keys with their
// values.
func (r *callersRun) bytesOfStep(keys float64) float64 {
	weights, cache := r.m.Memory()
	embedding := 128256 * 4096 * 2. // is not read as a whole
	if r.c.brief {
		embedding = 0
	}
	return float64(weights) - embedding + keys*float64(cache)/float64(r.cached)
}

// textRequest is a prompt and the length of its answer.
type textRequest struct {
	prompt []int64
	most   int
}

// requests returns prompts of 200 to 2,000 tokens with answers of 50 to 500.
func (r *callersRun) requests(n int, seed uint64) (all []textRequest) {
	random := rand.New(rand.NewPCG(3, seed))
	for range n {
		length, most := 200+random.IntN(1801), 50+random.IntN(451)
		if r.c.brief {
			length, most = length/20, most/20
		}
		all = append(all, textRequest{randomPrompt(random, length), most})
	}
	return all
}

// serveAll lets `callers` goroutines ask all requests, and returns the seconds that this took, and
// the tokens of answers.
func (r *callersRun) serveAll(b *text.Batcher, all []textRequest, callers int) (seconds float64, tokens int, err error) {
	var made atomic.Int64
	seconds, err = askAll(callers, len(all), func(_, i int) error {
		when, err := served(context.Background(), b, all[i].prompt, all[i].most)
		made.Add(int64(len(when)))
		return err
	})
	return seconds, int(made.Load()), err
}

// askAll lets so many callers ask `count` requests. Each takes the next one when it has an answer,
// and stops at its first error. It returns the seconds that this took.
func askAll(callers, count int, ask func(caller, i int) error) (seconds float64, err error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, callers)
	began := time.Now()
	for caller := range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for errs[caller] == nil {
				i := int(next.Add(1)) - 1
				if i >= count {
					return
				}
				errs[caller] = ask(caller, i)
			}
		}()
	}
	wg.Wait()
	return time.Since(began).Seconds(), errors.Join(errs...)
}

// closed makes the rows of callers that ask again when they have an answer, and of requests that
// come by chance.
func (r *callersRun) closed() error {
	rates := map[int]float64{} // requests a second, by the number of callers
	for _, n := range []int{1, 16, 64, 256} {
		count := min(max(2*n, 8), 256)
		if r.c.brief && n > 16 {
			break
		}
		b, err := r.batcher(min(n, 128), 0)
		if err != nil {
			return err
		}
		_, _, err = r.serveAll(b, r.requests(max(n/2, 4), 99), n) // makes graphs
		began := b.Stats()
		all := r.requests(count, uint64(n))
		var seconds, together float64
		var tokens int
		if err == nil {
			seconds, tokens, err = r.serveAll(b, all, n)
		}
		s := b.Stats()
		if err == nil && n > 1 {
			together, _, err = r.serveAll(b, r.again(all, 0), count)
		}
		if err := errors.Join(err, b.Close()); err != nil {
			return err
		}
		note := fmt.Sprintf("%d requests, prompts of 200 to 2,000 tokens, answers of 50 to 500; %.3f requests/s; %d tokens of prompts; first token p50 %v p99 %v, next p50 %v p99 %v; %d preempted; %s",
			count, float64(count)/seconds, s.Prompts-began.Prompts, s.FirstTokenP50, s.FirstTokenP99, s.NextTokenP50, s.NextTokenP99, s.Preempted-began.Preempted, r.note)
		name := fmt.Sprintf("text/arrivals-8b/closed-%d", n)
		if n == 1 {
			r.emit(alone(name, float64(tokens)/seconds, "tokens/s", note))
			continue
		}
		r.emit(against(name, float64(tokens)/seconds, "tokens/s", "the same requests together", float64(tokens)/together, higher, note))
		rates[n] = float64(count) / seconds
	}
	most := 64
	if r.c.brief {
		most = 16
	}
	for _, a := range []arrivals{{0.5, most, 16, 12}, {0.8, most, 16, 12}, {1.2, 16, 8, 40}} { // fewer seats are full sooner
		if err := r.arriving(a, rates[a.seats]); err != nil {
			return err
		}
	}
	return nil
}

// arrivals are requests whose arrivals are a Poisson process of a share of the rate of as many
// callers as there are seats.
type arrivals struct {
	share                 float64
	seats, queue, seconds int
}

// again returns the requests with other tokens at the beginning, for each round, so that no prefix
// is kept.
func (r *callersRun) again(all []textRequest, round int) []textRequest {
	all = slices.Clone(all)
	for i := range all {
		all[i].prompt = slices.Clone(all[i].prompt)
		all[i].prompt[0], all[i].prompt[1] = 101_000+int64(i), 101_000+int64(round)
	}
	return all
}

// arriving makes the row of arrivals.
func (r *callersRun) arriving(a arrivals, rate float64) error {
	share := a.share
	b, err := r.batcher(a.seats, a.queue)
	if err != nil {
		return err
	}
	defer b.Close()
	random := rand.New(rand.NewPCG(4, 4))
	all := r.requests(int(rate*share*float64(r.c.or(1, a.seconds)))+1, 5)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first, next, refused sample // milliseconds
	errs := make([]error, len(all))
	for i, q := range all {
		time.Sleep(time.Duration(random.ExpFloat64() / (rate * share) * 1e9))
		wg.Add(1)
		go func() {
			defer wg.Done()
			began := time.Now()
			when, err := served(context.Background(), b, q.prompt, q.most)
			mu.Lock()
			defer mu.Unlock()
			for k, at := range when {
				if k == 0 {
					first = append(first, at.Sub(began).Seconds()*1e3)
				} else {
					next = append(next, at.Sub(when[k-1]).Seconds()*1e3)
				}
			}
			if errors.Is(err, serve.ErrQueueFull) {
				refused = append(refused, time.Since(began).Seconds()*1e3)
				err = nil
			}
			errs[i] = err
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	told := "none refused"
	if len(refused) > 0 {
		told = fmt.Sprintf("%d refused by a queue of %d, the slowest after %.3f ms", len(refused), a.queue, refused.max())
	}
	r.emit(alone(fmt.Sprintf("text/arrivals-8b/%.0f", 100*share), next.quantile(0.99)/next.median(), "p99/p50",
		fmt.Sprintf("between tokens, of %d requests at %.0f %% of %.2f a second; first token p50 %.1f p99 %.1f ms; next p50 %.2f p90 %.2f p99 %.2f ms; %s; %s",
			len(all), 100*share, rate, first.median(), first.quantile(0.99), next.median(), next.quantile(0.9), next.quantile(0.99), told, r.note)))
	return nil
}

// beginning makes the row of 64 conversations with an equal system prompt of 4,000 tokens.
func (r *callersRun) beginning() error {
	n, length := r.c.or(8, 64), r.c.or(400, 4000)
	b, err := r.batcher(n, 0)
	if err != nil {
		return err
	}
	defer b.Close()
	random := rand.New(rand.NewPCG(6, 6))
	system := randomPrompt(random, length)
	var all []textRequest
	for range n {
		all = append(all, textRequest{slices.Concat(system, randomPrompt(random, 50)), r.c.or(4, 100)})
	}
	seconds, tokens, err := r.serveAll(b, all, n)
	s := b.Stats()
	r.emit(alone("text/callers-8b/beginning", float64(s.Prompts), "tokens of prompts computed",
		fmt.Sprintf("%d requests with %d equal tokens and 50 others; %d tokens shared; %d of %d pages in prefixes then; %d tokens of answers in %.2f s; %s",
			n, length, s.Shared, s.PrefixPages, s.Pages, tokens, seconds, r.note)))
	return err
}

// beside makes the row of a long prompt beside 32 answers.
func (r *callersRun) beside() error {
	n := r.c.or(4, 32)
	b, err := r.batcher(n+1, 0)
	if err != nil {
		return err
	}
	defer b.Close()
	random := rand.New(rand.NewPCG(7, 7))
	var prompts [][]int64
	for range n {
		prompts = append(prompts, randomPrompt(random, 500))
	}
	e := startEndless(b, prompts)
	steps := r.c.or(10, 150)
	var without, with [2]sample
	var took time.Duration
	for round := range with { // the first one makes graphs
		e.await((20 + steps) * n)
		at := e.ofFirst()
		prompt := randomPrompt(random, r.long)
		start := time.Now()
		if _, err = served(context.Background(), b, prompt, 1); err != nil {
			break
		}
		took = time.Since(start)
		without[round], with[round] = e.gaps(max(at-steps, 0), at), e.gaps(at, e.ofFirst())
	}
	if err := errors.Join(err, e.stop()); err != nil {
		return err
	}
	if len(with[0]) == 0 || len(with[1]) == 0 {
		return errors.New("there are no tokens beside the long prompt")
	}
	r.emit(against("text/callers-8b/beside-a-long-prompt", with[1].quantile(0.99), "ms", "without it", without[1].quantile(0.99), lower,
		fmt.Sprintf("p99 between tokens of %d answers, beside a prompt of %d tokens, which took %.2f s; p50 %.2f and %.2f; p99 %.2f and %.2f where graphs were made; %s",
			n, r.long, took.Seconds(), with[1].median(), without[1].median(), with[0].quantile(0.99), without[0].quantile(0.99), r.note)))
	return nil
}
