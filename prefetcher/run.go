package prefetcher

import (
	"context"
	"fmt"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/panics"
	"github.com/streamtorch/streamtorch/prefetcher/internal/timing"
)

// run is one epoch. One goroutine copies the batches to the device. A second goroutine gives the
// host buffers back. The copying goroutine sends to two channels: `full` leads to the consumer,
// and `copied` leads to the second goroutine.
type run[B placed] struct {
	p      *copier[B]
	full   chan item[B]
	copied chan transfer[B]
	// The copying goroutine sends to `lacking` while it waits for a free slot. The consumer receives
	// once in each wait for a batch.
	lacking chan struct{}
	done    sync.WaitGroup
	cancel  context.CancelCauseFunc // ends the copying
	failed  error                   // why a Release of the program has failed. Read it only after `done`
}

// item is a batch in its slot, or an error.
type item[B placed] struct {
	batch B
	slot  *slot
	err   error
}

// transfer is a copy to the device. When the event `copied` is done, the host memory of the load
// may be given back.
type transfer[B placed] struct {
	load          load[B]
	began, copied *cgotorch.Event
}

func (c transfer[B]) close() {
	c.began.Close()
	c.copied.Close() //edge:copied-event-freed TestEpoch_HasNoRace
}

func startRun[B placed](ctx context.Context, cancel context.CancelCauseFunc, p *copier[B]) *run[B] {
	r := &run[B]{
		p:      p,
		cancel: cancel,
		full:   make(chan item[B], len(p.slots)+1), // room for every batch and one error
		copied: make(chan transfer[B], len(p.slots)),

		lacking: make(chan struct{}),
	}
	r.done.Add(2)
	go r.copyAll(ctx)
	go r.release()
	return r
}

// stop ends the epoch's goroutines and waits for them. It raises a panic of a Release.
func (r *run[B]) stop() {
	r.cancel(context.Canceled) //edge:loop-ends-copying TestEpoch_ReleasesEachBatch
	r.done.Wait()              //edge:loop-waits-for-copies TestEpoch_ReleasesEachBatch
	for item := range r.full {
		if item.slot != nil {
			r.p.takeBack(item.slot) //edge:unseen-batch-frees-slot TestEpoch_ReleasesEachBatch
		}
	}
	panics.Raise(r.failed)
}

func (r *run[B]) copyAll(ctx context.Context) {
	defer r.done.Done()
	defer close(r.full)
	defer close(r.copied)
	panics.Run("the source of a prefetcher", func() error {
		for load, err := range r.p.loads(ctx) {
			if err == nil {
				err = r.copy(ctx, load)
			}
			if err != nil {
				return err
			}
		}
		if ctx.Err() != nil { // a source may end without an error
			return context.Cause(ctx)
		}
		return nil
	}, func(err error) {
		if err != nil {
			r.full <- item[B]{err: err}
		}
	})
}

// copy takes a free slot and enqueues the copy of the load l into it. It sends the batch to the
// consumer. It sends the transfer to the goroutine that runs the method `release`.
func (r *run[B]) copy(ctx context.Context, l load[B]) error {
	if err := l.check(); err != nil {
		l.release() //edge:misfit-goes-back TestEpoch_ReleasesEachBatch
		return err
	}
	if err := l.draw(ctx); err != nil {
		l.release()
		return err
	}
	s := r.freeSlot(ctx)
	if s == nil {
		l.release() //edge:cancelled-goes-back TestEpoch_CancelledWithoutASlot
		return context.Cause(ctx)
	}
	c := transfer[B]{load: l}
	var b B
	err := l.stage(s)
	if err == nil {
		err = r.p.copies.Do(func(x *cgotorch.Exec) error {
			s.awaitUses(x)
			c.began = x.RecordTiming()
			l.copy(x, s)
			c.copied = x.RecordTiming() //edge:copied-behind-copies TestEpoch_HasNoRace checked
			b = l.finish(x, s)
			s.ready = x.Record()
			return nil
		})
	}
	if err != nil {
		// Work enqueued before the failure may still read the buffers.
		_ = r.p.copies.Synchronize() //edge:failed-copy-is-over TestEpoch_ReleasesEachBatch checked
		c.close()
		r.p.takeBack(s) //edge:failed-copy-frees-slot TestEpoch_ReleasesEachBatch
		l.release()     //edge:failed-copy-goes-back TestEpoch_ReleasesEachBatch
		return fmt.Errorf("prefetcher: copying %s: %w", l, err)
	}
	added := l.counts()
	r.p.count(func(st *Stats) {
		st.Batches++
		st.Samples += added.Samples
		st.Bytes += added.Bytes
		st.Staged += added.Staged
	})
	r.copied <- c
	r.full <- item[B]{batch: b, slot: s}
	return nil
}

// freeSlot waits for a free slot. It returns nil if ctx ends first.
func (r *run[B]) freeSlot(ctx context.Context) *slot {
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

// next waits for the next batch. It returns false at the end of the epoch. It fails if the batch
// would never come, because the loop runs inside the Do that holds all slots.
func (r *run[B]) next() (item[B], bool) {
	select {
	case item, ok := <-r.full:
		return item, ok
	case <-r.lacking:
		if held := r.p.heldHere(); held != nil {
			return item[B]{err: fmt.Errorf("prefetcher: the next batch would never come: this loop runs inside a Do of %v, which holds the last %d batches until it ends; put the Do into the body of the loop, one Do for each batch: %w", held, len(r.p.slots), cgotorch.ErrMisuse)}, true
		}
	}
	next, ok := <-r.full
	return next, ok
}

// release waits for each copy, in the order of the copies. It then gives the host memory back.
func (r *run[B]) release() {
	over := false
	defer func() {
		if !over { // a Release of the program has ended this goroutine
			go r.release()
			return
		}
		r.done.Done()
	}()
	for c := range r.copied {
		c.load.await(c.copied)
		if took, done := timing.Between(c.began, c.copied); done {
			r.p.count(func(s *Stats) { s.Copy += took })
		}
		c.close()
		panics.Run("the Release of a batch of a prefetcher's source", func() error {
			c.load.release()
			return nil
		}, func(err error) {
			if err != nil && r.failed == nil {
				r.failed = err
				r.cancel(err)
			}
		})
	}
	over = true
}

// lend runs the consumer's loop body for a batch.
func (i item[B]) lend(yield func(B, error) bool) bool {
	i.slot.lend(i.batch)
	defer i.slot.endBody()
	return yield(i.batch, nil)
}
