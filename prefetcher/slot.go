package prefetcher

import (
	"fmt"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
)

// slot is device memory for one batch; see Note [Life of a slot].
type slot struct {
	pixels *cgotorch.Tensor // uint8 [N, H, W, C]
	flips  *cgotorch.Tensor // bool [N]
	images *cgotorch.Tensor // DType [N, C, H, W]
	labels *cgotorch.Tensor // int64 [N]
	soft   *cgotorch.Tensor // float32 [N, Classes], or nil if labels are not mixed

	staging staging

	ready *cgotorch.Event // recorded after the last work that writes the slot; nil before the first copy
	free  func(*slot)     // takes the slot back when the body and every Do that used the batch have ended

	mu       sync.Mutex
	lentTo   *Batch                        // the batch whose loop body runs, or nil
	uses     int                           // number of Dos that have used the batch and have not ended
	streams  map[*cgotorch.Stream]struct{} // the streams of the Dos and of the Execs that used the batch
	released []*cgotorch.Event             // the events recorded after the uses
}

func newSlot(free func(*slot)) *slot {
	return &slot{free: free, streams: map[*cgotorch.Stream]struct{}{}}
}

// The method `allocate` gives the slot its memory. If `allocate` fails, the method `close` frees
// what it has allocated.
func (s *slot) allocate(x *cgotorch.Exec, shape shape, o Options) {
	n, h, w, c := int64(shape.batch), int64(shape.height), int64(shape.width), int64(shape.channels)
	s.staging.device = x.Device()
	s.pixels = x.Keep(x.Empty(cgotorch.Uint8, n, h, w, c))
	s.flips = x.Keep(x.Empty(cgotorch.Bool, n))
	s.labels = x.Keep(x.Empty(cgotorch.Int64, n))
	if o.mixes() {
		s.soft = x.Keep(x.Empty(cgotorch.Float32, n, int64(o.Classes)))
	}
	if o.Contiguous {
		s.images = x.Keep(x.Empty(o.DType, n, c, h, w))
	} else {
		s.images = x.Keep(x.Permute(x.Empty(o.DType, n, h, w, c), 0, 3, 1, 2))
	}
}

// The method `fill` enqueues, on x, the work that makes the slot's batch from the host batch and
// its parameters. x is an Exec of the copy stream. `fill` records c.began before the first read
// of the host memory, and c.copied after the last read.
func (s *slot) fill(x *cgotorch.Exec, c *transfer, r *recipe) {
	s.awaitUses(x)
	c.began = x.RecordTiming()
	drawn, n := c.drawn, c.host.N
	pixels, labels := first(x, s.pixels, n), first(x, s.labels, n)
	cgotorch.CopyFrom(x, pixels, c.from.images)
	cgotorch.CopyFrom(x, labels, c.from.labels)
	var flips *cgotorch.Tensor
	if c.from.flips != nil {
		flips = first(x, s.flips, n)
		cgotorch.CopyFrom(x, flips, c.from.flips)
	}
	if drawn != nil { //edge:copied-behind-drawn TestAugmentations_HaveNoRace checked
		r.send(x, drawn, n)
	}
	//edge:copied-behind-copies TestEpoch_HasNoRace checked
	//edge:copied-behind-drawn also
	c.copied = x.RecordTiming()
	//edge:ready-behind-normalise TestEpoch_HasNoRace checked
	r.images(x, pixels, flips, first(x, s.images, n), drawn, n)
	if s.soft != nil {
		images.MixLabels(x, labels, first(x, s.soft, n), drawn.mix.share)
	}
	s.ready = x.Record()
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

// The method `lend` notes that the loop body of b begins.
func (s *slot) lend(b *Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lentTo, s.uses = b, 0
	clear(s.streams)
}

// The method `use` makes x's stream wait for the copy, and records the end of the use when x's Do
// ends. x must be usable, because a panic of AtEnd would leave the slot in use for ever.
func (s *slot) use(x *cgotorch.Exec, b *Batch) error {
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
		if stream.InDo() {
			return stream
		}
	}
	return nil
}

// endBody records again on every stream that used the batch. A later Do of the body may have
// enqueued work that reads the batch without a Use. An example is the backward of a loss that an
// earlier Do kept. endBody leaves out a stream that runs a Do now. If that Do has used the batch,
// its end records an event.
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
	for _, t := range []*cgotorch.Tensor{s.pixels, s.flips, s.images, s.labels, s.soft} {
		t.Close() //edge:slot-memory-freed TestEpoch_HasNoRace
	}
	for _, e := range s.released { //edge:slot-uses-freed TestEpoch_HasNoRace
		e.Close()
	}
	s.staging.close(s.ready)
	if s.ready != nil {
		s.ready.Close() //edge:slot-ready-freed TestEpoch_HasNoRace
	}
	s.released, s.ready = nil, nil
}
