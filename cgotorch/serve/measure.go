package serve

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
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
	for {
		f, err := b.captureAll()
		if err == nil {
			break
		}
		if !errors.Is(err, cgotorch.ErrOutOfMemory) || !b.policy.drop(f, time.Now()) {
			return err
		}
		b.policy.retry[f.length] = backoff{time.Now().Add(firstRetry), firstRetry} // one drop for all sizes that do not fit
		b.log("batches of %d and more do not fit: %v", f.size, err)
		// Graphs of the size that does not fit, and the memory of the eager runs, must not keep
		// smaller ones from fitting.
		if err := b.captured.Close(); err != nil {
			return err
		}
		b.releaseCached()
		b.captured = b.newCaptured()
	}
	b.releaseCached()
	if err := b.checkNames(); err != nil {
		return err
	}
	for _, s := range b.slots {
		b.free <- s
	}
	return nil
}

// checkNames fails if the results cannot be told by their names.
func (b *Batcher) checkNames() error {
	if len(b.o.Outputs) > len(b.outputs) {
		return fmt.Errorf("serve: New: Options.Outputs has %d names, %.200q, and the function has %d results: %w", len(b.o.Outputs), b.o.Outputs, len(b.outputs), cgotorch.ErrInvalidArgument)
	}
	for k, out := range b.outputs {
		if at := slices.IndexFunc(b.outputs, func(s Spec) bool { return s.Name == out.Name }); at < k {
			return fmt.Errorf("serve: New: the results %d and %d are both named %q; give each a name of its own in Options.Outputs: %w", at, k, out.Name, cgotorch.ErrInvalidArgument)
		}
	}
	return nil
}

// captureAll measures all forms in use. It returns the one that fails. The largest graph comes
// first, and all smaller ones find room in its memory.
func (b *Batcher) captureAll() (f form, err error) {
	for _, f.length = range slices.Backward(b.o.Lengths) {
		for _, f.size = range slices.Backward(b.policy.sizes[f.length]) {
			if err := b.measure(f); err != nil {
				return f, err
			}
		}
	}
	return f, nil
}

// releaseCached gives back what eager runs have left with LibTorch's allocator. It may fail
// while another stream captures, and the memory then stays with the allocator.
func (b *Batcher) releaseCached() {
	if b.device.IsCUDA() {
		_ = b.device.ReleaseCachedMemory()
	}
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
			if err := s.close(); err != nil {
				return err
			}
		}
		b.slots, b.o.BatchSizes = nil, b.o.BatchSizes[:last]
	}
}

// measure captures the function for a form, with each slot, and measures how long a batch and its
// copies take. Later batches find page-locked memory for results of both slots.
func (b *Batcher) measure(f form) (err error) {
	const warm, measured = 3, 3 // warm-up, capture and first launch
	var reads []*cgotorch.HostRead
	defer func() {
		for _, r := range reads {
			err = errors.Join(err, r.Close())
		}
	}()
	least := time.Duration(1<<63 - 1)
	for _, s := range b.slots {
		rounds, runs := warm+measured, 1
		if !b.device.IsCUDA() {
			rounds = 1
		}
		for i := range rounds {
			if i >= warm {
				runs = 4 // so that the way to the device and back hardly counts
			}
			began := time.Now()
			err := b.compute.Do(func(x *cgotorch.Exec) error {
				for range runs - 1 {
					if _, err := b.results(x, s, f); err != nil {
						return err
					}
				}
				results, err := b.results(x, s, f)
				if err == nil {
					b.describe(results, f)
				}
				for _, out := range results {
					if err == nil && i == rounds-1 {
						reads = append(reads, x.ReadAsync(out))
					}
				}
				return err
			})
			if err == nil {
				err = b.compute.Synchronize()
			}
			if err != nil {
				return err
			}
			if took := time.Since(began) / time.Duration(runs); i >= rounds-measured {
				least = min(least, took)
			}
		}
	}
	b.policy.takes[f] = least
	if _, known := b.policy.copy[f.length]; b.device.IsCUDA() && !known { // the largest batch is measured
		b.policy.copy[f.length], err = b.measureCopy(f)
	}
	return err
}

// measureCopy returns how long the copy of an entry to the device takes, in a batch of a form.
func (b *Batcher) measureCopy(f form) (time.Duration, error) {
	least := time.Duration(1<<63 - 1)
	for range 3 {
		began := time.Now()
		done, err := b.copyInputs(b.slots[0], f)
		if err == nil {
			err = errors.Join(done.Synchronize(), done.Close())
		}
		if err != nil {
			return 0, err
		}
		least = min(least, time.Since(began))
	}
	return least / time.Duration(f.size), nil
}

// describe notes the results as the outputs. A size that is not the same for each length becomes
// -1.
func (b *Batcher) describe(results []*cgotorch.Tensor, f form) {
	for k, out := range results {
		shape := out.Shape()[1:]
		if k == len(b.outputs) {
			s := Spec{Name: fmt.Sprint("output", k), DType: out.DType(), Shape: shape}
			if k < len(b.o.Outputs) && b.o.Outputs[k] != "" {
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
