package prefetcher

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
)

// Source gives decoded batches in host memory. *[imageloader.Loader] is a Source.
type Source interface {
	// Epoch yields the batches of one epoch. The Prefetcher gives each batch back with its Release.
	// The sequence must end when ctx ends.
	Epoch(ctx context.Context) iter.Seq2[*imageloader.HostBatch, error]
	// Shape returns the shape of the largest batch: images, height, width, channels.
	Shape() (batch, height, width, channels int)
	// New calls Pin once, for the CPU as well as for a CUDA device. The source calls p.Pin for each
	// piece of memory of its batches, before its first Epoch. It calls p.HostWrites before it fills
	// that memory again, and p.Unpin before it frees the memory. A part of a batch may lie in memory
	// for which the source did not call p.Pin. The host then copies that part into page-locked memory
	// of the Prefetcher first. Stats.Staged counts these bytes.
	Pin(p imageloader.Pinner) error
}

// shape is the shape of the source's largest batch.
type shape struct{ batch, height, width, channels int }

// Prefetcher copies the batches of a [Source] to a device before their use. One goroutine at a
// time may use it. Stats and Close may be called from any goroutine.
type Prefetcher struct {
	source Source
	pinner *pinner
	device cgotorch.Device
	shape  shape
	copies *cgotorch.Stream
	recipe recipe
	slots  []*slot
	stall  stall

	freeSlots chan *slot // has room for every slot

	mu      sync.Mutex
	stats   Stats
	running context.CancelCauseFunc // ends the running epoch; nil while no epoch runs
	closed  bool
}

// Stats holds counts and times since the Prefetcher was made.
type Stats struct {
	Batches, Samples int
	Bytes            int64         // bytes copied to the device
	Staged           int64         // bytes that the host copied into page-locked memory first, rounded up: see Source.Pin
	Copy             time.Duration // time of the device for copying Bytes
	HostWait         time.Duration // time in which the consumer's goroutine waited until a copy was enqueued

	// Stall is the time in which the consumer's stream had no work between two batches of an epoch.
	// The host's wait for the first batch of each epoch counts too.
	Stall time.Duration
}

// New allocates Depth+1 slots on the device, and calls source.Pin. For a CUDA device the source's
// memory is then page-locked for as long as the source has it. On every device the stream checker
// then knows that memory. The source stays the caller's and must outlive the Prefetcher. The
// caller closes the Prefetcher.
//
// New fails with [ErrInvalidOptions] for options that are not valid, and with
// [cgotorch.ErrNoDevice] if the device is absent. It fails with [cgotorch.ErrOutOfMemory] if
// memory is short or cannot be page-locked. If the source's Pin fails, New returns its error.
func New(source Source, device cgotorch.Device, o Options) (*Prefetcher, error) {
	p := &Prefetcher{source: source, device: device, pinner: &pinner{device: device}}
	p.shape.batch, p.shape.height, p.shape.width, p.shape.channels = source.Shape()
	o, err := o.complete(p.shape.channels)
	if err != nil {
		return nil, err
	}
	if p.copies, err = cgotorch.NewStream(device, cgotorch.StreamOptions{Name: "prefetcher copies"}); err != nil {
		return nil, fmt.Errorf("prefetcher: %w", err)
	}
	if err = source.Pin(p.pinner); err == nil {
		err = p.copies.Do(func(x *cgotorch.Exec) error {
			p.recipe = recipe{o: o, shape: p.shape}
			if err := p.recipe.allocate(x, o.Depth+1); err != nil {
				return err
			}
			for range o.Depth + 1 {
				s := newSlot(p.takeBack)
				p.slots = append(p.slots, s)
				s.allocate(x, p.shape, o)
			}
			return nil
		})
	}
	if err != nil {
		p.free() //edge:failed-new-frees TestNew_NoMemory
		return nil, fmt.Errorf("prefetcher: %w", err)
	}
	p.freeSlots = make(chan *slot, len(p.slots))
	for _, s := range p.slots {
		p.freeSlots <- s
	}
	return p, nil
}

// Epoch yields the batches of the source's next epoch. Before each loop body, Epoch waits until
// the copy of a batch is enqueued. It does not wait for the device. When the loop ends, also by a
// break, Epoch waits for the copies that still run. It stops its goroutines and gives every host
// buffer back.
//
// The loop must not run inside a Do that uses the batches. A batch's memory comes back when the Do
// that used the batch ends. So Epoch fails with [cgotorch.ErrMisuse] when one Do around the loop
// holds Depth+1 batches: run one Do for each batch, inside the body.
//
// The sequence can be looped over once. A second loop gets [ErrBusy]. An error ends the loop. It
// is the source's error, or the cause of the end of ctx. It is [ErrClosed] after Close. It is
// [ErrBusy] while an earlier epoch of this Prefetcher runs.
func (p *Prefetcher) Epoch(ctx context.Context) iter.Seq2[*Batch, error] {
	var used atomic.Bool
	return func(yield func(*Batch, error) bool) {
		if used.Swap(true) {
			yield(nil, fmt.Errorf("prefetcher: %w: a sequence of batches is for one loop; call Epoch again", ErrBusy))
			return
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		if err := p.begin(cancel); err != nil {
			yield(nil, err)
			return
		}
		defer p.end()
		run := startRun(ctx, p)
		defer run.stop(cancel)
		for first := true; ; first = false {
			began := time.Now()
			item, ok := run.next()
			waited := time.Since(began)
			p.count(func(s *Stats) { s.HostWait += waited })
			if first {
				p.stall.startEpoch(waited)
			}
			if !ok {
				return
			}
			if item.err != nil {
				yield(nil, item.err)
				return
			}
			if !lend(item.batch, yield) {
				return
			}
		}
	}
}

func (p *Prefetcher) begin(cancel context.CancelCauseFunc) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return fmt.Errorf("prefetcher: Epoch: %w", ErrClosed)
	case p.running != nil:
		return fmt.Errorf("prefetcher: Epoch: %w: another epoch of this prefetcher is running; end its loop first", ErrBusy)
	}
	p.running = cancel
	return nil
}

func (p *Prefetcher) end() {
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
func (p *Prefetcher) takeBack(s *slot) {
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
func (p *Prefetcher) heldHere() *cgotorch.Stream {
	var held *cgotorch.Stream
	for _, s := range p.slots {
		if held = s.heldHere(); held == nil {
			return nil
		}
	}
	return held
}

func (p *Prefetcher) count(add func(*Stats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	add(&p.stats)
}

// Stats returns the counts so far. It does not wait. Stall counts the time between two batches
// only when the device has reached the second batch.
func (p *Prefetcher) Stats() Stats {
	p.stall.harvest()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	p.stall.mu.Lock()
	defer p.stall.mu.Unlock()
	s.Stall = p.stall.total
	return s
}

// Close frees the slots and the copy stream. A running epoch ends with [ErrClosed]. Close does
// not wait for the loop of that epoch, or for a Do that still uses a batch. When the loop and all
// these Dos have ended, the slots and the stream are freed. Close may be called from any
// goroutine, and twice.
func (p *Prefetcher) Close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	if p.running != nil {
		p.running(fmt.Errorf("prefetcher: %w", ErrClosed))
		return nil //edge:close-leaves-slots-to-loop TestClose_BeforeTheFirstBatch
	}
	if len(p.freeSlots) < len(p.slots) { //edge:close-leaves-slots-to-dos TestSlot_DoOutlivesBody_InOrder checked
		return nil // takeBack frees everything later
	}
	return p.free()
}

// The method `free` makes the copy stream wait for the end of every use of the slots. It then
// frees their memory, which goes back to the pool of that stream.
func (p *Prefetcher) free() error {
	for _, s := range p.slots {
		for _, e := range s.released {
			//edge:free-behind-uses TestEpoch_HasNoRace checked
			_ = p.copies.Wait(e) // Wait fails only on a lost device, whose memory is gone already
		}
		s.close() //edge:slots-freed TestEpoch_HasNoRace
	}
	p.recipe.close() //edge:recipe-freed TestEpoch_HasNoRace
	p.slots = nil
	p.stall.close()
	return p.copies.Close() //edge:copy-stream-closed TestEpoch_HasNoRace
}
