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
	m      *Model
	tables []pageTable
	tokens []int64 // whose keys and values are in the cache
	long   bool    // they were turned as those of a long sequence: see [decoderConfig.long]
	busy   atomic.Bool
	closed bool
}

// NewConversation makes an empty conversation. It takes pages of the cache as it grows. The caller
// must Close it.
func (m *Model) NewConversation() *Conversation {
	return &Conversation{m: m, tables: newPageTables(m.lane.spans)}
}

// Tokens returns the tokens whose keys and values are in the cache. A new slice is returned.
func (c *Conversation) Tokens() []int64 { return slices.Clone(c.tokens) }

// Close gives the pages back. A Generate that goes on ends with [cgotorch.ErrClosed]. A second
// Close does nothing.
func (c *Conversation) Close() error {
	if c == nil || c.closed {
		return nil
	}
	c.cut(0)
	c.closed = true
	return nil
}

// cut forgets all tokens but the first n.
func (c *Conversation) cut(n int) {
	for i := range c.tables {
		c.tables[i].cut(c.m.pages, n)
	}
	c.tokens = c.tokens[:n]
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
// fit into Options.Context, and with [cgotorch.ErrOutOfMemory] if the cache has no page left. After
// an error the conversation keeps the tokens of which all keys and values are there.
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
		return nil, refused("%s has no tokenizer.json", m.folder)
	}
	text, err := m.Tokenizer.Chat(messages, o)
	if err != nil {
		return nil, err
	}
	return m.Tokenizer.EncodePart(text), nil
}

func (c *Conversation) generate(ctx context.Context, prompt []int64, o GenerateOptions, yield func(Token, error) bool) error {
	if err := c.open(); err != nil {
		return err
	}
	if !c.busy.CompareAndSwap(false, true) {
		return fmt.Errorf("the conversation generates already, and serves one goroutine at a time: %w", cgotorch.ErrMisuse)
	}
	defer c.busy.Store(false)
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
	if c.closed || c.m.stream == nil {
		return fmt.Errorf("the conversation or its model is closed: %w", cgotorch.ErrClosed)
	}
	return nil
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

// do runs fn with the model's lane, in a Do of its stream.
func (c *Conversation) do(fn func(x *cgotorch.Exec, l *lane) error) error {
	return c.m.stream.Do(func(x *cgotorch.Exec) error {
		l := c.m.lane
		l.mu.Lock()
		defer l.mu.Unlock()
		return fn(plain(x), l)
	})
}

// grow makes room for the tokens `from` up to `to`, and clears the pages that are new.
func (c *Conversation) grow(x *cgotorch.Exec, l *lane, from, to int) error {
	for i := range c.tables {
		t := &c.tables[i]
		fresh, moved, err := t.grow(c.m.pages, from, to)
		if err != nil {
			return err
		}
		if len(fresh) > 0 { // attention gives old values the weight 0, but 0 times an old NaN would be NaN
			x.Tidy(func() *cgotorch.Tensor {
				pages := cgotorch.FromSlice(x, fresh, int64(len(fresh)))
				call(x, "aten::index_fill_.int_Scalar", l.pages.keys, 0, pages, 0).Close()
				call(x, "aten::index_fill_.int_Scalar", l.pages.values, 0, pages, 0).Close()
				return nil
			})
		}
		switch n := len(fresh) / len(t.layers); {
		case l.loaded != c:
		case moved:
			l.upload(x, i, t)
		case n > 0:
			write(x, x.Narrow(l.tables[i], 1, len(t.pages[0])-n, n), fresh)
		}
	}
	return nil
}

// clear zeroes what lies behind the first n tokens in their last pages. Attention gives it the
// weight 0, but 0 times a NaN that an earlier answer has left would be NaN.
func (c *Conversation) clear(x *cgotorch.Exec, l *lane, n int) {
	var rows []int64
	for _, t := range c.tables {
		for _, pages := range t.pages {
			for at := n; at%pageTokens != 0; at++ {
				rows = append(rows, pages[n/pageTokens-t.first]*pageTokens+int64(at%pageTokens))
			}
		}
	}
	if len(rows) == 0 {
		return
	}
	x.Tidy(func() *cgotorch.Tensor {
		places := cgotorch.FromSlice(x, rows, int64(len(rows)))
		for _, pool := range []*cgotorch.Tensor{l.pages.keys, l.pages.values} {
			call(x, "aten::index_fill_.int_Scalar", x.Flatten(pool, 0, 1), 0, places, 0)
		}
		return nil
	})
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
