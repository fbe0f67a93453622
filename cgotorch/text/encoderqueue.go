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

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
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
	if err := e.submit(c, func() error {
		err := atOnce(count, func(i int) (err error) {
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
		if err == nil {
			c.texts = slices.SortedStableFunc(slices.Values(all), func(s, t *encoderText) int { return cmp.Compare(len(s.tokens), len(t.tokens)) })
		}
		return err
	}); err != nil || count == 0 {
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
		if v, found := notFinite(t.out); found {
			return nil, fmt.Errorf("text %d: the model has computed %v: its weights have such a number, or it needs a wider dtype", i, v)
		}
	}
	return rows, nil
}

// notFinite returns the first number that is NaN or infinite.
func notFinite(row []float32) (float32, bool) {
	for _, v := range row {
		if v-v != 0 {
			return v, true
		}
	}
	return 0, false
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
// The place is the call's until a batch has its last text: see submit.
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

// submit lets a call wait that `read` gives its texts. If that fails, or panics, the call's place
// is free.
func (e *encoding) submit(c *encoderCall, read func() error) error {
	err := errors.New("no texts") // read panics
	defer func() {
		if err != nil {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.coming--
		}
	}()
	if err = read(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.coming--
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
