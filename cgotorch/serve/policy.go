package serve

import (
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/internal/pace"
)

// policy decides when a batch begins, and how many entries it has. It knows how long a batch of
// each form takes.
//
// While the device computes, more requests may come, and waiting for them costs nothing. So the
// next batch is gathered when the device is about to end the one before. If nothing is computed,
// it is gathered at once, or after Options.MaxDelay.
type policy struct {
	all   []int                   // the sizes of Options.BatchSizes, ascending
	sizes map[int64][]int         // the sizes in use, by length
	retry map[int64]backoff       // when the sizes that are not in use are tried again
	copy  map[int64]time.Duration // of one entry to the device, by length
	exact bool                    // a batch is not padded to a size
	delay time.Duration           // Options.MaxDelay
	pace.Pace[form]
}

// form is the form of a batch.
type form struct {
	size   int   // number of entries
	length int64 // to which the variable dimensions are padded; 0 if there are none
}

type backoff struct {
	at    time.Time
	after time.Duration
}

func newPolicy(sizes []int, lengths []int64, exact bool, delay time.Duration) policy {
	p := policy{Pace: pace.New[form](), all: sizes, sizes: map[int64][]int{}, retry: map[int64]backoff{}, copy: map[int64]time.Duration{}, exact: exact, delay: delay}
	for _, l := range lengths {
		p.sizes[l] = sizes
	}
	return p
}

func (p *policy) largest(length int64) int {
	sizes := p.sizes[length]
	return sizes[len(sizes)-1]
}

// wait returns how long the dispatcher may still wait for more entries than `waiting` of a length,
// of which the oldest came at `since`.
func (p *policy) wait(now time.Time, length int64, waiting int, since time.Time) time.Duration {
	if waiting >= p.largest(length) {
		return 0
	}
	return max(p.Left(now)-time.Duration(waiting)*p.copy[length], min(p.delay-now.Sub(since), p.delay), 0)
}

// size returns the size of the next batch. `waiting` entries wait, and the device computes
// `computed` entries now. The size is the one that completes the most entries in a second.
//
// There is one exception. Let `half` be the smallest size for half of all these entries. If it is
// nearly as fast, size returns `half`. Without this rule, callers who ask again at once would form
// a small and a large batch by turns. The small batches would waste the device.
func (p *policy) size(length int64, waiting, computed int) int {
	if p.exact {
		return min(waiting, p.largest(length))
	}
	const nearly = 0.9
	rate := func(s int) float64 {
		return float64(min(s, waiting)) / max(p.Takes[form{s, length}].Seconds(), 1e-9)
	}
	best, half := p.sizes[length][0], 0
	for _, s := range p.sizes[length] {
		if rate(s) >= rate(best) {
			best = s
		}
		if half == 0 && s >= (waiting+computed)/2 {
			half = s
		}
		if s >= waiting {
			break
		}
	}
	if 0 < half && half < best && rate(half) >= nearly*rate(best) {
		return half
	}
	return best
}

// padded returns the size of the graph for a number of entries.
func (p *policy) padded(length int64, entries int) int {
	if p.exact {
		return entries
	}
	i, _ := slices.BinarySearch(p.sizes[length], entries)
	return p.sizes[length][i]
}

const (
	firstRetry = 10 * time.Second
	lastRetry  = 10 * time.Minute
)

// drop gives up the sizes from f.size on, for some time. It reports whether there is a smaller one.
func (p *policy) drop(f form, now time.Time) bool {
	i, _ := slices.BinarySearch(p.sizes[f.length], f.size)
	if i == 0 {
		return false
	}
	p.sizes[f.length] = p.sizes[f.length][:i]
	after := min(max(2*p.retry[f.length].after, firstRetry), lastRetry)
	p.retry[f.length] = backoff{now.Add(after), after}
	return true
}

// restore takes sizes back that were given up long ago: memory may have become free.
func (p *policy) restore(now time.Time) {
	for length, sizes := range p.sizes {
		if len(sizes) < len(p.all) && now.After(p.retry[length].at) {
			p.sizes[length] = p.all
		}
	}
}
