package prefetcher

import (
	"fmt"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/prefetcher/internal/timing"
)

// stall measures how long the consumer's stream waits for data. Each wait is a gap between two
// batches. A gap begins at the end of the last use of one batch. It ends when the next batch
// could start. Clocks of the host cannot measure a gap, because the host runs ahead of the
// device.
type stall struct {
	mu      sync.Mutex
	last    *cgotorch.Event // recorded after the last use so far; nil at the start of an epoch
	seen    fmt.Stringer    // the batch whose first use has been measured
	pending []gap
	total   time.Duration
}

type gap struct{ from, to *cgotorch.Event }

// used is called after x's stream was made to wait for b. The first use of b ends the gap before b.
// A gap is a time without work between two batches.
func (s *stall) used(b fmt.Stringer, x *cgotorch.Exec) {
	now := x.RecordTiming()
	s.mu.Lock()
	if s.seen != b {
		s.seen = b
		if s.last != nil {
			s.pending = append(s.pending, gap{s.last, now})
			s.last, now = nil, nil
		}
	}
	s.mu.Unlock()
	if now != nil { //edge:stall-use-freed TestBatch_TwoDosTwoStreams
		now.Close()
	}
	s.harvest()
}

// atEnd marks the end of x's Do as the last use so far.
func (s *stall) atEnd(x *cgotorch.Exec) {
	x.AtEnd(func() {
		e := x.RecordTiming()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.last != nil { //edge:stall-start-freed TestBatch_TwoDosTwoStreams
			s.last.Close()
		}
		s.last = e
	})
}

// harvest adds up the gaps between batches that the device has finished. It does not wait.
func (s *stall) harvest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.pending) > 0 {
		g := s.pending[0]
		d, done := timing.Between(g.from, g.to)
		if !done {
			return
		}
		s.total += d
		g.close() //edge:stall-gap-freed TestEpoch_HasNoRace
		s.pending = s.pending[1:]
	}
}

func (g gap) close() {
	g.from.Close()
	g.to.Close()
}

// startEpoch begins an epoch. The time between two epochs does not count. The host's wait for the
// first batch counts, because the stream then had no work of this epoch.
func (s *stall) startEpoch(waited time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total += waited
	if s.last != nil {
		s.last.Close() //edge:stall-epoch-freed TestEpoch_HasNoRace
		s.last = nil
	}
}

func (s *stall) close() {
	s.startEpoch(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.pending {
		g.close()
	}
	s.pending = nil
}
