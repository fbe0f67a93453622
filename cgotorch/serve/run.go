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
	for range slotCount {
		if err := b.newSlot(); err != nil {
			return err
		}
	}
	if err := b.compute.Synchronize(); err != nil { // the copies' stream writes what this stream has made
		return err
	}
	b.policy = policy{sizes: b.o.BatchSizes, takes: map[int]time.Duration{}, exact: !b.device.IsCUDA(), delay: b.o.MaxDelay}
	for _, size := range b.o.BatchSizes {
		err := b.measure(size)
		if errors.Is(err, cgotorch.ErrOutOfMemory) && b.policy.drop(size) {
			b.log("batches of %d and more do not fit: %v", size, err)
			break
		}
		if err != nil {
			return err
		}
	}
	for _, s := range b.slots {
		b.free <- s
	}
	return nil
}

// measure captures the function for a size, with each slot, and measures how long a batch takes.
func (b *Batcher) measure(size int) error {
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
				_, err := b.results(x, s, size)
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
	b.policy.takes[size] = least
	return nil
}

// results enqueues the function on the slot's first entries, and checks the results.
func (b *Batcher) results(x *cgotorch.Exec, s *slot, size int) ([]*cgotorch.Tensor, error) {
	results := b.captured.Run(x, s.view(x, size)...)
	if len(results) == 0 {
		return nil, fmt.Errorf("serve: the function has no result: %w", cgotorch.ErrInvalidArgument)
	}
	for k, out := range results {
		if shape := out.Shape(); len(shape) == 0 || shape[0] != int64(size) {
			return nil, fmt.Errorf("serve: result %d of the function is %v for %d entries; its first dimension must be that of the inputs: %w", k, out, size, cgotorch.ErrInvalidArgument)
		}
	}
	return results, nil
}

// run is the dispatcher. It ends when the Batcher is closed and no request waits.
func (b *Batcher) run() {
	defer close(b.ended)
	defer b.release()
	for s := range b.free {
		batch, size := b.next()
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
		b.begin(s, batch, size)
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
func (b *Batcher) next() (batch []*request, size int) {
	for {
		b.mu.Lock()
		wait := time.Duration(-1)
		if len(b.queue) > 0 {
			if wait = b.policy.wait(time.Now(), b.waiting, b.queue[0].since); b.closed || b.queue[0].alone || slices.ContainsFunc(b.queue, isUpdate) {
				wait = 0
			}
		}
		if wait == 0 {
			batch, size = b.take()
		}
		ended := b.closed && len(b.queue) == 0 && len(batch) == 0
		b.mu.Unlock()
		if len(batch) > 0 || ended {
			return batch, size
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

// take takes a batch from the front of the queue. The caller holds b.mu.
func (b *Batcher) take() (batch []*request, size int) {
	entries, most := 0, 0
	for len(b.queue) > 0 {
		r := b.queue[0]
		if context.Cause(r.ctx) != nil {
			b.dropped(r)
			close(r.copied)
		} else if r.entries > b.policy.largest() {
			close(r.copied)
			go b.answer(r, nil, b.tooLarge(r)) // answer takes the mutex
		} else if len(batch) > 0 && (r.alone || batch[0].alone || r.update != nil || entries+r.entries > most) {
			break
		} else {
			if len(batch) == 0 {
				most = max(b.policy.size(b.waiting), b.policy.padded(r.entries))
			}
			batch = append(batch, r)
			entries += r.entries
		}
		b.queue[0] = nil // the queue's memory must not keep the request's
		b.queue = b.queue[1:]
		b.waiting -= r.entries
		if r.update != nil {
			break
		}
	}
	return batch, b.policy.padded(max(entries, 1))
}

// tooLarge is the error of a request that had been allowed before batch sizes were given up. The
// caller holds b.mu.
func (b *Batcher) tooLarge(r *request) error {
	return fmt.Errorf("serve: %d entries, at most %d fit the device's memory at once: divide the request: %w", r.entries, b.policy.largest(), cgotorch.ErrOutOfMemory)
}

// begin computes a batch. It does not wait for the device.
func (b *Batcher) begin(s *slot, batch []*request, size int) {
	gathered := time.Now()
	b.gather(s, batch, size)
	reads, results, err := b.enqueueBatch(s, size)
	if err != nil {
		b.failed(batch, size, err)
		b.free <- s
		return
	}
	now := time.Now()
	b.mu.Lock()
	b.policy.began(size, gathered, now)
	b.inFlight = append(b.inFlight, size)
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
		b.policy.ended(time.Now(), b.inFlight)
		b.stats.Batches++
		b.wake()
		b.mu.Unlock()
		b.free <- s
		b.note(err)
		b.deliver(batch, size, results, err)
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
				out = append(out, Array{all.DType, shape, all.Data[first*each : (first+r.entries)*each : (first+r.entries)*each]})
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
		}
		b.mu.Unlock()
	}
	r.out, r.err = out, err
	close(r.done)
}

// failed is called when a batch could not be enqueued. Its requests are tried again in smaller
// batches, or they fail.
func (b *Batcher) failed(batch []*request, size int, err error) {
	b.note(err)
	b.mu.Lock()
	smaller := errors.Is(err, cgotorch.ErrOutOfMemory) && b.policy.drop(size)
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
		b.log("batches of %d and more are given up: %v", size, err)
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
	b.lost = err
	waiting := b.queue
	b.queue, b.waiting = nil, 0
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
	b.captured.Close()
	b.compute.Close()
	b.copies.Close()
}
