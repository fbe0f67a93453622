package weights

import (
	"errors"
	"maps"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// slot is device memory for one unit; see Note [Life of a slot]. The Cache's lock guards it.
type slot[M any] struct {
	index   int
	memory  *cgotorch.Tensor // uint8
	modules map[*layout]*slotModule[M]

	holds  *unit[M] // the unit whose copy was begun last, or nil
	wanted bool     // its unit was prefetched and has not been used since
	fresh  bool     // its unit has not been used since the slot was filled

	fill     *fill[M]                             // the last copy, while it is perhaps not enqueued yet; else nil
	ready    *sharedEvent                         // recorded after the copy
	awaited  map[*cgotorch.Stream]bool            // streams that already wait for ready
	uses     int                                  // number of uses that are not released
	users    map[*cgotorch.Stream]int             // number of these uses by the stream of their Do
	changing bool                                 // the only use is one that changes the unit
	released map[*cgotorch.Stream]*cgotorch.Event // recorded after the last use on each stream
}

func newSlot[M any](index int) *slot[M] {
	return &slot[M]{index: index, modules: map[*layout]*slotModule[M]{}, awaited: map[*cgotorch.Stream]bool{},
		users: map[*cgotorch.Stream]int{}, released: map[*cgotorch.Stream]*cgotorch.Event{}}
}

const manyStreams = 64 // above this number of streams, notes about old streams are dropped

// forbidKeep makes Exec.Keep refuse tensors in the slot's memory, in x's Do.
func (s *slot[M]) forbidKeep(x *cgotorch.Exec, unit string) {
	lent := x.Lend(s.memory, unit)
	lent.Close() // the Do remembers the memory and does not need the handle
}

// copyBack enqueues the copy of the slot's unit to the store. The copy runs after the event
// `changed`. copyBack returns an event that is recorded after the copy. The next copy into the
// slot waits for this copy, and so does the next change of the unit.
func (s *slot[M]) copyBack(backs *cgotorch.Stream, changed *cgotorch.Event) (*cgotorch.Event, error) {
	if err := backs.Wait(changed); err != nil { //edge:unit-back-behind-change TestUse_ReleaseChanged checked
		return nil, err
	}
	if err := backs.CopyTo(s.modules[s.holds.layout].whole, s.holds.whole); err != nil {
		return nil, errors.Join(err, backs.Synchronize())
	}
	if err := s.releasedOn(backs); err != nil { //edge:unit-refill-behind-back TestUse_ReleaseChanged checked
		return nil, err
	}
	return backs.Record()
}

// releasedOn notes that the slot may be filled only after the work that is enqueued on `stream`
// so far.
func (s *slot[M]) releasedOn(stream *cgotorch.Stream) error {
	e, err := stream.Record()
	if err == nil {
		s.releasedBehind(stream, e)
	}
	return err
}

// releasedBehind notes that the slot may be filled only after the event e of the stream `on`. If
// the slot already has an event of this stream, e takes its place.
func (s *slot[M]) releasedBehind(on *cgotorch.Stream, e *cgotorch.Event) {
	if before := s.released[on]; before != nil {
		before.Close()
	}
	if len(s.released) >= manyStreams { // as in a slot that is never filled again
		for other, e := range s.released {
			if done, err := e.Poll(); err != nil || done {
				e.Close()
				delete(s.released, other)
			}
		}
	}
	s.released[on] = e //edge:unit-release-of-each-stream TestSlot_Reuse_SeveralStreams checked
}

// takeUses returns the events recorded after the uses of the slot's unit, and forgets them. The
// caller closes the events.
func (s *slot[M]) takeUses() []*cgotorch.Event {
	events := slices.Collect(maps.Values(s.released))
	clear(s.released)
	s.ready.Close()
	s.ready = nil
	return events
}

func closeAll(events []*cgotorch.Event) {
	for _, e := range events {
		e.Close()
	}
}

// close waits for the copy into the slot. It frees the slot's memory after the uses of the slot, in
// the order of the copy stream.
func (s *slot[M]) close(copies *cgotorch.Stream) error {
	var errs []error
	if s.ready != nil {
		//edge:unit-close-waits-for-copies TestCache_Close_WaitsForCopies checked
		errs = append(errs, s.ready.Synchronize())
	}
	uses := s.takeUses()
	for _, e := range uses {
		_ = copies.Wait(e) // Wait fails only on a lost device, whose memory is gone already
	}
	closeAll(uses)
	for _, m := range s.modules {
		errs = append(errs, m.close())
	}
	if s.memory != nil {
		errs = append(errs, s.memory.Close())
	}
	return errors.Join(errs...)
}
