// Package pace tells when the next batch has to begin, so that the device does not wait for it.
//
// While the device computes, more requests may come, and waiting for them costs nothing. So a batch
// is gathered when the device is about to end the one before.
package pace

import (
	"slices"
	"time"
)

// Pace knows how long a batch of each form takes, and which ones are enqueued. It is not safe for
// several goroutines.
type Pace[Form comparable] struct {
	Takes map[Form]time.Duration // on the device; what is not there is not known

	left  []Form        // of the batches that are enqueued and not done
	until time.Time     // when the device will have done them
	ends  time.Time     // when the device had done the batch before
	lead  time.Duration // from the gathering of a batch until its copy and work are enqueued
}

// New returns a Pace that knows no form.
func New[Form comparable]() Pace[Form] { return Pace[Form]{Takes: map[Form]time.Duration{}} }

// Left returns how long the next batch may still be gathered. It is 0 if the device waits for it.
func (p *Pace[Form]) Left(now time.Time) time.Duration {
	return max(p.until.Add(-p.lead).Sub(now), 0)
}

// Began notes that a batch was enqueued. `gathered` is when its gathering began. A batch that was
// captured meanwhile counts little.
func (p *Pace[Form]) Began(f Form, gathered, now time.Time) {
	p.lead += (min(now.Sub(gathered)*3/2, 2*p.lead+time.Millisecond) - p.lead) / 4
	if p.until.Before(now) {
		p.until = now
	}
	p.until = p.until.Add(p.Takes[f])
	p.left = append(p.left, f)
}

// Ended notes that the device has done a batch, which was enqueued before `began`. The time of a
// batch follows what it takes, as other work on the device changes it: quickly down, because the
// device must not wait.
func (p *Pace[Form]) Ended(f Form, began, now time.Time) {
	i := slices.Index(p.left, f)
	p.left = slices.Delete(p.left, i, i+1)
	if began.Before(p.ends) {
		began = p.ends
	}
	took := now.Sub(began)
	if takes, known := p.Takes[f]; known {
		share := time.Duration(8)
		if took < takes {
			share = 2
		}
		took = takes + (took-takes)/share
	}
	p.Takes[f], p.ends, p.until = took, now, now
	for _, f := range p.left {
		p.until = p.until.Add(p.Takes[f])
	}
}
