package text

import (
	"errors"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/pace"
)

// loop computes batches until the queue is closed. The device gets a second batch when it is about
// to end the one that it computes: later texts then wait for one batch, and the device for none.
func (e *encoding) loop() {
	defer close(e.ended)
	alarm := pace.NewAlarm()
	defer alarm.Stop()
	var flights []*encoderFlight
	for {
		var done <-chan struct{}
		if len(flights) > 0 {
			done = flights[0].done()
		}
		select {
		case <-done: // before another one is begun
			e.answer(flights[0])
			flights = flights[1:]
			continue
		default:
		}
		wait := time.Duration(0)
		if len(flights) > 0 {
			wait = e.pace.Left(time.Now())
		}
		texts, waiting, closed := e.take(len(flights), wait)
		switch {
		case len(texts) > 0:
			flights = append(flights, e.begin(texts))
			continue
		case len(flights) > 0:
		case closed:
			return
		case len(e.sizes) > 0:
			e.prepare(e.sizes[0])
			e.sizes = e.sizes[1:]
			continue
		}
		if waiting && len(flights) == 1 {
			alarm.Await(wait, e.news, done)
			continue
		}
		select {
		case <-done:
		case <-e.news:
		}
	}
}

// take takes a batch out of the queue, one text of each call in turn. The texts are ordered by
// length, the longest first. While two batches are under way, take takes none. Beside one it takes
// a full batch, or all texts that wait once `wait` is 0. `waiting` tells whether texts are left.
func (e *encoding) take(underWay int, wait time.Duration) (texts []*encoderText, waiting, closed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if underWay > 1 || underWay > 0 && wait > 0 && e.waitingTokens < e.batch {
		return nil, len(e.waiting) > 0, e.closed
	}
	for tokens := 0; len(e.waiting) > 0; {
		c := e.waiting[0]
		last := len(c.texts) - 1
		t := c.texts[last]
		if tokens += len(t.tokens); tokens > e.batch && len(texts) > 0 {
			break
		}
		texts, c.texts, e.waiting = append(texts, t), c.texts[:last], e.waiting[1:]
		e.waitingTokens -= len(t.tokens)
		if last > 0 {
			e.waiting = append(e.waiting, c)
		}
	}
	slices.SortStableFunc(texts, func(s, t *encoderText) int { return len(t.tokens) - len(s.tokens) })
	return texts, len(e.waiting) > 0, e.closed
}

// answer waits for a batch, and tells the callers. If it failed, answer computes each text alone.
// So a call fails for its own texts only.
func (e *encoding) answer(f *encoderFlight) {
	texts := f.texts
	rows, err := e.end(f)
	e.pace.Ended(f.rows, f.began, time.Now())
	if err != nil && len(texts) > 1 && !errors.Is(err, cgotorch.ErrDeviceLost) {
		for i := range texts {
			e.answer(e.begin(texts[i : i+1]))
		}
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.Batches++
	for i, t := range texts {
		e.stats.Texts++
		e.stats.Tokens += int64(len(t.tokens))
		if err != nil {
			t.of.fail(err)
			e.drop(t.of)
			continue
		}
		t.out = rows[i]
		if t.of.left--; t.of.left == 0 && t.of.err == nil {
			close(t.of.done)
		}
	}
}
