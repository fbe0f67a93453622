package text

import (
	"context"
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/panics"
)

// masked reports whether a request with a mask is to take part in the next step.
func (b *Batcher) masked() bool {
	return slices.ContainsFunc(b.rows, func(r *request) bool { return r != nil && r.running && r.a.f.mask })
}

// fillMasks lets programs fill the masks of next tokens. The host has read all tokens before. The
// loop holds nothing meanwhile, so that a Mask may use conversations, and close the model.
func (b *Batcher) fillMasks() {
	for _, r := range b.rows {
		if r != nil && r.a.f.mask && !r.masked {
			if err := b.fillMask(r); err != nil {
				b.end(r, err)
			}
		}
	}
}

// fillMask is fillMasks for one request. A panic of the program ends the request. A Mask that does
// not return is given up when its request or the Batcher ends.
func (b *Batcher) fillMask(r *request) error {
	made, allowed, done := slices.Clone(r.a.made), make([]bool, b.m.d.c.vocab), make(chan error, 1)
	go panics.Run("text.Batcher", func() error { // a Mask that ends its goroutine would end the Batcher's
		r.a.o.Mask(made, allowed)
		return nil
	}, func(err error) { done <- err })
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("GenerateOptions.Mask: %w", err)
		}
	//edge:batch-mask-of-cancelled TestBatcher_Mask
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	//edge:batch-mask-of-closed TestBatcher_Mask
	case <-b.quit:
		return fmt.Errorf("the Batcher is closed: %w", cgotorch.ErrClosed)
	}
	if !slices.Contains(allowed, true) {
		return refused("Mask allows no token after %d tokens of the answer", len(made))
	}
	r.a.mask, r.masked = allowed, true
	return nil
}
