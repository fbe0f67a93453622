package openai

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
)

const (
	// valueBytes is about what a value of JSON takes as a value of templates, with what makes it.
	valueBytes = 200
	// textBytes is about what a byte of text takes while it becomes tokens, if each is a token.
	textBytes = 100
	// mostFields bounds the fields of an object.
	mostFields = 1 << 18
	// mostTokens bounds a text that a client sends as tokens.
	mostTokens = 1 << 20
)

// weigh counts the memory of JSON that becomes values of templates.
func (c *call) weigh(raw []byte) {
	n := bytes.Count(raw, []byte{','}) + bytes.Count(raw, []byte{'['}) + bytes.Count(raw, []byte{'{'})
	c.more(valueBytes * int64(n))
}

// more counts memory until the request ends.
func (c *call) more(n int64) {
	if c.body != nil && c.in.err == nil {
		c.in.err = c.h.bodies.More(c.body, n)
	}
}

// reading runs fn, which makes tokens of a text of so many bytes, when there is memory for it.
func (c *call) reading(param string, size int, fn func()) error {
	n, most := int64(size)*textBytes, c.h.o.Memory
	if n > most {
		return &refusal{status: http.StatusRequestEntityTooLarge, param: param, code: "context_length_exceeded", text: fmt.Sprintf(
			"it becomes a text of %d bytes, and this server's memory is enough for %d: send less", size, most/textBytes)}
	}
	if err := c.h.texts.take(c.r.Context(), n); err != nil {
		return err
	}
	defer c.h.texts.give(n)
	fn()
	return nil
}

// turns lets those wait for memory who do not find enough. The first one waits alone, and the
// others behind it.
type turns struct {
	first chan struct{} // of one element, which the first one has

	mu    sync.Mutex
	free  int64
	given chan struct{} // closed when memory is given back
}

func newTurns(free int64) *turns {
	return &turns{first: make(chan struct{}, 1), free: free, given: make(chan struct{})}
}

// take takes memory, at most what there is in all. It fails with the cause of ctx when ctx ends.
func (t *turns) take(ctx context.Context, n int64) error {
	select {
	case t.first <- struct{}{}:
		defer func() { <-t.first }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for {
		t.mu.Lock()
		enough, given := t.free >= n, t.given
		if enough {
			t.free -= n
		}
		t.mu.Unlock()
		if enough {
			return nil
		}
		select {
		case <-given:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (t *turns) give(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free += n
	close(t.given)
	t.given = make(chan struct{})
}
