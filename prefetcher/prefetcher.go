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

// Source gives decoded batches in host memory; *[imageloader.Loader] is one.
type Source interface {
	// Epoch yields the batches of one epoch, each to be given back with its Release. It must end when
	// ctx does.
	Epoch(ctx context.Context) iter.Seq2[*imageloader.HostBatch, error]
	// Shape is that of the largest batch: images, height, width, channels.
	Shape() (batch, height, width, channels int)
	// Pin is called once, by [New], on every device. The source calls p.Pin for each piece of
	// memory of its batches, before its first Epoch. It calls p.HostWrites when it fills that
	// memory again, and p.Unpin before it frees the memory. The host first copies parts of batches
	// that lie in other memory, into page-locked memory of the Prefetcher's. Stats.Staged counts
	// them.
	Pin(p imageloader.Pinner) error
}

// shape is that of the source's largest batch.
type shape struct{ batch, height, width, channels int }

// Prefetcher copies the batches of a [Source] to a device, ahead of their use. It is used by one
// goroutine at a time, but for Stats and Close.
type Prefetcher struct {
	source Source
	pinner *pinner
	device cgotorch.Device
	shape  shape
	copies *cgotorch.Stream
	recipe recipe
	slots  []*slot
	stall  stall

	freeSlots chan *slot // has room for all

	mu      sync.Mutex
	stats   Stats
	running context.CancelCauseFunc // ends the epoch that is running, or nil
	closed  bool
}

// Stats counts since the Prefetcher was made.
type Stats struct {
	Batches, Samples int
	Bytes            int64         // copied to the device
	Staged           int64         // of Bytes, copied by the host into page-locked memory first: the source has them in other memory
	Copy             time.Duration // of the device's time, for copying Bytes
	HostWait         time.Duration // of the consumer's goroutine, until a batch was on its way

	// Stall is the time in which the consumer's stream had no work between two batches of an epoch. It
	// includes the host's wait for the first batch of each epoch.
	Stall time.Duration
}

// New allocates Depth+1 slots on the device and hands it the source's memory. For a CUDA device it
// page-locks that memory, which stays so for as long as the source has it. On every device the
// stream checker then knows the memory. The source stays the caller's and must outlive the
// Prefetcher. The caller must Close the Prefetcher. New fails with [cgotorch.ErrNoDevice], with
// [cgotorch.ErrOutOfMemory], also where the memory cannot be page-locked, with
// [ErrInvalidOptions], or as the source's Pin does.
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

// Epoch yields the batches of the source's next epoch. The host waits until a batch is on its
// way, and not for the device. Leaving the loop waits for the copies that are under way, stops
// every goroutine and gives every buffer back.
//
// The sequence is for one use, and ends with its first error. Errors are the source's, the
// cause of ctx's end, [ErrClosed], and [ErrBusy] while another epoch runs.
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
			item, ok := <-run.full
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
		return // after Close, takeBack frees everything
	}
	if p.closed {
		p.free() //edge:loop-frees TestClose_InLoop
	}
}

// takeBack makes a slot free. After Close the last slot ends the Prefetcher: a Do in another
// goroutine may outlive the loop.
func (p *Prefetcher) takeBack(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freeSlots <- s //edge:slot-goes-back TestSlot_EndOfBodyIsRecorded
	if p.closed && p.running == nil && len(p.freeSlots) == len(p.slots) {
		//edge:last-use-frees TestSlot_DoOutlivesBody
		go p.free() // not here: this may be the end of a Do
	}
}

func (p *Prefetcher) count(add func(*Stats)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	add(&p.stats)
}

// Stats returns the counts so far. It does not wait. Stall leaves out work that the device has not
// finished.
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

// Close frees the slots and the stream. An epoch that is running ends with [ErrClosed]. They are
// then freed when its loop has been left and every Do that used its batches has ended. Close may be
// called from any goroutine, and again.
func (p *Prefetcher) Close() error {
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
		return nil // takeBack ends it
	}
	return p.free()
}

// free orders the end of every use before the memory goes back to the copy stream's pool, and frees
// it.
func (p *Prefetcher) free() error {
	for _, s := range p.slots {
		for _, e := range s.released {
			//edge:free-behind-uses TestEpoch_HasNoRace checked
			_ = p.copies.Wait(e) // it fails on a lost device, whose memory is gone already
		}
		s.close() //edge:slots-freed TestEpoch_HasNoRace
	}
	p.recipe.close() //edge:recipe-freed TestEpoch_HasNoRace
	p.slots = nil
	p.stall.close()
	return p.copies.Close() //edge:copy-stream-closed TestEpoch_HasNoRace
}
