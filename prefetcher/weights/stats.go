package weights

import (
	"errors"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/prefetcher/internal/timing"
)

// CacheStats holds counts since the [Cache] was made.
type CacheStats struct {
	Hits       int           // Uses whose unit was still in a slot since an earlier Use
	Ahead      int           // first Uses after a copy that a Prefetch or a policy began; Stall counts their waits
	Misses     int           // Uses that had to begin the copy
	Prefetched int           // copies begun by Prefetch or a policy
	Unused     int           // copies whose unit gave up its slot before a Use
	Bytes      int64         // bytes copied to the device
	Written    int64         // bytes that an Offload has copied to the store
	Copy       time.Duration // time of the device for copying Bytes
	Stall      time.Duration // time for which streams waited for copies
	HostWait   time.Duration // time for which goroutines waited in Prefetch and Use
}

// Stats returns the counts so far. It waits for the enqueuer and never for the device. Copy and
// Stall do not yet count work that the device has not finished.
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

// share returns the event for one more owner. That owner must Close it too.
func (e *sharedEvent) share() *sharedEvent {
	e.more++
	return e
}

// Close frees the event when its last owner calls it.
func (e *sharedEvent) Close() error {
	if e == nil {
		return nil
	}
	if e.more--; e.more >= 0 {
		return nil
	}
	return e.Event.Close()
}

// interval is a time on the device, either of a copy or of a stream's wait for a copy. If the
// copy was done before the wait began, the length is below 0.
type interval struct {
	from, to *sharedEvent
	ahead    bool // the interval is of a copy by Prefetch or a policy
}

func (i interval) close() error { return errors.Join(i.from.Close(), i.to.Close()) }

// stats holds the counts, and the intervals that the device has perhaps not finished. Each list
// is in the order of its events.
type stats struct {
	CacheStats
	copies, stalls []interval
	prefetching    int // number of the intervals in `copies` whose copy Prefetch or a policy began
}

// harvest adds up the times of the copies, and of the waits for copies, that the device has
// finished. It does not wait.
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

// harvestMany is a harvest for Use. It does nothing while few intervals are kept, because each
// query of an interval takes microseconds.
func (s *stats) harvestMany() {
	if len(s.copies)+len(s.stalls) > 64 {
		s.harvest()
	}
}

// nextAhead returns a channel that is closed when the first copy by Prefetch or a policy is done.
// It returns nil if `copies` has no copy by Prefetch or a policy.
func (s *stats) nextAhead() <-chan struct{} {
	i := slices.IndexFunc(s.copies, func(c interval) bool { return c.ahead })
	if i < 0 {
		return nil
	}
	return s.copies[i].to.Done()
}

// ended adds to `total` the lengths of the intervals before the first one that the device has not
// finished. It frees these intervals and returns their number. On a lost device all intervals count
// as finished.
func ended(intervals []interval, total *time.Duration) int {
	for k, i := range intervals {
		d, done := timing.Between(i.from.Event, i.to.Event)
		if !done {
			return k
		}
		*total += d
		i.close()
	}
	return len(intervals)
}

func (s *stats) close() {
	for _, i := range slices.Concat(s.copies, s.stalls) {
		i.close()
	}
	s.copies, s.stalls = nil, nil
}
