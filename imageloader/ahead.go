package imageloader

import (
	"context"
	"iter"
	"sync"
)

// inOrder calls f for 0 to n-1, for several at a time, and yields the results in order, up to the first error. admit, where it is
// not nil, is called for each, in order, before f is. Leaving the loop waits for the calls under way.
func inOrder[T any](ctx context.Context, n, atOnce int, admit func(int) error, f func(int) (T, error)) iter.Seq2[T, error] {
	type result struct {
		value T
		err   error
	}
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		results := make(chan chan result, max(atOnce-1, 0))
		go func() {
			defer close(results)
			for i := range n {
				one := make(chan result, 1)
				if admit != nil {
					if err := admit(i); err != nil {
						one <- result{err: err}
						select {
						case results <- one:
						case <-ctx.Done():
						}
						return
					}
				}
				select {
				case results <- one:
				case <-ctx.Done():
					return
				}
				go func() {
					value, err := f(i)
					one <- result{value, err}
				}()
			}
		}()
		defer func() {
			cancel()
			for one := range results {
				<-one
			}
		}()
		for one := range results {
			r := <-one
			if !yield(r.value, r.err) || r.err != nil {
				return
			}
		}
		if ctx.Err() != nil {
			var none T
			yield(none, context.Cause(ctx))
		}
	}
}

// budget is a number of bytes to be had. It is for one taker.
type budget struct {
	mu    sync.Mutex
	limit int
	taken int
	freed chan struct{}
}

func newBudget(limit int) *budget { return &budget{limit: limit, freed: make(chan struct{}, 1)} }

// take waits until so many bytes are there, or all of them, until ctx ends.
func (b *budget) take(ctx context.Context, bytes int) error {
	for {
		b.mu.Lock()
		if b.taken == 0 || b.taken+bytes <= b.limit {
			b.taken += bytes
			b.mu.Unlock()
			return nil
		}
		b.mu.Unlock()
		select {
		case <-b.freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (b *budget) give(bytes int) {
	b.mu.Lock()
	b.taken -= bytes
	b.mu.Unlock()
	select {
	case b.freed <- struct{}{}:
	default:
	}
}
