package text

import (
	"slices"
	"time"
)

// BatcherStats are counts since a Batcher was made, and its state. A request that has its turn has
// a seat: at most MaxBatch have one.
type BatcherStats struct {
	Waiting   int   // requests without a seat, also those that have given it up for want of pages
	Running   int   // requests with a seat
	Answers   int64 // requests that ended with their last token
	Refused   int64 // requests for which the queue had no room
	Preempted int64 // times that a request gave its seat and its pages up

	Tokens  int64   // of answers
	Prompts int64   // tokens of prompts that were computed
	Shared  int64   // tokens of prompts whose keys and values were there
	Rate    float64 // tokens of answers in a second, over the last 1,024 of them

	Pages       int // of the cache, all together
	FreePages   int // that nobody has
	PrefixPages int // that are kept for equal beginnings, some of them also of requests in seats

	// FirstToken is the time from Generate to the first token. NextToken is the time between two
	// tokens of an answer. They are of the last 1,024 of each. Half of them took at most P50, and 99
	// of 100 at most P99.
	FirstTokenP50, FirstTokenP99 time.Duration
	NextTokenP50, NextTokenP99   time.Duration
}

// batcherCounts are what a Batcher counts, under its mutex.
type batcherCounts struct {
	BatcherStats
	first, next recent[time.Duration]
	when        recent[time.Time] // of tokens
}

// recent has the last values of something.
type recent[T any] struct {
	values []T
	oldest int
}

const mostRecent = 1024

func (r *recent[T]) add(v T) {
	if len(r.values) < mostRecent {
		r.values = append(r.values, v)
		return
	}
	r.values[r.oldest] = v
	r.oldest = (r.oldest + 1) % mostRecent
}

// share returns the value that this share of all values does not exceed.
func share(r recent[time.Duration], of float64) time.Duration {
	if len(r.values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(r.values))
	return sorted[int(of*float64(len(sorted)-1)+0.5)]
}

// Stats returns the counts. It does not wait for the device. It works after Close, too.
func (b *Batcher) Stats() BatcherStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats.BatcherStats
	s.Waiting = len(b.waiting)
	s.Pages, s.FreePages = b.m.pages.all, b.m.pages.left()
	s.FirstTokenP50, s.FirstTokenP99 = share(b.stats.first, 0.5), share(b.stats.first, 0.99)
	s.NextTokenP50, s.NextTokenP99 = share(b.stats.next, 0.5), share(b.stats.next, 0.99)
	if when := b.stats.when; len(when.values) > 1 {
		newest := when.values[(when.oldest+len(when.values)-1)%len(when.values)]
		if d := newest.Sub(when.values[when.oldest]).Seconds(); d > 0 {
			s.Rate = float64(len(when.values)-1) / d
		}
	}
	return s
}

// count counts a token of a request, which is to be told next.
func (b *Batcher) count(r *request, last bool) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Tokens++
	b.stats.when.add(now)
	if r.last.IsZero() {
		b.stats.first.add(now.Sub(r.arrived))
	} else {
		b.stats.next.add(now.Sub(r.last))
	}
	r.last = now
	if last {
		b.stats.Answers++
	}
}
