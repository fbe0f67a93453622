package prefetcher

import (
	"context"
	"fmt"
	"iter"
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
	copier[*Batch]
	source Source
	memory []*imageMemory // of each slot, by its number
	shape  shape
	recipe recipe
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
	if isNil(source) {
		return nil, fmt.Errorf("prefetcher: New: the source is nil; look at the error of the function that opened it: %w", ErrInvalidOptions)
	}
	p := &Prefetcher{source: source, copier: copier[*Batch]{device: device, place: placeIn[imageloader.State](source), pinner: &pinner{device: device}}}
	p.shape.batch, p.shape.height, p.shape.width, p.shape.channels = source.Shape()
	o, err := o.complete(p.shape)
	if err != nil {
		return nil, err
	}
	p.loads = p.imageLoads
	p.freeMemory = func() { closeAll(p.memory); p.recipe.close() }
	err = p.open(o.Depth+1, func() error { return source.Pin(p.pinner) }, func(x *cgotorch.Exec) error {
		p.recipe = recipe{o: o, shape: o.padded(p.shape)}
		return p.recipe.allocate(x, o.Depth+1)
	}, func(x *cgotorch.Exec) {
		m := &imageMemory{}
		p.memory = append(p.memory, m)
		m.allocate(x, p.shape, o)
	})
	if err != nil {
		return nil, err
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
// The sequence can be looped over once. A second loop gets [ErrBusy]. An error ends the loop. It is
// the source's error, or the cause of the end of ctx. It is [cgotorch.ErrClosed] after Close. It is
// [ErrBusy] while an earlier epoch of this Prefetcher runs. If the source panics, the loop raises
// the panic again, with the stack of the first panic in its text.
func (p *Prefetcher) Epoch(ctx context.Context) iter.Seq2[*Batch, error] {
	return p.epoch(ctx)
}

// Stats returns the counts so far. It does not wait. Stall counts the time between two batches
// only when the device has reached the second batch.
func (p *Prefetcher) Stats() Stats { return p.statistics() }

// Close frees the slots and the copy stream. A running epoch ends with [cgotorch.ErrClosed]. Close
// does not wait for the loop of that epoch, or for a Do that still uses a batch. When the loop and
// all these Dos have ended, the slots and the stream are freed. Close may be called from any
// goroutine, and twice.
func (p *Prefetcher) Close() error {
	if p == nil {
		return nil
	}
	return p.close()
}
