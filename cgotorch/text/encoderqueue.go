package text

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/internal/pace"
)

// encoderQueue has the calls of an Encoder that wait.
type encoderQueue struct {
	mu            sync.Mutex
	most          int            // calls that wait
	coming        int            // calls whose texts become tokens now
	waiting       []*encoderCall // that have texts in no batch yet
	waitingTokens int            // of these texts
	closed        bool
	stats         EncoderStats
	news          chan struct{} // has an element when the loop has to look again
	ended         chan struct{} // closed at the end of the loop
	once          sync.Once
	freed         error
}

// EncoderStats are counts since an Encoder was opened, and its state.
type EncoderStats struct {
	Waiting int   // calls that have texts in no batch yet
	Refused int64 // calls for which the queue had no room
	Batches int64 // that were computed
	Texts   int64 // of these batches; a pair counts once
	Tokens  int64 // of these texts
}

// Stats returns the counts. It does not wait for the device. It works after Close, too.
func (e *Encoder) Stats() EncoderStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Waiting = e.coming + len(e.waiting)
	return s
}

// encoderCall is one call of Embed, EmbedTokens or Rank.
type encoderCall struct {
	texts []*encoderText // in no batch yet; the last one comes next
	left  int            // texts without a result
	err   error
	done  chan struct{} // closed with the last result, or with the error
}

// tokens returns how many tokens wait.
func (c *encoderCall) tokens() (n int) {
	for _, t := range c.texts {
		n += len(t.tokens)
	}
	return n
}

// encoderText is a text of a call.
type encoderText struct {
	of     *encoderCall
	tokens []int64
	kinds  []int64 // types of the tokens; nil means that all are 0
	out    []float32
}

func newEncoderQueue(most int) encoderQueue {
	return encoderQueue{most: most, news: make(chan struct{}, 1), ended: make(chan struct{})}
}

// call returns a row of numbers for each of `count` texts, whose tokens `text` returns. It waits
// for them, until ctx ends. Errors begin with the name of the method, `where`.
func (e *encoding) call(ctx context.Context, where string, ranks bool, count int, text func(i int) (*encoderText, error)) ([][]float32, error) {
	rows, err := e.compute(ctx, ranks, count, text)
	if err != nil {
		return nil, fmt.Errorf("text: %s: %w", where, err)
	}
	return rows, nil
}

func (e *encoding) compute(ctx context.Context, ranks bool, count int, text func(i int) (*encoderText, error)) ([][]float32, error) {
	switch {
	case ranks && !e.ranks:
		return nil, refused("the model makes vectors and no scores: call Embed")
	case !ranks && e.ranks:
		return nil, refused("the model makes scores of pairs and no vectors: call Rank")
	}
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	c := &encoderCall{left: count, done: make(chan struct{})}
	all := make([]*encoderText, count)
	err := func() error {
		defer e.came()
		return atOnce(count, func(i int) (err error) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if all[i], err = text(i); err == nil {
				err = e.check(all[i])
			}
			if err != nil {
				return fmt.Errorf("text %d: %w", i, err)
			}
			all[i].of = c
			return nil
		})
	}()
	if err != nil {
		return nil, err
	}
	c.texts = slices.SortedStableFunc(slices.Values(all), func(s, t *encoderText) int { return cmp.Compare(len(s.tokens), len(t.tokens)) })
	if err := e.submit(c); err != nil || count == 0 {
		return nil, err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		e.leave(c)
		return nil, context.Cause(ctx)
	}
	if c.err != nil {
		return nil, c.err
	}
	rows := make([][]float32, count)
	for i, t := range all {
		rows[i] = t.out
	}
	return rows, nil
}

// atOnce calls fn for 0 to n-1, on several goroutines if they are many. After an error it calls fn
// no more, and returns that of the lowest number. It panics if fn does.
func atOnce(n int, fn func(i int) error) (err error) {
	var next atomic.Int64
	var mu sync.Mutex
	var panicked any
	first := n
	work := func() {
		defer func() {
			if v := recover(); v != nil {
				next.Store(int64(n))
				mu.Lock()
				defer mu.Unlock()
				panicked = v
			}
		}()
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			if e := fn(i); e != nil {
				next.Store(int64(n))
				mu.Lock()
				if i < first {
					first, err = i, e
				}
				mu.Unlock()
			}
		}
	}
	var others sync.WaitGroup
	for range min(n/16, runtime.GOMAXPROCS(0)-1) {
		others.Add(1)
		go func() {
			defer others.Done()
			work()
		}()
	}
	work()
	others.Wait()
	if panicked != nil {
		panic(panicked)
	}
	return err
}

// check refuses tokens that the model cannot take.
func (e *encoding) check(t *encoderText) error {
	n := len(t.tokens)
	switch {
	case n == 0:
		return refused("it has no tokens")
	case n > e.limit:
		return refused("it has %d tokens, and the model takes %d", n, e.limit)
	case slices.Min(t.tokens) < 0 || slices.Max(t.tokens) >= int64(e.vocab):
		return refused("its ids are %d to %d, and the model's tokens 0 to %d", slices.Min(t.tokens), slices.Max(t.tokens), e.vocab-1)
	case t.kinds != nil && slices.Max(t.kinds) >= int64(e.kinds):
		return refused("tokenizer.json gives tokens the type %d, and type_vocab_size of config.json is %d", slices.Max(t.kinds), e.kinds)
	}
	return nil
}

// enter takes a place in the queue, before a call makes tokens. It fails at once if there is none.
func (e *encoding) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch waiting := e.coming + len(e.waiting); {
	case e.closed:
		return fmt.Errorf("the Encoder is closed: %w", cgotorch.ErrClosed)
	case waiting >= e.most:
		e.stats.Refused++
		return fmt.Errorf("%d calls wait: %w", waiting, serve.ErrQueueFull)
	}
	e.coming++
	return nil
}

// came ends what enter has begun: the texts of a call are tokens, or it has failed.
func (e *encoding) came() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.coming--
}

// submit lets a call wait.
func (e *encoding) submit(c *encoderCall) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("the Encoder is closed: %w", cgotorch.ErrClosed)
	}
	if len(c.texts) > 0 {
		e.waiting = append(e.waiting, c)
		e.waitingTokens += c.tokens()
		e.wake()
	}
	return nil
}

// leave takes a call out of the queue. Its texts that are in a batch are still computed.
func (e *encoding) leave(c *encoderCall) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drop(c)
}

// drop takes a call out of those that wait. The caller holds the queue's lock.
func (q *encoderQueue) drop(c *encoderCall) {
	if i := slices.Index(q.waiting, c); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		q.waitingTokens -= c.tokens()
	}
}

func (q *encoderQueue) wake() {
	select {
	case q.news <- struct{}{}:
	default:
	}
}

// shut refuses new calls, and ends those that wait.
func (q *encoderQueue) shut() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, c := range q.waiting {
		c.fail(fmt.Errorf("the Encoder is closed: %w", cgotorch.ErrClosed))
	}
	q.waiting, q.waitingTokens = nil, 0
	q.wake()
}

// fail ends a call, unless it has ended. The caller holds the queue's lock.
func (c *encoderCall) fail(err error) {
	if c.err == nil && c.left > 0 {
		c.err = err
		close(c.done)
	}
}

// loop computes batches until the queue is closed. The device gets a second batch when it is about
// to end the one that it computes: later texts then wait for one batch, and the device for none.
func (e *encoding) loop() {
	defer close(e.ended)
	alarm := pace.NewAlarm()
	defer alarm.Stop()
	var flights []*encoderFlight
	for {
		var done <-chan struct{}
		if len(flights) > 0 {
			done = flights[0].done()
		}
		select {
		case <-done: // before another one is begun
			e.answer(flights[0])
			flights = flights[1:]
			continue
		default:
		}
		wait := time.Duration(0)
		if len(flights) > 0 {
			wait = e.pace.Left(time.Now())
		}
		texts, waiting, closed := e.take(len(flights), wait)
		switch {
		case len(texts) > 0:
			flights = append(flights, e.begin(texts))
			continue
		case len(flights) > 0:
		case closed:
			return
		case len(e.sizes) > 0:
			e.prepare(e.sizes[0])
			e.sizes = e.sizes[1:]
			continue
		}
		if waiting && len(flights) == 1 {
			alarm.Await(wait, e.news, done)
			continue
		}
		select {
		case <-done:
		case <-e.news:
		}
	}
}

// take takes a batch out of the queue, one text of each call in turn. The texts are ordered by
// length, the longest first. While two batches are under way, take takes none. Beside one it takes
// a full batch, or all texts that wait once `wait` is 0. `waiting` tells whether texts are left.
func (e *encoding) take(underWay int, wait time.Duration) (texts []*encoderText, waiting, closed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if underWay > 1 || underWay > 0 && wait > 0 && e.waitingTokens < e.batch {
		return nil, len(e.waiting) > 0, e.closed
	}
	for tokens := 0; len(e.waiting) > 0; {
		c := e.waiting[0]
		last := len(c.texts) - 1
		t := c.texts[last]
		if tokens += len(t.tokens); tokens > e.batch && len(texts) > 0 {
			break
		}
		texts, c.texts, e.waiting = append(texts, t), c.texts[:last], e.waiting[1:]
		e.waitingTokens -= len(t.tokens)
		if last > 0 {
			e.waiting = append(e.waiting, c)
		}
	}
	slices.SortStableFunc(texts, func(s, t *encoderText) int { return len(t.tokens) - len(s.tokens) })
	return texts, len(e.waiting) > 0, e.closed
}

// answer waits for a batch, and tells the callers. If it failed, answer computes each text alone.
// So a call fails for its own texts only.
func (e *encoding) answer(f *encoderFlight) {
	texts := f.texts
	rows, err := e.end(f)
	e.pace.Ended(f.rows, f.began, time.Now())
	if err != nil && len(texts) > 1 && !errors.Is(err, cgotorch.ErrDeviceLost) {
		for i := range texts {
			e.answer(e.begin(texts[i : i+1]))
		}
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.Batches++
	for i, t := range texts {
		e.stats.Texts++
		e.stats.Tokens += int64(len(t.tokens))
		if err != nil {
			t.of.fail(err)
			e.drop(t.of)
			continue
		}
		t.out = rows[i]
		if t.of.left--; t.of.left == 0 && t.of.err == nil {
			close(t.of.done)
		}
	}
}
