package text

import (
	"fmt"
	"slices"

	"github.com/streamtorch/streamtorch/internal/panics"
)

// masked reports whether a request with a mask is to take part in the next step.
func (b *Batcher) masked() bool {
	return slices.ContainsFunc(b.rows, func(r *request) bool { return r != nil && r.running && r.a.f.mask })
}

// allowed lets the program fill the mask of a request. A panic of the program ends the request.
func (r *request) allowed() (allowed []bool, err error) {
	done := make(chan error, 1)
	go panics.Run("text.Batcher", func() (err error) { // a Mask that ends its goroutine would end the Batcher's
		allowed, err = r.a.allowed()
		return err
	}, func(err error) { done <- err })
	lane := r.a.c.m.lane
	lane.mu.Unlock() // the program may use conversations
	err = <-done
	lane.mu.Lock()
	if err != nil {
		return nil, fmt.Errorf("GenerateOptions.Mask: %w", err)
	}
	return allowed, nil
}
