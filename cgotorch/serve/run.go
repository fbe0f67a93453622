package serve

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/panics"
)

// run is the dispatcher. It ends when the Batcher is closed and no request waits.
func (b *Batcher) run() {
	defer close(b.ended)
	defer b.alarm.Stop()
	defer func() { b.freed = b.release() }()
	for s := range b.free {
		batch, f := b.next()
		if batch == nil {
			b.answers.Wait()
			return
		}
		if update := batch[0].update; update != nil {
			err := b.do("Batcher.Update", update)
			b.note(err)
			b.answer(err, batch[0])
			b.free <- s
			continue
		}
		b.begin(s, batch, f)
	}
}

// do runs fn in a Do on a goroutine of its own, so that a panic of the program's function, or a
// runtime.Goexit, does not end the dispatcher.
func (b *Batcher) do(where string, fn func(x *cgotorch.Exec) error) error {
	return <-b.start(where, fn)
}

// start is do, but it does not wait for fn.
func (b *Batcher) start(where string, fn func(x *cgotorch.Exec) error) (ended <-chan error) {
	done := make(chan error, 1)
	go panics.Run(where, func() error { return b.compute.Do(fn) }, func(err error) { done <- err })
	return done
}

// next waits for the next batch, and takes it from the queue. It returns nil when the Batcher is
// closed and nothing waits.
func (b *Batcher) next() (batch []*request, f form) {
	for {
		b.mu.Lock()
		wait := time.Duration(-1)
		if len(b.queue) > 0 {
			if wait = b.wait(b.queue[0]); b.draining || b.queue[0].alone || b.updates > 0 {
				wait = 0
			}
		}
		if wait == 0 {
			batch, f = b.take()
		}
		ended := b.draining && len(b.queue) == 0 && len(batch) == 0
		b.mu.Unlock()
		if len(batch) > 0 || ended {
			return batch, f
		}
		if wait < 0 {
			<-b.changed
			continue
		}
		b.alarm.Await(wait, b.changed, nil)
	}
}

// wait returns how long the batch of the first request may wait for others. The caller holds b.mu.
func (b *Batcher) wait(first *request) time.Duration {
	if isUpdate(first) {
		return 0
	}
	entries, since := b.alike(first)
	return b.policy.wait(time.Now(), first.length, entries, since)
}

// alike returns how many entries wait that could be of the first request's batch, and since when
// the oldest of them does: one of lower priority can be older than the first. It counts no further
// than to the largest batch. The caller holds b.mu.
func (b *Batcher) alike(first *request) (entries int, since time.Time) {
	largest := b.policy.largest(first.length)
	since = first.since
	for _, r := range b.queue {
		if isUpdate(r) || entries >= largest {
			break
		}
		if r.length == first.length {
			entries += r.entries
			if r.since.Before(since) {
				since = r.since
			}
		}
	}
	return entries, since
}

// take takes a batch from the queue: its first request, and those of the same length behind it, up
// to an Update. The caller holds b.mu.
func (b *Batcher) take() (batch []*request, f form) {
	now := time.Now()
	b.policy.restore(now)
	entries, most := 0, 0
	full := false // what is behind stays in the queue
	kept := b.queue[:0]
	for _, r := range b.queue {
		first := len(batch) == 0
		switch {
		case full:
		case context.Cause(r.ctx) != nil:
			b.left(r)
			b.dropped(r)
			continue
		case isUpdate(r):
			full = true
			if first {
				b.left(r)
				batch = append(batch, r)
				continue
			}
		case r.entries > b.policy.largest(r.length):
			b.left(r)
			close(r.copied)
			go b.answer(b.tooLarge(r), r) // answer takes the mutex
			continue
		case first:
			f.length = r.length
			alike, _ := b.alike(r)
			most = max(b.policy.size(f.length, alike, b.computed), b.policy.padded(f.length, r.entries))
			fallthrough
		case r.length == f.length && !r.alone && entries+r.entries <= most:
			full = r.alone
			b.left(r)
			batch = append(batch, r)
			entries += r.entries
			r.taken = now
			continue
		case r.length == f.length:
			full = true
		}
		kept = append(kept, r)
	}
	clear(b.queue[len(kept):]) // the queue's memory must not keep the requests'
	b.queue = kept
	if entries > 0 {
		f.size = b.policy.padded(f.length, entries)
	}
	return batch, f
}

// begin computes a batch. It does not wait for the device.
func (b *Batcher) begin(s *slot, batch []*request, f form) {
	gathered := time.Now()
	reads, results, err := b.enqueueBatch(s, batch, f)
	enqueued := time.Now()
	if err != nil {
		b.failed(batch, f, err)
		b.free <- s
		return
	}
	b.mu.Lock()
	b.policy.Began(f, gathered, enqueued)
	entries := 0
	for _, r := range batch {
		entries += r.entries
	}
	b.computed += entries
	b.mu.Unlock()
	b.answers.Add(1)
	go func() {
		defer b.answers.Done()
		err := error(nil)
		for i, read := range reads {
			<-read.Done()
			var failed error
			if results[i].Data, failed = read.Bytes(); err == nil {
				err = failed
			}
		}
		b.mu.Lock()
		b.policy.Ended(f, enqueued, time.Now())
		b.computed -= entries
		b.stats.Batches[entries]++
		b.wake()
		b.mu.Unlock()
		b.free <- s
		b.note(err)
		b.deliver(batch, f.size, results, ofModel(err))
		runtime.Gosched() // the callers go on before this memory is given back
		for _, read := range reads {
			read.Close()
		}
	}()
}

// deliver gives each request its part of the results.
func (b *Batcher) deliver(batch []*request, size int, results []Array, err error) {
	first := 0
	for _, r := range batch {
		for _, all := range results {
			if err == nil {
				each := len(all.Data) / size
				shape := append([]int64{int64(r.entries)}, all.Shape[1:]...)
				out := Array{DType: all.DType, Shape: shape, Data: all.Data[first*each : (first+r.entries)*each : (first+r.entries)*each]}
				r.out = append(r.out, out.cut(b.follows[len(r.out)], r.own))
			}
		}
		first += r.entries
	}
	b.answer(err, batch...)
}

// answer ends requests, whose results are there if there is no error.
func (b *Batcher) answer(err error, requests ...*request) {
	now := time.Now()
	b.mu.Lock()
	for _, r := range requests {
		switch {
		case isUpdate(r):
		case err != nil:
			b.stats.Failed++
		default:
			b.stats.Requests++
			b.stats.Entries += int64(r.entries)
			b.stats.Took += now.Sub(r.since)
			b.stats.Queued += r.taken.Sub(r.since)
		}
	}
	b.mu.Unlock()
	for _, r := range requests {
		r.err = err
		close(r.done)
	}
}

// failed is called when a batch could not be enqueued. Its requests are tried again in smaller
// batches, or they fail.
func (b *Batcher) failed(batch []*request, f form, err error) {
	b.note(err)
	b.mu.Lock()
	smaller := errors.Is(err, cgotorch.ErrOutOfMemory) && b.policy.drop(f, time.Now())
	again := b.lost == nil && (smaller || len(batch) > 1)
	if again {
		for _, r := range batch {
			r.alone = r.alone || !smaller
			r.copied = make(chan struct{})
			b.waiting += r.entries
		}
		b.queue = append(batch, b.queue...)
		b.wake()
	}
	b.mu.Unlock()
	if smaller {
		b.log("batches of %d and more are given up for a time: %v", f.size, err)
	}
	if !again {
		b.answer(ofModel(err), batch...)
	}
}

func ofModel(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("serve: %w: %w", ErrModel, err)
}

// note remembers that the device is lost, and answers all requests that wait.
func (b *Batcher) note(err error) {
	if !errors.Is(err, cgotorch.ErrDeviceLost) {
		return
	}
	b.mu.Lock()
	if b.lost == nil {
		close(b.broken)
	}
	b.lost = err
	waiting := b.queue
	b.queue = nil
	for _, r := range waiting {
		b.left(r)
	}
	b.mu.Unlock()
	for _, r := range waiting {
		close(r.copied)
	}
	b.answer(err, waiting...)
}

func (b *Batcher) log(format string, args ...any) {
	if b.o.Log != nil {
		b.o.Log("serve: " + fmt.Sprintf(format, args...))
	}
}

// release frees everything. No batch is under way.
func (b *Batcher) release() error {
	var errs []error
	for _, s := range b.slots {
		errs = append(errs, s.close())
	}
	for _, d := range b.decoders {
		errs = append(errs, d.close())
	}
	return errors.Join(append(errs, b.captured.Close(), b.compute.Close(), b.copies.Close())...)
}
