package weights

import (
	"errors"
	"os"
	"runtime"
	"sync"
)

// takePages writes fresh memory, which is zero, so that the system gives it pages now.
func takePages(memory []byte) {
	inParallel(len(memory), os.Getpagesize(), func(begin, end int) error {
		for i := begin; i < end; i += os.Getpagesize() {
			memory[i] = 0
		}
		return nil
	})
}

// inParallel divides the range [0, n) into pieces and calls fn for each piece, on all cores. The
// pieces begin at multiples of `step`. inParallel waits for all calls and returns their errors.
func inParallel(n, step int, fn func(begin, end int) error) error {
	workers := runtime.GOMAXPROCS(0)
	piece := max(1, (n/step+workers)/workers) * step
	var all sync.WaitGroup
	errs := make([]error, 0, workers)
	var mu sync.Mutex
	for begin := 0; begin < n; begin += piece {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := fn(begin, min(begin+piece, n)); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		}()
	}
	all.Wait()
	return errors.Join(errs...)
}
