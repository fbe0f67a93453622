package prefetcher

import (
	"fmt"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// slot is the use of device memory for one batch; see Note [Life of a slot]. The memory itself lies
// with the [Prefetcher] or the [Tensors], under the slot's number.
type slot struct {
	number  int // of the slots of its copier, from 0
	staging staging

	ready *cgotorch.Event // recorded after the last work that writes the slot; nil before the first copy
	free  func(*slot)     // takes the slot back when the body and every Do that used the batch have ended

	mu       sync.Mutex
	lentTo   fmt.Stringer                  // the batch whose loop body runs, or nil
	uses     int                           // number of Dos that have used the batch and have not ended
	streams  map[*cgotorch.Stream]struct{} // the streams of the Dos and of the Execs that used the batch
	released []*cgotorch.Event             // the events recorded after the uses
}

func newSlot(number int, free func(*slot)) *slot {
	return &slot{number: number, free: free, streams: map[*cgotorch.Stream]struct{}{}}
}

// awaitUses makes the copy stream wait, on the device, for every use of the slot's last batch.
func (s *slot) awaitUses(x *cgotorch.Exec) {
	for _, e := range s.released {
		x.Wait(e) //edge:refill-behind-uses TestEpoch_HasNoRace checked
		e.Close() //edge:released-events-freed TestEpoch_HasNoRace
	}
	s.released = nil
	if s.ready != nil {
		s.ready.Close() //edge:ready-event-freed TestEpoch_HasNoRace
		s.ready = nil
	}
}

// lend notes that the loop body of b begins.
func (s *slot) lend(b fmt.Stringer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lentTo, s.uses = b, 0
	clear(s.streams)
}

// use makes x's stream wait for the copy, and records the end of the use when x's Do ends. x must
// be usable, because a panic of AtEnd would leave the slot in use for ever.
func (s *slot) use(x *cgotorch.Exec, b fmt.Stringer) error {
	s.mu.Lock()
	if s.lentTo != b {
		s.mu.Unlock()
		return fmt.Errorf("prefetcher: %s: %w: use it inside the body of the loop that yielded it, or Clone its tensors there", b, ErrBatchOver)
	}
	s.uses++ //edge:use-is-counted TestSlot_FreedByTheLast
	for _, stream := range []*cgotorch.Stream{x.Stream(), x.DoStream()} {
		s.streams[stream] = struct{}{} //edge:body-knows-its-streams TestSlot_LaterDoOfTheBody_InOrder checked
	}
	s.mu.Unlock()
	x.AtEnd(func() {
		//edge:use-ends-with-its-do TestSlot_FreedByTheLast
		defer s.useOver() // also when the device is lost, where Record fails
		e := x.Record()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.released = append(s.released, e) //edge:do-records-its-end TestSlot_DoOutlivesBody_InOrder checked
	})
	x.Wait(s.ready) //edge:use-behind-copy TestEpoch_HasNoRace checked
	return nil
}

func (s *slot) useOver() {
	s.mu.Lock()
	s.uses--
	//edge:do-leaves-slot-to-body TestSlot_FreedByTheLast
	//edge:do-leaves-slot-to-dos TestSlot_FreedByTheLast
	free := s.lentTo == nil && s.uses == 0
	s.mu.Unlock()
	if free {
		s.free(s)
	}
}

// heldHere returns the stream whose Do runs on the calling goroutine, if that Do has used the
// slot's batch, whose body is over. Otherwise it returns nil.
func (s *slot) heldHere() *cgotorch.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lentTo != nil || s.uses == 0 {
		return nil
	}
	for stream := range s.streams {
		e, err := stream.TryRecord() // no event means that its Do runs here
		if err == nil && e == nil {
			return stream
		}
		e.Close()
	}
	return nil
}

// endBody records again on every stream that used the batch. A later Do of the body may have
// enqueued work that reads the batch without a Use. An example is the backward of a loss that an
// earlier Do kept. endBody leaves out a stream whose Do it is called from. If that Do has used the
// batch, its end records an event.
func (s *slot) endBody() {
	s.mu.Lock()
	s.lentTo = nil //edge:body-ends TestBatch_UsedAfterItsBody
	for stream := range s.streams {
		if e, err := stream.TryRecord(); err == nil && e != nil {
			s.released = append(s.released, e) //edge:body-records-its-end TestSlot_LaterDoOfTheBody_InOrder checked
		}
	}
	free := s.uses == 0 //edge:body-leaves-slot-to-dos TestSlot_FreedByTheLast
	s.mu.Unlock()
	if free {
		s.free(s)
	}
}

func (s *slot) close() {
	for _, e := range s.released { //edge:slot-uses-freed TestEpoch_HasNoRace
		e.Close()
	}
	s.staging.close(s.ready)
	if s.ready != nil {
		s.ready.Close() //edge:slot-ready-freed TestEpoch_HasNoRace
	}
	s.released, s.ready = nil, nil
}
