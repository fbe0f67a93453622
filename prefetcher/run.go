package prefetcher

import (
	"context"
	"fmt"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/prefetcher/internal/timing"
)

// run is one epoch. One goroutine copies the batches to the device. A second goroutine gives the
// host buffers back. The copying goroutine sends to two channels: `full` leads to the consumer,
// and `copied` leads to the second goroutine.
type run struct {
	p      *Prefetcher
	full   chan item
	copied chan transfer
	// The copying goroutine sends to `lacking` while it waits for a free slot. The consumer receives
	// once in each wait for a batch.
	lacking chan struct{}
	done    sync.WaitGroup
}

type item struct {
	batch *Batch
	err   error
}

// transfer is a host batch on its way to the device, with its parameters: the random choices for
// the batch. When the event `copied` is done, the host batch and the parameters may be given
// back.
type transfer struct {
	host          *imageloader.HostBatch
	from          origin
	drawn         *parameters // nil if nothing is drawn
	began, copied *cgotorch.Event
}

func (c transfer) close() {
	c.began.Close()
	c.copied.Close() //edge:copied-event-freed TestEpoch_HasNoRace
}

func startRun(ctx context.Context, p *Prefetcher) *run {
	r := &run{
		p:      p,
		full:   make(chan item, len(p.slots)+1), // room for every batch and one error
		copied: make(chan transfer, len(p.slots)),

		lacking: make(chan struct{}),
	}
	r.done.Add(2)
	go r.copyAll(ctx)
	go r.release()
	return r
}

// The method `stop` ends the epoch's goroutines and waits for them.
func (r *run) stop(cancel context.CancelCauseFunc) {
	cancel(context.Canceled) //edge:loop-ends-copying TestEpoch_ReleasesEachBatch
	r.done.Wait()            //edge:loop-waits-for-copies TestEpoch_ReleasesEachBatch
	for item := range r.full {
		if item.batch != nil {
			r.p.takeBack(item.batch.slot) //edge:unseen-batch-frees-slot TestEpoch_ReleasesEachBatch
		}
	}
}

func (r *run) copyAll(ctx context.Context) {
	defer r.done.Done()
	defer close(r.full)
	defer close(r.copied)
	for host, err := range r.p.source.Epoch(ctx) {
		if err == nil {
			err = r.copy(ctx, host)
		}
		if err != nil {
			r.full <- item{err: err}
			return
		}
	}
	if ctx.Err() != nil { // a source may end without an error
		r.full <- item{err: context.Cause(ctx)}
	}
}

// The method `copy` takes a free slot and enqueues the copy of the batch `host` into it. It sends
// the Batch to the consumer. It sends the transfer to the goroutine that runs the method
// `release`.
func (r *run) copy(ctx context.Context, host *imageloader.HostBatch) error {
	if err := r.p.fits(host); err != nil {
		host.Release() //edge:misfit-goes-back TestEpoch_ReleasesEachBatch
		return err
	}
	recipe := &r.p.recipe
	var drawn *parameters
	if recipe.o.draws() {
		select {
		case drawn = <-recipe.free:
		case <-ctx.Done():
			host.Release()
			return context.Cause(ctx)
		}
		recipe.draw(drawn, host)
	}
	s := r.freeSlot(ctx)
	if s == nil {
		host.Release()         //edge:cancelled-goes-back TestEpoch_CancelledWithoutASlot
		recipe.takeBack(drawn) //edge:cancelled-drawn-goes-back TestAugmentations_MemoryComesBack
		return context.Cause(ctx)
	}
	c := transfer{host: host, drawn: drawn}
	var err error
	if c.from, err = s.staging.stage(host, r.p.pinner, s.ready); err == nil {
		err = r.p.copies.Do(func(x *cgotorch.Exec) error {
			s.fill(x, &c, recipe)
			return nil
		})
	}
	if err != nil {
		// Work enqueued before the failure may still read the buffers.
		_ = r.p.copies.Synchronize() //edge:failed-copy-is-over TestEpoch_ReleasesEachBatch checked
		c.close()
		host.Release()         //edge:failed-copy-goes-back TestEpoch_ReleasesEachBatch
		recipe.takeBack(drawn) //edge:failed-drawn-goes-back TestAugmentations_MemoryComesBack
		r.p.takeBack(s)        //edge:failed-copy-frees-slot TestEpoch_ReleasesEachBatch
		return fmt.Errorf("prefetcher: copying batch %d of epoch %d: %w", host.Index, host.Epoch, err)
	}
	b := &Batch{N: host.N, Epoch: host.Epoch, Index: host.Index, Names: host.Names, State: host.State, slot: s, ahead: r.p}
	bytes := int64(len(host.Images)+8*len(host.Labels)+len(host.Flip)) + recipe.bytes(host.N)
	r.p.count(func(st *Stats) { st.Batches++; st.Samples += b.N; st.Bytes += bytes; st.Staged += c.from.staged })
	r.copied <- c
	r.full <- item{batch: b}
	return nil
}

// freeSlot waits for a free slot. It returns nil if ctx ends first.
func (r *run) freeSlot(ctx context.Context) *slot {
	select {
	case s := <-r.p.freeSlots:
		return s
	default:
	}
	for {
		select {
		case s := <-r.p.freeSlots:
			return s
		case r.lacking <- struct{}{}: // the consumer decides
		case <-ctx.Done():
			return nil
		}
	}
}

// The method `next` waits for the next batch. It returns false at the end of the epoch. It fails if
// the batch would never come, because the loop runs inside the Do that holds all slots.
func (r *run) next() (item, bool) {
	select {
	case item, ok := <-r.full:
		return item, ok
	case <-r.lacking:
		if held := r.p.heldHere(); held != nil {
			return item{err: fmt.Errorf("prefetcher: the next batch would never come: this loop runs inside a Do of %v, which holds the last %d batches until it ends; put the Do into the body of the loop, one Do for each batch: %w", held, len(r.p.slots), cgotorch.ErrMisuse)}, true
		}
	}
	next, ok := <-r.full
	return next, ok
}

func (p *Prefetcher) fits(host *imageloader.HostBatch) error {
	s := p.shape
	if host.N < 1 || host.N > s.batch || host.Height != s.height || host.Width != s.width || host.Channels != s.channels {
		return fmt.Errorf("prefetcher: batch %d of epoch %d has shape [%d %d %d %d]; the source said at most [%d %d %d %d]",
			host.Index, host.Epoch, host.N, host.Height, host.Width, host.Channels, s.batch, s.height, s.width, s.channels)
	}
	return p.recipe.fits(host)
}

// The method `release` waits for each copy, in the order of the copies. It then gives the host
// buffer back to the loader, and the parameters back to the recipe.
func (r *run) release() {
	defer r.done.Done()
	for c := range r.copied {
		// Await fails only on a lost device, where no copy runs any more.
		_ = c.from.slab.Await(c.copied) //edge:buffer-behind-copy TestEpoch_HasNoRace checked
		if c.drawn != nil {
			if c.drawn.slab != nil {
				_ = c.drawn.slab.Await(c.copied) //edge:drawn-behind-copy TestAugmentations_HaveNoRace checked
			}
			r.p.recipe.takeBack(c.drawn) //edge:drawn-goes-back TestAugmentations_MemoryComesBack
		}
		if took, done := timing.Between(c.began, c.copied); done {
			r.p.count(func(s *Stats) { s.Copy += took })
		}
		c.close()
		c.host.Release() //edge:buffer-goes-back TestEpoch_ReleasesEachBatch
	}
}

// The function `lend` runs the consumer's loop body for b.
func lend(b *Batch, yield func(*Batch, error) bool) bool {
	b.slot.lend(b)
	defer b.slot.endBody()
	return yield(b, nil)
}
