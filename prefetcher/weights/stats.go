package weights

import (
	"errors"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// CacheStats counts since the [Cache] was made.
type CacheStats struct {
	Hits       int           // Uses that found the unit there from a Use before
	Ahead      int           // Uses of a unit whose copy had been begun for them, early or late: see Stall
	Misses     int           // Uses that had to begin the copy
	Prefetched int           // copies begun by Prefetch or a policy
	Unused     int           // copies whose unit made room before it was used
	Bytes      int64         // copied to the device
	Written    int64         // bytes copied to the store
	Copy       time.Duration // of the device's time, for copying Bytes
	Stall      time.Duration // of streams' time, waiting for copies
	HostWait   time.Duration // of goroutines' time, waiting in Prefetch and Use
}

// Uses is the number of all Uses.
func (s CacheStats) Uses() int { return s.Hits + s.Ahead + s.Misses }

// HitRate is the share of Uses that needed no copy; 0 where there were none.
func (s CacheStats) HitRate() float64 { return share(float64(s.Hits), float64(s.Uses())) }

// Hidden is the share of the copying, from 0 to 1, during which no stream waited for it; 0 where
// there was no copying.
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

// Stats returns the counts. It waits for the enqueuer and never for the device. Copy and Stall
// leave out the work that the device has not finished.
func (c *Cache[M]) Stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.offerEmptied()
	c.settleBefore(nil)
	c.stats.harvest()
	return c.stats.CacheStats
}

// sharedEvent is a timing event with several owners. The Cache's lock guards it.
type sharedEvent struct {
	*cgotorch.Event
	more int // owners beside the first
}

// share returns the event for another owner, which must Close it too.
func (e *sharedEvent) share() *sharedEvent {
	e.more++
	return e
}

// Close frees the event with its last owner.
func (e *sharedEvent) Close() error {
	if e == nil {
		return nil
	}
	if e.more--; e.more >= 0 {
		return nil
	}
	return e.Event.Close()
}

// interval is a time on the device: of a copy, or of a stream's wait for one. A wait for a copy
// that was done before has a length below 0.
type interval struct {
	from, to *sharedEvent
	ahead    bool // of a copy by Prefetch or a policy
}

func (i interval) close() error { return errors.Join(i.from.Close(), i.to.Close()) }

// stats are counts with the intervals that are not known to be over. Each list is in the order of
// its events.
type stats struct {
	CacheStats
	copies, stalls []interval
	prefetching    int // of copies, those ahead
}

// harvest adds the intervals that are over. It does not wait.
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

// harvestMany is harvest where many intervals are kept. To ask for one takes microseconds, which a
// Use is better without.
func (s *stats) harvestMany() {
	if len(s.copies)+len(s.stalls) > 64 {
		s.harvest()
	}
}

// nextAhead returns a channel that is closed when the first of the copies ahead is done; nil where
// there is none.
func (s *stats) nextAhead() <-chan struct{} {
	i := slices.IndexFunc(s.copies, func(c interval) bool { return c.ahead })
	if i < 0 {
		return nil
	}
	return s.copies[i].to.Done()
}

// ended adds intervals to total, up to the first that is not over, frees them and returns their
// number. The intervals of a lost device are over.
func ended(intervals []interval, total *time.Duration) int {
	for k, i := range intervals {
		d, done := elapsed(i.from.Event, i.to.Event)
		if !done {
			return k
		}
		*total += d
		i.close()
	}
	return len(intervals)
}

// elapsed is the time on the device from one timing event to another, and whether the second is
// done. It does not wait. On a lost device it is done, after no time.
func elapsed(from, to *cgotorch.Event) (d time.Duration, done bool) {
	done, err := to.Poll()
	if err == nil && !done {
		return 0, false
	}
	ms, err := to.Elapsed(from)
	if err != nil {
		return 0, true
	}
	return time.Duration(max(0, ms) * float64(time.Millisecond)), true
}

func (s *stats) close() {
	for _, i := range slices.Concat(s.copies, s.stalls) {
		i.close()
	}
	s.copies, s.stalls = nil, nil
}
