package text

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/text/tokenizer"
)

// Conversation is a sequence of tokens whose keys and values are in the model's cache. It serves
// one goroutine at a time. Several conversations of a model take turns.
type Conversation struct {
	m       *Model
	lane    *lane // through which it runs
	tables  []pageTable
	tokens  []int64     // whose keys and values are in the cache
	long    bool        // they were turned as those of a long sequence: see [decoderConfig.long]
	weights int         // the version of the weights that made them: see [decoder.version]
	busy    atomic.Bool // a Generate goes on, or the pages are given back for ever
	closed  atomic.Bool
}

// NewConversation makes an empty conversation. It takes pages of the cache as it grows. The caller
// must Close it.
func (m *Model) NewConversation() *Conversation {
	return &Conversation{m: m, lane: m.lane, tables: newPageTables(m.lane.spans)}
}

// Tokens returns the tokens whose keys and values are in the cache. A new slice is returned.
func (c *Conversation) Tokens() []int64 { return slices.Clone(c.tokens) }

// Close gives the pages back. It may be called from any goroutine. A Generate that goes on ends
// with [cgotorch.ErrClosed], and then gives them back. A second Close does nothing.
func (c *Conversation) Close() error {
	if c != nil {
		c.closed.Store(true)
		c.leave()
	}
	return nil
}

// leave gives the pages of a closed conversation back, unless a Generate goes on, which will.
func (c *Conversation) leave() {
	if c.closed.Load() && c.busy.CompareAndSwap(false, true) {
		c.cut(0)
	}
}

// cut forgets all tokens but the first n.
func (c *Conversation) cut(n int) {
	for i := range c.tables {
		c.tables[i].cut(c.m.pages, n)
	}
	c.tokens = c.tokens[:n]
}

// forget is cut, beside other conversations.
func (c *Conversation) forget(n int) {
	c.lane.mu.Lock()
	defer c.lane.mu.Unlock()
	c.cut(n)
}

// Generate returns the tokens of an answer to `prompt`, the tokens of the whole conversation so
// far. Tokens at the beginning of the prompt that are in the cache are not computed again. So a
// program gives the earlier prompt, the answer and the next question, or any part of them.
//
// A Token is yielded when the device has computed it. The device computes the next one meanwhile.
// The sequence ends after a token with a Reason, or with an error. When the loop is left early, the
// conversation can go on. The tokens that were yielded are then part of Tokens, except perhaps the
// last.
//
// It fails with the cause of ctx when ctx ends, within one token. It fails with
// [cgotorch.ErrInvalidArgument] for an option or a token out of range and if the prompt does not
// fit into Options.Context, and with [cgotorch.ErrOutOfMemory] if the cache has no page left. It
// fails with [cgotorch.ErrMisuse] in a Do, and in a Generate of the same conversation. It fails
// with [serve.ErrModel] if logits are not numbers. After an error the conversation keeps the tokens
// of which all keys and values are there. After a change of the weights it computes them again.
func (c *Conversation) Generate(ctx context.Context, prompt []int64, o GenerateOptions) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		if err := c.generate(ctx, prompt, o, yield); err != nil {
			yield(Token{}, fmt.Errorf("text: Generate: %w", err))
		}
	}
}

// Chat is Generate for messages. The folder's chat template makes the prompt, as
// [tokenizer.Tokenizer.Chat] does. A program gives all messages so far at each turn. What the cache
// has of them is not computed again. Chat also fails as Tokenizer.Chat does, and with
// [cgotorch.ErrInvalidArgument] if the folder has no tokenizer.
func (c *Conversation) Chat(ctx context.Context, messages []tokenizer.Message, chat tokenizer.ChatOptions, o GenerateOptions) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		prompt, err := c.m.chatPrompt(messages, chat)
		if err == nil {
			err = c.generate(ctx, prompt, o, yield)
		}
		if err != nil {
			yield(Token{}, fmt.Errorf("text: Chat: %w", err))
		}
	}
}

func (m *Model) chatPrompt(messages []tokenizer.Message, o tokenizer.ChatOptions) ([]int64, error) {
	if m.Tokenizer == nil {
		return nil, refused("%s has neither tokenizer.json nor tekken.json", m.folder)
	}
	text, err := m.Tokenizer.Chat(messages, o)
	if err != nil {
		return nil, err
	}
	return m.Tokenizer.EncodePart(text), nil
}

func (c *Conversation) generate(ctx context.Context, prompt []int64, o GenerateOptions, yield func(Token, error) bool) error {
	if !c.busy.CompareAndSwap(false, true) {
		if err := c.open(); err != nil {
			return err
		}
		return fmt.Errorf("the conversation generates already, and serves one goroutine at a time: %w", cgotorch.ErrMisuse)
	}
	defer func() {
		c.busy.Store(false)
		c.leave()
	}()
	if err := c.open(); err != nil {
		return err
	}
	// A Do that waited for the lane could wait for ever, so it is refused here.
	if err := c.m.stream.Do(func(*cgotorch.Exec) error { return nil }); err != nil {
		return err
	}
	a, err := c.newAnswer(prompt, o)
	if err != nil {
		return err
	}
	defer a.close()
	if err := a.start(ctx); err != nil {
		return err
	}
	for {
		token, err := a.next(ctx)
		if err != nil {
			return err
		}
		if !yield(token, nil) || token.Reason != "" {
			return nil
		}
	}
}

// open fails if the conversation or its model is closed.
func (c *Conversation) open() error {
	if c.closed.Load() || c.m.closed.Load() {
		return fmt.Errorf("the conversation or its model is closed: %w", cgotorch.ErrClosed)
	}
	return nil
}

// begin forgets what the cache has behind the shared tokens of a prompt, and returns their number.
func (c *Conversation) begin(prompt []int64) (int, error) {
	c.lane.mu.Lock()
	defer c.lane.mu.Unlock()
	if err := c.open(); err != nil {
		return 0, err
	}
	if now := c.m.d.version(); c.weights != now {
		c.cut(0)
		c.weights = now
	}
	n := c.shared(prompt)
	c.cut(n)
	return n, nil
}

// shared returns how many tokens of the prompt need not be computed again. The last one always is,
// because its logits are needed.
func (c *Conversation) shared(prompt []int64) int {
	n := 0
	for n < min(len(prompt)-1, len(c.tokens)) && prompt[n] == c.tokens[n] {
		n++
	}
	if c.long != c.m.d.c.long(len(prompt)) {
		return 0
	}
	for i := range c.tables {
		if !c.tables[i].keeps(n) {
			return 0
		}
	}
	return n
}

// enter runs fn in a Do of the model's stream, for tokens `from` up to `to`. Before that it makes
// room for them, and gives the device the page tables that it lacks. The caller holds the lane.
func (c *Conversation) enter(from, to int, fn func(x *cgotorch.Exec) error) error {
	if err := c.open(); err != nil { // the program may have closed them meanwhile
		return err
	}
	l, fresh := c.lane, make([]int, len(c.tables))
	for i := range c.tables {
		t := &c.tables[i]
		var moved bool
		var err error
		if fresh[i], moved, err = t.grow(c.m.pages, from, to); err != nil {
			l.loaded = nil // a table may have grown before another one has failed
			return err
		}
		if l.loaded != c || moved || fresh[i] > 0 {
			if err := l.spans[i].upload(c.m.stream, t, c.m.pages.all+1); err != nil {
				l.loaded = nil
				return err
			}
		}
	}
	return c.m.stream.Do(func(x *cgotorch.Exec) error {
		x = plain(x)
		for i, s := range l.spans {
			n := len(c.tables[i].pages[0])
			l.clear(x, s, n-fresh[i], n, 0)
		}
		return fn(x)
	})
}

// clear zeroes what lies behind the first n tokens in their last pages.
func (c *Conversation) clear(x *cgotorch.Exec, n int) {
	for i, s := range c.lane.spans {
		if row := n % pageTokens; row > 0 {
			block := n/pageTokens - c.tables[i].first
			c.lane.clear(x, s, block, block+1, row)
		}
	}
}

// live returns how many blocks of each table a pass reads whose last token is number to-1.
func (c *Conversation) live(to int) (blocks []int) {
	for i := range c.tables {
		t := &c.tables[i]
		n := blocksOf(to) - t.first
		if c.m.stream.Device().IsCUDA() {
			n = roundUp(n, t.width)
		}
		blocks = append(blocks, n)
	}
	return blocks
}
