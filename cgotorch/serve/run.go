package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/panics"
)

// open makes the streams and slots, captures the function for each size, and measures the sizes.
func (b *Batcher) open() (err error) {
	if b.compute, err = cgotorch.NewStream(b.device, cgotorch.StreamOptions{Name: "serve"}); err != nil {
		return err
	}
	if b.copies, err = cgotorch.NewStream(b.device, cgotorch.StreamOptions{Name: "serve copies"}); err != nil {
		return err
	}
	if err := b.openSlots(); err != nil {
		return err
	}
	if err := b.compute.Synchronize(); err != nil { // the copies' stream writes what this stream has made
		return err
	}
	b.policy = newPolicy(b.o.BatchSizes, b.o.Lengths, !b.device.IsCUDA() && !b.o.Pad, b.o.MaxDelay)
	for _, length := range b.o.Lengths {
		for _, size := range b.o.BatchSizes {
			f := form{size, length}
			err := b.measure(f)
			if errors.Is(err, cgotorch.ErrOutOfMemory) && b.policy.drop(f, time.Now()) {
				b.log("batches of %d and more do not fit: %v", size, err)
				break
			}
			if err != nil {
				return err
			}
		}
	}
	for _, s := range b.slots {
		b.free <- s
	}
	return nil
}

// openSlots makes the slots, for the largest batches that have room.
func (b *Batcher) openSlots() error {
	for {
		var err error
		for range slotCount {
			if err = b.newSlot(); err != nil {
				break
			}
		}
		last := len(b.o.BatchSizes) - 1
		if !errors.Is(err, cgotorch.ErrOutOfMemory) || last == 0 {
			return err
		}
		b.log("two batches of %d do not fit: %v", b.o.BatchSizes[last], err)
		for _, s := range b.slots {
			s.close()
		}
		b.slots, b.o.BatchSizes = nil, b.o.BatchSizes[:last]
	}
}

// measure captures the function for a form, with each slot, and measures how long a batch takes.
func (b *Batcher) measure(f form) error {
	const warm, measured = 3, 3 // warm-up, capture and first launch
	least := time.Duration(1<<63 - 1)
	for _, s := range b.slots {
		rounds := warm + measured
		if !b.device.IsCUDA() {
			rounds = 1
		}
		for i := range rounds {
			began := time.Now()
			err := b.compute.Do(func(x *cgotorch.Exec) error {
				results, err := b.results(x, s, f)
				if err == nil {
					b.describe(results, f)
				}
				return err
			})
			if err == nil {
				err = b.compute.Synchronize()
			}
			if err != nil {
				return err
			}
			if took := time.Since(began); i >= rounds-measured {
				least = min(least, took)
			}
		}
	}
	b.policy.takes[f] = least
	return nil
}

// describe notes the results as the outputs. A size that is not the same for each length becomes
// -1.
func (b *Batcher) describe(results []*cgotorch.Tensor, f form) {
	for k, out := range results {
		shape := out.Shape()[1:]
		if k == len(b.outputs) {
			s := Spec{Name: fmt.Sprint("output", k), DType: out.DType(), Shape: shape}
			if k < len(b.o.Outputs) {
				s.Name = b.o.Outputs[k]
			}
			b.outputs = append(b.outputs, s)
		}
		for i, d := range b.outputs[k].Shape {
			if i < len(shape) && shape[i] != d {
				b.outputs[k].Shape[i] = -1
			}
		}
	}
}

// results enqueues the function on the slot's first entries, and checks the results.
func (b *Batcher) results(x *cgotorch.Exec, s *slot, f form) ([]*cgotorch.Tensor, error) {
	results := b.captured.Run(x, b.view(x, s, f)...)
	if len(results) == 0 {
		return nil, fmt.Errorf("serve: the function has no result: %w", cgotorch.ErrInvalidArgument)
	}
	for k, out := range results {
		if shape := out.Shape(); len(shape) == 0 || shape[0] != int64(f.size) {
			return nil, fmt.Errorf("serve: result %d of the function is %v for %d entries; its first dimension must be that of the inputs: %w", k, out, f.size, cgotorch.ErrInvalidArgument)
		}
	}
	return results, nil
}

// run is the dispatcher. It ends when the Batcher is closed and no request waits.
func (b *Batcher) run() {
	defer close(b.ended)
	defer b.release()
	for s := range b.free {
		batch, f := b.next()
		if batch == nil {
			b.answers.Wait()
			return
		}
		if update := batch[0].update; update != nil {
			err := b.do("Batcher.Update", update)
			close(batch[0].copied)
			b.note(err)
			b.answer(batch[0], nil, err)
			b.free <- s
			continue
		}
		b.begin(s, batch, f)
	}
}

// do runs fn in a Do on a goroutine of its own, so that a panic of the program's function, or a
// runtime.Goexit, does not end the dispatcher.
func (b *Batcher) do(where string, fn func(x *cgotorch.Exec) error) error {
	done := make(chan error, 1)
	go panics.Run(where, func() error { return b.compute.Do(fn) }, func(err error) { done <- err })
	return <-done
}

// next waits for the next batch, and takes it from the queue. It returns nil when the Batcher is
// closed and nothing waits.
func (b *Batcher) next() (batch []*request, f form) {
	for {
		b.mu.Lock()
		wait := time.Duration(-1)
		if len(b.queue) > 0 {
			if wait = b.wait(b.queue[0]); b.draining || b.queue[0].alone || slices.ContainsFunc(b.queue, isUpdate) {
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
		timer := time.NewTimer(wait)
		select {
		case <-b.changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// wait returns how long the batch of the first request may wait for others. The caller holds b.mu.
func (b *Batcher) wait(first *request) time.Duration {
	if isUpdate(first) {
		return 0
	}
	return b.policy.wait(time.Now(), first.length, b.alike(first), first.since)
}

// alike returns how many entries wait that could be of the first request's batch. The caller holds
// b.mu.
func (b *Batcher) alike(first *request) (entries int) {
	for _, r := range b.queue {
		if isUpdate(r) {
			break
		}
		if r.length == first.length {
			entries += r.entries
		}
	}
	return entries
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
			b.dropped(r)
			close(r.copied)
			b.waiting -= r.entries
			continue
		case isUpdate(r):
			full = true
			if first {
				batch = append(batch, r)
				continue
			}
		case r.entries > b.policy.largest(r.length):
			close(r.copied)
			go b.answer(r, nil, b.tooLarge(r)) // answer takes the mutex
			b.waiting -= r.entries
			continue
		case first:
			f.length = r.length
			most = max(b.policy.size(f.length, b.alike(r)), b.policy.padded(f.length, r.entries))
			fallthrough
		case r.length == f.length && !r.alone && entries+r.entries <= most:
			full = r.alone
			batch = append(batch, r)
			entries += r.entries
			r.taken = now
			b.waiting -= r.entries
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
	b.gather(s, batch, f)
	began := time.Now()
	reads, results, err := b.enqueueBatch(s, f)
	if err != nil {
		b.failed(batch, f, err)
		b.free <- s
		return
	}
	b.mu.Lock()
	b.policy.began(f, gathered, time.Now())
	b.inFlight = append(b.inFlight, f)
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
			read.Close()
		}
		b.mu.Lock()
		b.inFlight = b.inFlight[1:]
		b.policy.ended(f, began, time.Now(), b.inFlight)
		entries := 0
		for _, r := range batch {
			entries += r.entries
		}
		b.stats.Batches[entries]++
		b.wake()
		b.mu.Unlock()
		b.free <- s
		b.note(err)
		b.deliver(batch, f.size, results, err)
	}()
}

// deliver gives each request its part of the results.
func (b *Batcher) deliver(batch []*request, size int, results []Array, err error) {
	first := 0
	for _, r := range batch {
		var out []Array
		for _, all := range results {
			if err == nil {
				each := len(all.Data) / size
				shape := append([]int64{int64(r.entries)}, all.Shape[1:]...)
				out = append(out, Array{DType: all.DType, Shape: shape, Data: all.Data[first*each : (first+r.entries)*each : (first+r.entries)*each]})
			}
		}
		first += r.entries
		b.answer(r, out, err)
	}
}

func (b *Batcher) answer(r *request, out []Array, err error) {
	if !isUpdate(r) {
		b.mu.Lock()
		if err != nil {
			b.stats.Failed++
		} else {
			b.stats.Requests++
			b.stats.Entries += int64(r.entries)
			b.stats.Took += time.Since(r.since)
			b.stats.Queued += r.taken.Sub(r.since)
		}
		b.mu.Unlock()
	}
	r.out, r.err = out, err
	close(r.done)
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
		for _, r := range batch {
			b.answer(r, nil, err)
		}
	}
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
		b.waiting -= r.entries
	}
	b.mu.Unlock()
	for _, r := range waiting {
		close(r.copied)
		b.answer(r, nil, err)
	}
}

func (b *Batcher) log(format string, args ...any) {
	if b.o.Log != nil {
		b.o.Log("serve: " + fmt.Sprintf(format, args...))
	}
}

// release frees everything. No batch is under way.
func (b *Batcher) release() {
	for _, s := range b.slots {
		s.close()
	}
	for _, d := range b.decoders {
		d.close()
	}
	b.captured.Close()
	b.compute.Close()
	b.copies.Close()
}
