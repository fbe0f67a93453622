package text

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/serve"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

// BatcherOptions are the options of [Model.NewBatcher]. The zero value is good for a service.
type BatcherOptions struct {
	// MaxBatch is the largest number of answers that are computed beside each other, up to 1,024. 0
	// means 64. Each has its own device memory from NewBatcher on: about 13 bytes for each token of
	// the vocabulary, and 16 bytes a layer for each 16 tokens of the context. A step takes memory for
	// the logits of all of them.
	MaxBatch int
	// Queue is the number of requests that wait for their first turn from which on new ones are
	// refused. 0 means 16 times MaxBatch.
	Queue int
	// Piece is the number of tokens of prompts that are computed with a step of answers. It
	// bounds what a long prompt adds to their time. It is a multiple of 16. 0 means 256. Up to 16
	// times as many are computed where more prompts wait than answers go on, and fewer where a prompt
	// is long already. Where no answer goes on, they are 2,048, or 512 without flash attention. More
	// than that is never computed at once.
	Piece int
	// Reproducible makes the bits of an answer independent of what is computed beside it, and of
	// preemptions. They still depend on the options of the Batcher and of the model. They also change
	// if page-locked memory for the pages of a preempted answer is refused. Each step then
	// has the size of MaxBatch rows and of the longest context. The CPU computes rows one after
	// another. Prompts go in pieces of Piece tokens. Only whole pieces of prompts are shared, and
	// nothing of answers.
	Reproducible bool
}

// Batcher answers the requests of any number of goroutines with one model. Each step computes the
// next token of all answers, so that the weights are read once for all of them. Requests join and
// leave between two steps. Prompts with an equal beginning share its keys and values. The Batcher
// keeps those of ended requests as long as its other requests do not need the pages.
//
// The youngest answer gives its pages up if the cache has none left. It goes on later. Its keys and
// values lie in page-locked host memory until then, or are computed again. A request that has begun
// does not fail for want of pages.
//
// An answer is what a [Conversation] gives, except where products of several rows round otherwise
// than those of one: see BatcherOptions.Reproducible. Random numbers depend on the seed of a
// request and the position of a token alone.
//
// Conversations of the model may run beside a Batcher, and take their turns on the stream. They get
// pages that a Batcher keeps for prefixes, and not those of its requests.
type Batcher struct {
	m       *Model
	o       BatcherOptions
	context int // tokens of a request, with its answer: the whole cache has room for them
	b       *batch
	early   bool // a step is enqueued before the host has read the tokens of the one before

	mu      sync.Mutex
	waiting []*request
	closing bool // no request is taken any more
	closed  bool // by Close
	stats   batcherCounts

	news  chan struct{} // a request has come or left, or the Batcher is closed
	quit  chan struct{} // closed by Close
	ended chan struct{} // the loop has ended

	// Of the loop alone:
	rows     []*request // by seat; nil is empty
	flights  []flight   // that the host has not read, the oldest first
	prefixes *prefixes
	version  int // of the weights that made the prefixes
	admitted int
	odd      bool // the shortest prompt comes first in this turn
	slabs    slabs
}

// NewBatcher starts a Batcher of the model. It waits for the device. The caller must Close the
// Batcher, and then the model.
//
// It fails with [cgotorch.ErrInvalidArgument] for an option out of range, and on a GPU whose
// kernels do not take the model: see [KernelStats]. It fails with [cgotorch.ErrOutOfMemory] if the
// device has no room for MaxBatch answers, with [cgotorch.ErrClosed] after the model's Close, and
// with [cgotorch.ErrMisuse] in a Do.
func (m *Model) NewBatcher(o BatcherOptions) (*Batcher, error) {
	b, err := m.newBatcher(o, m.stream.Device().IsCUDA())
	if err != nil {
		return nil, fmt.Errorf("text: NewBatcher: %w", err)
	}
	go b.loop()
	return b, nil
}

// newBatcher makes a Batcher without its loop.
func (m *Model) newBatcher(o BatcherOptions, early bool) (*Batcher, error) {
	fill := func(value *int, otherwise int) {
		if *value == 0 {
			*value = otherwise
		}
	}
	fill(&o.MaxBatch, 64)
	fill(&o.Queue, 16*o.MaxBatch)
	fill(&o.Piece, 256)
	for _, n := range []struct {
		name        string
		value, most int
	}{{"MaxBatch", o.MaxBatch, 1024}, {"Queue", o.Queue, 1 << 24}, {"Piece", o.Piece, 1 << 20}} {
		if n.value < 1 || n.value > n.most {
			return nil, fmt.Errorf("%s is %d, want 1 to %d: %w", n.name, n.value, n.most, cgotorch.ErrInvalidArgument)
		}
	}
	if o.Piece%pageTokens != 0 {
		return nil, fmt.Errorf("Piece is %d, want a multiple of %d: %w", o.Piece, pageTokens, cgotorch.ErrInvalidArgument)
	}
	o.Piece = min(o.Piece, m.lane.part)
	if err := m.stream.Do(func(*cgotorch.Exec) error { return nil }); err != nil { // closed, or inside a Do
		return nil, err
	}
	if m.closed.Load() {
		return nil, fmt.Errorf("the model: %w", cgotorch.ErrClosed)
	}
	if m.stream.Device().IsCUDA() && m.d.edge == "" {
		return nil, fmt.Errorf("%s: open the model so that the kernels of a token take it, or use a Conversation: %w", m.d.notOwn, cgotorch.ErrInvalidArgument)
	}
	b := &Batcher{m: m, o: o, early: early, news: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{}), rows: make([]*request, o.MaxBatch)}
	b.context = m.mostTokens()
	var err error
	if b.b, err = newBatch(m, o.MaxBatch); err != nil {
		return nil, err
	}
	b.prefixes = newPrefixes(m.pages)
	m.pages.lean(b.prefixes)
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	m.batches = append(m.batches, b.b)
	return b, nil
}

// mostTokens returns how many tokens of one sequence the cache has room for, up to the context.
func (m *Model) mostTokens() int {
	var spans []span
	for _, s := range m.lane.seats.spans {
		spans = append(spans, s.span)
	}
	most := m.context
	for most > pageTokens && pagesFor(spans, most, m.context) > m.pages.all {
		most -= pageTokens
	}
	return most
}

// Generate returns the tokens of an answer to `prompt`, as [Conversation.Generate] does. It may be
// called from any goroutine. The prompt has the whole conversation so far. The request begins with
// the loop over the tokens, waits for its turn, and then runs beside the others. The loop waits for
// each token. A slow loop delays no other request, because its tokens are kept for it. The request
// ends within one token when the loop is left.
//
// The answer ends for "length" also where the whole cache has no room for more of it. All requests
// wait while GenerateOptions.Mask runs. If it does not return, they go on when ctx ends.
//
// It fails with [serve.ErrQueueFull] at once if too many requests wait. It fails with the cause of
// ctx when ctx ends, and with [cgotorch.ErrClosed] after Close. It fails for bad arguments as
// Conversation.Generate does, and if the whole cache has no room for the prompt. A device that
// fails ends all requests that have a seat.
func (b *Batcher) Generate(ctx context.Context, prompt []int64, o GenerateOptions) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		if err := b.generate(ctx, prompt, o, yield); err != nil {
			yield(Token{}, fmt.Errorf("text: Generate: %w", err))
		}
	}
}

// Chat is Generate for messages, as [Conversation.Chat] is. A program gives all messages so far at
// each turn. It also fails as Conversation.Chat does.
func (b *Batcher) Chat(ctx context.Context, messages []tokenizer.Message, chat tokenizer.ChatOptions, o GenerateOptions) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		prompt, err := b.m.chatPrompt(messages, chat)
		if err == nil {
			err = b.generate(ctx, prompt, o, yield)
		}
		if err != nil {
			yield(Token{}, fmt.Errorf("text: Chat: %w", err))
		}
	}
}

func (b *Batcher) generate(ctx context.Context, prompt []int64, o GenerateOptions, yield func(Token, error) bool) error {
	// A Do that waited for its own stream would wait for ever. It is refused here.
	if err := b.m.stream.Do(func(*cgotorch.Exec) error { return nil }); err != nil {
		return err
	}
	within, leave := context.WithCancel(ctx)
	defer leave()
	r, err := b.submit(within, prompt, o)
	if err != nil {
		return err
	}
	defer func() {
		r.left.Store(true)
		leave() // a Mask is not awaited any more
		b.wake()
	}()
	for {
		select {
		case <-r.news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		tokens, err := r.take()
		for _, t := range tokens {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if !yield(t, nil) || t.Reason != "" {
				return nil
			}
		}
		if err != nil {
			return err
		}
	}
}

// submit puts a request into the queue.
func (b *Batcher) submit(ctx context.Context, prompt []int64, o GenerateOptions) (*request, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c := &Conversation{m: b.m, tables: newPageTables(b.b.lanes[0].spans)}
	a, err := c.newAnswer(prompt, o)
	if err != nil {
		return nil, err
	}
	if len(prompt) >= b.context {
		return nil, refused("the prompt has %d tokens, and CacheTokens allow %d, with the answer", len(prompt), b.context)
	}
	a.most, a.kept = min(a.most, b.context-len(prompt)), 0
	r := &request{ctx: ctx, a: a, seat: -1, news: make(chan struct{}, 1), arrived: time.Now()}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closing:
		return nil, fmt.Errorf("the Batcher is closed: %w", cgotorch.ErrClosed)
	case b.m.closed.Load():
		return nil, fmt.Errorf("the model is closed: %w", cgotorch.ErrClosed)
	//edge:batch-queue-bound TestBatcher_Order
	case b.untouched() >= b.o.Queue:
		b.stats.Refused++
		return nil, fmt.Errorf("%d requests wait: %w", b.untouched(), serve.ErrQueueFull)
	}
	b.waiting = append(b.waiting, r)
	b.wake()
	return r, nil
}

// untouched returns how many requests wait that have not begun. Those that have given their pages
// up count no more: the queue has let them in. The caller holds mu.
func (b *Batcher) untouched() (n int) {
	for _, r := range b.waiting {
		if r.admitted == 0 {
			n++
		}
	}
	return n
}

func (b *Batcher) wake() {
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// Close ends all requests with [cgotorch.ErrClosed]. It waits for the device, and frees the
// Batcher's memory and pages. A second Close does nothing. It fails with [cgotorch.ErrMisuse]
// inside a Do of the model's stream. It may be called from any goroutine but that of a Mask.
func (b *Batcher) Close() error {
	if b == nil {
		return nil
	}
	if err := b.m.stream.Do(func(*cgotorch.Exec) error { return nil }); errors.Is(err, cgotorch.ErrMisuse) {
		return fmt.Errorf("text: Batcher.Close: %w", err)
	}
	b.mu.Lock()
	//edge:batch-close-frees TestBatcher_Mask
	again := b.closed
	b.closing, b.closed = true, true
	if !again {
		close(b.quit)
	}
	b.mu.Unlock()
	b.wake()
	<-b.ended
	if again {
		return nil
	}
	b.m.pages.unlean(b.prefixes)
	b.m.lane.mu.Lock()
	defer b.m.lane.mu.Unlock()
	b.m.batches = slices.DeleteFunc(b.m.batches, func(other *batch) bool { return other == b.b })
	_ = b.m.stream.Synchronize() // a lost device has no work
	return errors.Join(b.b.close(), b.slabs.close())
}

// request is one answer of a Batcher.
type request struct {
	ctx     context.Context
	a       *answer
	arrived time.Time

	// Of the loop alone:
	seat     int // -1 while it waits
	admitted int // the number of its admission: the youngest has the largest
	rest     *promptRest
	keep     int    // tokens whose keys and values are enqueued, while its prompt is computed
	running  bool   // its prompt is enqueued
	flights  int    // tokens that are enqueued and that the host has not read
	masked   bool   // the mask of its next token is filled
	yields   bool   // it gives its pages up when the host has read its tokens
	saved    *saved // its pages in host memory
	open     bool   // its seat's mask allows all tokens
	last     time.Time

	left atomic.Bool // nobody reads its tokens any more
	news chan struct{}
	mu   sync.Mutex
	made []Token
	err  error
}

// take returns the tokens that are new, and the error behind them.
func (r *request) take() ([]Token, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	made := r.made
	r.made = nil
	return made, r.err
}

// tell gives the caller a token, or the error that ends the answer.
func (r *request) tell(t Token, err error) {
	r.mu.Lock()
	if err != nil {
		r.err = err
	} else {
		r.made = append(r.made, t)
	}
	r.mu.Unlock()
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// tokens returns the prompt and the answer so far.
func (r *request) tokens() []int64 { return slices.Concat(r.a.prompt, r.a.made) }
