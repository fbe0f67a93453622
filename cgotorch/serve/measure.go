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
	if err := b.checkNames(); err != nil {
		return err
	}
	b.follow()
	for _, length := range b.o.Lengths {
		if b.o.Dependent {
			break
		}
		if err := b.checkEntries(length); err != nil {
			return err
		}
	}
	b.releaseCached()
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
	b.policy.Takes[f] = least
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

// measured are the results of a batch of a length, without its first dimension.
type measured struct {
	size    int // of the batch
	results []Spec
}

// describe is called for each measured batch. The first batch decides the names, dtypes and shapes
// of the outputs. A size that is another one in a later batch becomes -1. Sizes may differ between
// lengths, and with Options.Dependent between batch sizes too.
func (b *Batcher) describe(results []*cgotorch.Tensor, f form) {
	m := measured{size: f.size}
	for k, out := range results {
		s := Spec{Name: fmt.Sprint("output", k), DType: out.DType(), Shape: out.Shape()[1:]}
		if k < len(b.o.Outputs) && b.o.Outputs[k] != "" {
			s.Name = b.o.Outputs[k]
		}
		m.results = append(m.results, s)
	}
	if _, known := b.measured[f.length]; !known {
		b.measured[f.length] = m
	}
	if len(b.outputs) == 0 {
		b.outputs = cloned(m.results)
	}
	for k, s := range m.results {
		for i, d := range s.Shape {
			if b.outputs[k].Shape[i] != d {
				b.outputs[k].Shape[i] = -1
			}
		}
	}
}

// follow finds the dimensions of results that [Options.Unpad] cuts. With one length they cannot be
// told from others.
func (b *Batcher) follow() {
	for k, out := range b.outputs {
		dims := make([]bool, len(out.Shape))
		for i := range dims {
			dims[i] = b.o.Unpad && len(b.o.Lengths) > 1 && !slices.ContainsFunc(b.o.Lengths, func(l int64) bool { return b.measured[l].results[k].Shape[i] != l })
		}
		b.follows = append(b.follows, dims)
	}
}

// checkResults fails unless the results of a batch are like those of the batches before, and of the
// same shape as those of its length.
func (b *Batcher) checkResults(results []*cgotorch.Tensor, f form) error {
	if len(b.outputs) == 0 {
		return nil
	}
	if len(results) != len(b.outputs) {
		return fmt.Errorf("serve: the function has %d results in a batch of %d of length %d, and had %d before; give the same number each time: %w",
			len(results), f.size, f.length, len(b.outputs), cgotorch.ErrInvalidArgument)
	}
	for k, out := range results {
		want, size := b.outputs[k], 0
		if m, known := b.measured[f.length]; known {
			want, size = m.results[k], m.size
		}
		shape := out.Shape()[1:]
		if out.DType() != want.DType || len(shape) != len(want.Shape) {
			return fmt.Errorf("serve: result %d, %q, of an entry is %v%v in a batch of %d of length %d, and was %v%v before; give the same dtype and number of dimensions each time: %w",
				k, want.Name, out.DType(), shape, f.size, f.length, want.DType, want.Shape, cgotorch.ErrInvalidArgument)
		}
		if size > 0 && !b.o.Dependent && !slices.Equal(shape, want.Shape) {
			return fmt.Errorf("serve: result %d, %q, of an entry has the shape %v in a batch of %d, and %v in one of %d: %s: %w",
				k, want.Name, shape, f.size, want.Shape, size, ownEntries, cgotorch.ErrInvalidArgument)
		}
	}
	return nil
}
