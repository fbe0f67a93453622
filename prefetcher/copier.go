package prefetcher

import (
	"context"
	"fmt"
	"iter"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/panics"
)

// copier copies batches to a device before their use. B is the batch on the device: a [*Batch] or a
// [*TensorBatch]. The copier has the slots, the copy stream, the goroutines and the counts.
type copier[B placed] struct {
	device cgotorch.Device
	pinner *pinner
	copies *cgotorch.Stream
	slots  []*slot
	stall  stall
	// loads yields the source's batches of one epoch.
	loads func(ctx context.Context) iter.Seq2[load[B], error]
	// freeMemory frees the device memory of the slots, and what else the source's kind has.
	freeMemory func()

	freeSlots chan *slot // has room for every slot

	mu      sync.Mutex
	stats   Stats
	place   place                   // of the loop in the source's data
	running context.CancelCauseFunc // ends the running epoch; nil while no epoch runs
	closed  bool
}

// load is a host batch on its way to the device, where it becomes a batch B.
type load[B placed] interface {
	fmt.Stringer
	// check fails if the batch does not fit the slots.
	check() error
	// draw waits for memory that the copy needs besides a slot, and fills it.
	draw(ctx context.Context) error
	// stage copies the parts that are not page-locked into the slot's staging.
	stage(s *slot) error
	// copy enqueues the copies from host memory into the memory of the slot.
	copy(x *cgotorch.Exec, s *slot)
	// finish enqueues the work after the copies, and returns the batch in the slot.
	finish(x *cgotorch.Exec, s *slot) B
	// counts returns the samples and bytes of the batch.
	counts() Stats
	// await waits until `copied` is done.
	await(copied *cgotorch.Event)
	// release gives the host memory back.
	release()
}

// open makes the copy stream, pins the source's memory, and makes `slots` slots. `allocate` makes
// what all slots share, and `memory` the memory of the next slot. If open fails, it frees what it
// has made.
func (p *copier[B]) open(slots int, pin func() error, allocate func(x *cgotorch.Exec) error, memory func(x *cgotorch.Exec)) (err error) {
	if p.copies, err = cgotorch.NewStream(p.device, cgotorch.StreamOptions{Name: "prefetcher copies"}); err != nil {
		return fmt.Errorf("prefetcher: %w", err)
	}
	if err = pin(); err == nil {
		err = p.copies.Do(func(x *cgotorch.Exec) error {
			if err := allocate(x); err != nil {
				return err
			}
			for i := range slots {
				s := newSlot(i, p.takeBack)
				s.staging.device = x.Device()
				p.slots = append(p.slots, s)
				memory(x)
			}
			return nil
		})
	}
	if err != nil {
		p.free() //edge:failed-new-frees TestNew_NoMemory
		return fmt.Errorf("prefetcher: %w", err)
	}
	p.freeSlots = make(chan *slot, len(p.slots))
	for _, s := range p.slots {
		p.freeSlots <- s
	}
	return nil
}

// mostAhead bounds Options.Depth: each batch ahead takes memory on the device.
const mostAhead = 1024

// checkDepth returns the number of batches ahead for an option, of which 0 means 2.
func checkDepth(option string, depth int) (int, error) {
	if depth < 0 || depth > mostAhead {
		return 0, fmt.Errorf("prefetcher: %s is %d; it must be 0 to %d (0 means 2), because each batch ahead takes memory on the device: %w", option, depth, mostAhead, ErrInvalidOptions)
	}
	if depth == 0 {
		depth = 2
	}
	return depth, nil
}

// isNil reports whether a source is nil, or a nil pointer, such as the result of a failed Open.
func isNil(source any) bool {
	v := reflect.ValueOf(source)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// errNilBatch is the error of a source that yields neither a batch nor an error.
func errNilBatch(source any) error {
	return fmt.Errorf("prefetcher: the source, a %T, yields a nil batch without an error; yield an error, or end the sequence", source)
}

// epoch yields the batches of the source's next epoch. See [Prefetcher.Epoch].
func (p *copier[B]) epoch(ctx context.Context) iter.Seq2[B, error] {
	var used atomic.Bool
	return func(yield func(B, error) bool) {
		var none B
		if used.Swap(true) {
			yield(none, fmt.Errorf("prefetcher: %w: a sequence of batches is for one loop; call Epoch again", ErrBusy))
			return
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		if err := p.begin(cancel); err != nil {
			yield(none, err)
			return
		}
		defer p.end()
		run := startRun(ctx, cancel, p)
		defer run.stop()
		for first := true; ; first = false {
			began := time.Now()
			item, ok := run.next()
			waited := time.Since(began)
			p.count(func(s *Stats) { s.HostWait += waited })
			if first {
				p.stall.startEpoch(waited)
			}
			if !ok {
				p.ended(first)
				return
			}
			if item.err != nil {
				panics.Raise(item.err)
				yield(none, item.err)
				return
			}
			p.reach(item.batch)
			if !item.lend(yield) {
				return
			}
		}
	}
}

func (p *copier[B]) begin(cancel context.CancelCauseFunc) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return fmt.Errorf("prefetcher: Epoch: %w; close the prefetcher after its last epoch", cgotorch.ErrClosed)
	case p.running != nil:
		return fmt.Errorf("prefetcher: Epoch: %w: another epoch of this prefetcher is running; end its loop first", ErrBusy)
	}
	p.running = cancel
	p.place.start()
	return nil
}

func (p *copier[B]) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = nil
	if len(p.freeSlots) < len(p.slots) { //edge:loop-leaves-slots-to-dos TestSlot_DoOutlivesBody_InOrder checked
		return // a Do still uses a slot: after Close, the takeBack of the last slot frees everything
	}
	if p.closed {
		p.free() //edge:loop-frees TestClose_InLoop
	}
}

// takeBack makes a slot free. A Do in another goroutine may still use a slot after the loop and
// after Close. The takeBack of the last slot then frees the Prefetcher.
func (p *copier[B]) takeBack(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freeSlots <- s //edge:slot-goes-back TestSlot_EndOfBodyIsRecorded
	if p.closed && p.running == nil && len(p.freeSlots) == len(p.slots) {
		//edge:last-use-frees TestSlot_DoOutlivesBody
		go p.free() // on a goroutine of its own, because takeBack may run at the end of a Do
	}
}

// heldHere returns the stream whose Do runs on the calling goroutine, if that Do holds all slots.
// Otherwise it returns nil.
func (p *copier[B]) heldHere() *cgotorch.Stream {
	var held *cgotorch.Stream
	for _, s := range p.slots {
		if held = s.heldHere(); held == nil {
			return nil
		}
	}
	return held
}

func (p *copier[B]) count(add func(*Stats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	add(&p.stats)
}

// statistics returns the counts so far.
func (p *copier[B]) statistics() Stats {
	p.stall.harvest()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	p.stall.mu.Lock()
	defer p.stall.mu.Unlock()
	s.Stall = p.stall.total
	return s
}

// close is [Prefetcher.Close].
func (p *copier[B]) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	if p.running != nil {
		p.running(fmt.Errorf("prefetcher: %w", cgotorch.ErrClosed))
		return nil //edge:close-leaves-slots-to-loop TestClose_BeforeTheFirstBatch
	}
	if len(p.freeSlots) < len(p.slots) { //edge:close-leaves-slots-to-dos TestSlot_DoOutlivesBody_InOrder checked
		return nil // takeBack frees everything later
	}
	return p.free()
}

// free makes the copy stream wait for the end of every use of the slots. It then frees their
// memory, which goes back to the pool of that stream.
func (p *copier[B]) free() error {
	for _, s := range p.slots {
		for _, e := range s.released {
			//edge:free-behind-uses TestEpoch_HasNoRace checked
			_ = p.copies.Wait(e) // Wait fails only on a lost device, whose memory is gone already
		}
		s.close() //edge:slots-freed TestEpoch_HasNoRace
	}
	p.freeMemory() //edge:recipe-freed TestEpoch_HasNoRace
	p.slots = nil
	p.stall.close()
	return p.copies.Close() //edge:copy-stream-closed TestEpoch_HasNoRace
}

// closeAll frees the memory of the slots.
func closeAll[M interface{ close() }](memory []M) {
	for _, m := range memory {
		m.close() //edge:slot-memory-freed TestEpoch_HasNoRace
	}
}
