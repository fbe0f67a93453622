package imageloader

import (
	"context"
	"iter"
)

// inOrder returns a sequence of the results of f(0) to f(n-1), in this order. Up to atOnce calls
// of f run at a time, and up to `ahead` results wait for the loop. The sequence ends after its
// first error. If `admit` is not nil, inOrder calls `admit` with i before it starts f(i). So
// `admit` can wait for memory. Only one call of `admit` runs at a time. When the loop over the
// sequence ends, the context of `admit` ends too. The sequence then waits for the calls of f that
// still run. The function `drop` gets the results that were not yielded.
func inOrder[T any](ctx context.Context, n, atOnce, ahead int, admit func(context.Context, int) error, f func(int) (T, error), drop func(T)) iter.Seq2[T, error] {
	type result struct {
		value T
		err   error
	}
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		results := make(chan chan result, max(ahead-1, 0))
		running := make(chan struct{}, atOnce)
		go func() {
			defer close(results)
			for i := range n {
				one := make(chan result, 1)
				if admit != nil {
					if err := admit(ctx, i); err != nil {
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
				running <- struct{}{}
				go func() {
					value, err := f(i)
					<-running
					one <- result{value, err}
				}()
			}
		}()
		defer func() {
			cancel()
			for one := range results {
				if r := <-one; r.err == nil {
					drop(r.value)
				}
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
