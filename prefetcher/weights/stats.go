package weights

import (
	"errors"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// CacheStats counts since the [Cache] were made.
type CacheStats struct {
	Hits       int           // Uses that found the unit there from a Use before
	Ahead      int           // Uses of a unit whose copy had been begun for them, early or late: see Stall
	Misses     int           // Uses that had to begin the copy
	Prefetched int           // copies begun by Prefetch or a policy
	Unused     int           // copies whose unit was not used before it was given up
	Bytes      int64         // copied to the device
	Written    int64         // bytes copied to the store
	Copy       time.Duration // the copying of these bytes took, on the device
	Stall      time.Duration // streams stood for copies, on the device
	HostWait   time.Duration // goroutines waited in Prefetch and Use
}

// Uses are all of them.
func (s CacheStats) Uses() int { return s.Hits + s.Ahead + s.Misses }

// HitRate is the share of Uses that needed no copy; 0 where there were none.
func (s CacheStats) HitRate() float64 { return share(float64(s.Hits), float64(s.Uses())) }

// Hidden is the share of the copying during which no stream stood for it, from 0 to 1; 0 where there was none.
func (s CacheStats) Hidden() float64 {
	if s.Copy <= 0 {
		return 0
	}
	return max(0, 1-share(float64(s.Stall), float64(s.Copy)))
}

func share(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}

// mark is a timing event that several own. The lock is that of the Cache.
type mark struct {
	*cgotorch.Event
	more int // owners but one
}

// share returns the mark for another owner, who is to Close it too.
func (m *mark) share() *mark {
	m.more++
	return m
}

// Close frees the event with its last owner.
func (m *mark) Close() error {
	if m == nil {
		return nil
	}
	if m.more--; m.more >= 0 {
		return nil
	}
	return m.Event.Close()
}

// span is a time on the device: of a copy, or from where a stream stands to the end of the copy that it stands for, below 0 where it does not.
type span struct {
	from, to *mark
	ahead    bool // a copy by Prefetch or a policy
}

func (s span) close() error { return errors.Join(s.from.Close(), s.to.Close()) }

// stats are counts with the spans that are not known to be over, each list in the order of its events.
type stats struct {
	CacheStats
	copies, stalls []span
	prefetching    int // of copies, those ahead
}

// harvest adds the spans that are over. It does not wait.
func (s *stats) harvest() {
	over := ended(s.copies, &s.Copy)
	for _, c := range s.copies[:over] {
		if c.ahead {
			s.prefetching--
		}
	}
	s.copies = slices.Delete(s.copies, 0, over)
	s.stalls = slices.Delete(s.stalls, 0, ended(s.stalls, &s.Stall))
}

// ended adds spans to total, up to the first one that is not over, frees them, and returns how many there were. Those of a lost device are over.
func ended(spans []span, total *time.Duration) int {
	for i, p := range spans {
		d, done := elapsed(p.from.Event, p.to.Event)
		if !done {
			return i
		}
		*total += d
		p.close()
	}
	return len(spans)
}

func (s *stats) close() {
	for _, p := range slices.Concat(s.copies, s.stalls) {
		p.close()
	}
	s.copies, s.stalls = nil, nil
}
