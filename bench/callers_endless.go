package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/text"
)

// endlessAnswers are answers that go on until stop.
type endlessAnswers struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	began  atomic.Int64 // answers that have a token
	made   atomic.Int64 // tokens of all answers
	failed atomic.Bool  // one has failed

	mu   sync.Mutex
	when []time.Time // of the tokens of the first answer
	err  error
}

// startEndless starts an answer to each prompt. It returns when each has a token, or one has
// failed.
func startEndless(b *text.Batcher, prompts [][]int64) *endlessAnswers {
	e := &endlessAnswers{}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	for i, prompt := range prompts {
		e.wg.Add(1)
		go func() {
			defer e.wg.Done()
			e.answer(ctx, b, prompt, i == 0)
		}()
	}
	for e.began.Load() < int64(len(prompts)) && !e.failed.Load() {
		time.Sleep(time.Millisecond)
	}
	return e
}

// answer asks one prompt. With `timed` it notes the times of the tokens.
func (e *endlessAnswers) answer(ctx context.Context, b *text.Batcher, prompt []int64, timed bool) {
	first := true
	for _, err := range b.Generate(ctx, prompt, text.GenerateOptions{Greedy: true, IgnoreEnd: true}) {
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				e.mu.Lock()
				e.err = errors.Join(e.err, err)
				e.mu.Unlock()
				e.failed.Store(true)
			}
			return
		}
		if timed {
			e.mu.Lock()
			e.when = append(e.when, time.Now())
			e.mu.Unlock()
		}
		if first {
			e.began.Add(1)
		}
		first = false
		e.made.Add(1)
	}
}

// await waits for more tokens of all answers together, unless one has failed. It returns when they
// were there, and how many there are then.
func (e *endlessAnswers) await(more int) (when time.Time, made int64) {
	for want := e.made.Load() + int64(more); e.made.Load() < want && !e.failed.Load(); {
		time.Sleep(200 * time.Microsecond)
	}
	return time.Now(), e.made.Load()
}

// ofFirst returns how many tokens the first answer has.
func (e *endlessAnswers) ofFirst() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.when)
}

// gaps returns the times between tokens of the first answer, in milliseconds. It is called after
// stop.
func (e *endlessAnswers) gaps(from, to int) (s sample) {
	for i := from + 1; i < to; i++ {
		s = append(s, e.when[i].Sub(e.when[i-1]).Seconds()*1e3)
	}
	return s
}

// stop ends the answers, and returns what went wrong.
func (e *endlessAnswers) stop() error {
	e.cancel()
	e.wg.Wait()
	return e.err
}
