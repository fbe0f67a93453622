package serve

import (
	"slices"
	"time"
)

// policy decides when a batch begins, and how many entries it has. It knows how long a batch of
// each size takes.
//
// While the device computes, more requests may come, and waiting for them costs nothing. So the
// next batch is gathered when the device is about to end the one before. If nothing is computed,
// it is gathered at once, or after Options.MaxDelay.
type policy struct {
	sizes []int                 // ascending
	takes map[int]time.Duration // the time of a batch, by size
	exact bool                  // a batch is not padded
	until time.Time             // when the device will have done what is enqueued
	lead  time.Duration         // from the gathering of a batch to the beginning of its work on the device
	delay time.Duration         // Options.MaxDelay
}

func (p *policy) largest() int { return p.sizes[len(p.sizes)-1] }

// wait returns how long the dispatcher may still wait for more entries than `waiting`, of which the
// oldest came at `since`.
func (p *policy) wait(now time.Time, waiting int, since time.Time) time.Duration {
	if waiting >= p.largest() {
		return 0
	}
	return max(p.until.Sub(now)-p.lead, min(p.delay-now.Sub(since), p.delay), 0)
}

// size returns the size of the batch to compute, if so many entries wait: the one by which the
// most entries are done in a second.
func (p *policy) size(waiting int) int {
	if p.exact {
		return min(waiting, p.largest())
	}
	best, rate := p.sizes[0], 0.0
	for _, s := range p.sizes {
		if r := float64(min(s, waiting)) / max(p.takes[s].Seconds(), 1e-9); r >= rate {
			best, rate = s, r
		}
		if s >= waiting {
			break
		}
	}
	return best
}

// padded returns the size of the graph for a number of entries.
func (p *policy) padded(entries int) int {
	if p.exact {
		return entries
	}
	i, _ := slices.BinarySearch(p.sizes, entries)
	return p.sizes[i]
}

// began notes that a batch of a size was enqueued. `gathered` is when its gathering began.
func (p *policy) began(size int, gathered, now time.Time) {
	p.lead += (now.Sub(gathered)*3/2 - p.lead) / 4
	if p.until.Before(now) {
		p.until = now
	}
	p.until = p.until.Add(p.takes[size])
}

// ended notes that the device has done all that is enqueued but `left`, the sizes of other batches.
func (p *policy) ended(now time.Time, left []int) {
	p.until = now
	for _, s := range left {
		p.until = p.until.Add(p.takes[s])
	}
}

// drop removes the sizes from `size` on. It reports whether there is a smaller one.
func (p *policy) drop(size int) bool {
	i, _ := slices.BinarySearch(p.sizes, size)
	if i == 0 {
		return false
	}
	p.sizes = p.sizes[:i]
	return true
}
