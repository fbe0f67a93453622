package serve

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// slotCount is the number of slots: one batch is gathered while the device computes another one.
const slotCount = 2

// slot is the memory of one batch's inputs, in page-locked host memory and on the device. It is
// free when the results of its last batch are on the host, so nothing reads it then.
type slot struct {
	slab    *cgotorch.HostSlab
	offsets []int                       // where each input begins in the slab
	whole   []*cgotorch.Tensor          // of each input: the elements of the largest batch, on the device
	views   map[form][]*cgotorch.Tensor // the inputs of a batch, at the beginning of `whole`
}

const alignment = 64

func (b *Batcher) newSlot() error {
	s := &slot{views: map[form][]*cgotorch.Tensor{}}
	b.slots = append(b.slots, s)
	size, most, longest := 0, b.MaxEntries(), b.o.Lengths[len(b.o.Lengths)-1]
	for _, in := range b.o.Inputs {
		s.offsets = append(s.offsets, size)
		size += (in.bytes(longest)*most + alignment - 1) / alignment * alignment
	}
	var err error
	if s.slab, err = cgotorch.NewHostSlab(b.device, size); err != nil {
		return err
	}
	return b.compute.Do(func(x *cgotorch.Exec) error {
		for _, in := range b.o.Inputs {
			s.whole = append(s.whole, x.Keep(x.Zeros(in.DType, int64(most)*product(in.at(longest)))))
		}
		for _, length := range b.o.Lengths {
			for _, n := range b.o.BatchSizes {
				b.view(x, s, form{n, length})
			}
		}
		return nil
	})
}

// view returns the slot's inputs for a batch of a form.
func (b *Batcher) view(x *cgotorch.Exec, s *slot, f form) []*cgotorch.Tensor {
	if s.views[f] == nil {
		var views []*cgotorch.Tensor
		for i, in := range b.o.Inputs {
			shape := append([]int64{int64(f.size)}, in.at(f.length)...)
			views = append(views, x.View(x.Narrow(s.whole[i], 0, 0, int(product(shape))), shape...))
		}
		for _, t := range views {
			x.Keep(t)
		}
		s.views[f] = views
	}
	return s.views[f]
}

// gather copies the requests' inputs into the slot's host memory. The rest of the batch is zeros.
func (b *Batcher) gather(s *slot, batch []*request, f form) {
	s.slab.Touch(true)
	first, bytes := 0, 0
	firsts := make([]int, len(batch))
	for i, r := range batch {
		firsts[i] = first
		first += r.entries
		for _, in := range b.o.Inputs {
			bytes += r.entries * in.bytes(f.length)
		}
	}
	for k, in := range b.o.Inputs {
		each := in.bytes(f.length)
		clear(s.slab.Bytes()[s.offsets[k]+first*each : s.offsets[k]+f.size*each])
	}
	one := func(i int) {
		for k := range b.o.Inputs {
			b.fill(s, k, firsts[i], batch[i], f)
		}
		close(batch[i].copied)
	}
	const worthwhile = 1 << 20 // bytes for which goroutines are worth their start
	workers := min(len(batch), runtime.GOMAXPROCS(0), bytes/worthwhile)
	if workers < 2 {
		for i := range batch {
			one(i)
		}
		return
	}
	var all sync.WaitGroup
	for w := range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := w; i < len(batch); i += workers {
				one(i)
			}
		}()
	}
	all.Wait()
}

// fill copies input k of a request into the slot's host memory, from entry `first` on.
func (b *Batcher) fill(s *slot, k, first int, r *request, f form) {
	in, spec := r.inputs[k], b.o.Inputs[k]
	each := spec.bytes(f.length)
	to := s.slab.Bytes()[s.offsets[k]+first*each:][:r.entries*each]
	switch {
	case in.Files != nil:
		for i, pixels := range r.pixels[k] {
			copy(to[i*each:], pixels)
		}
	case len(in.Data) == len(to):
		copy(to, in.Data)
	default: // padded
		clear(to)
		copyInto(to, append([]int64{int64(r.entries)}, spec.at(f.length)...), in.Data, in.Shape, spec.DType.Size())
	}
}

// copyInto copies elements to the beginning of each dimension of a larger shape.
func copyInto(to []byte, larger []int64, from []byte, shape []int64, element int) {
	if slices.Equal(larger[1:], shape[1:]) {
		copy(to, from)
		return
	}
	toRow, fromRow := int(product(larger[1:]))*element, int(product(shape[1:]))*element
	for i := range int(shape[0]) {
		copyInto(to[i*toRow:], larger[1:], from[i*fromRow:(i+1)*fromRow], shape[1:], element)
	}
}

// enqueueBatch enqueues the copy of the requests' inputs, the function, and the copies of its
// results. It does not wait for the device.
//
// The thread of the stream may sleep, and then it takes longer to wake up than a small batch takes
// to be copied. So it is woken before.
func (b *Batcher) enqueueBatch(s *slot, batch []*request, f form) (reads []*cgotorch.HostRead, shapes []Array, err error) {
	const small, cores = 1 << 20, 4 // bytes; a thread spins for a moment, so it takes no core from others
	if s.views[f] == nil {
		if err := b.do("Batcher.Predict", func(x *cgotorch.Exec) error { b.view(x, s, f); return nil }); err != nil {
			b.gather(s, batch, f)
			return nil, nil, err
		}
	}
	c := copied{there: make(chan struct{})}
	begin := func() {
		b.gather(s, batch, f)
		c.done, c.err = b.copyInputs(s, f)
		c.stored.Store(true)
		close(c.there)
	}
	bytes := 0
	for _, in := range b.o.Inputs {
		bytes += f.size * in.bytes(f.length)
	}
	early := b.device.IsCUDA() && bytes <= small && runtime.GOMAXPROCS(0) >= cores
	if !early {
		begin()
	}
	ended := b.start("Batcher.Predict", func(x *cgotorch.Exec) error {
		done, err := c.await()
		if err != nil {
			return err
		}
		x.Wait(done) //edge:computed-behind-copy TestBatcher_HasNoRace checked
		results, err := b.results(x, s, f)
		for _, out := range results {
			reads = append(reads, x.ReadAsync(out))
			shapes = append(shapes, Array{DType: out.DType(), Shape: out.Shape()})
		}
		return err
	})
	if early {
		begin()
	}
	err = <-ended
	c.done.Close()
	if err != nil {
		for _, r := range reads {
			r.Close()
		}
		return nil, nil, errors.Join(err, b.copies.Synchronize(), b.compute.Synchronize()) // the slot is used again
	}
	return reads, shapes, nil
}

// results enqueues the function on the slot's first entries, and checks the results.
func (b *Batcher) results(x *cgotorch.Exec, s *slot, f form) ([]*cgotorch.Tensor, error) {
	results := b.captured.Run(x, b.view(x, s, f)...)
	if len(results) == 0 {
		return nil, fmt.Errorf("serve: the function has no result: %w", cgotorch.ErrInvalidArgument)
	}
	for k, out := range results {
		if shape := out.Shape(); len(shape) == 0 || shape[0] != int64(f.size) {
			return nil, fmt.Errorf("serve: result %d of the function is %v%v for %d entries; its first dimension must be that of the inputs: %w", k, out.DType(), shape, f.size, cgotorch.ErrInvalidArgument)
		}
	}
	return results, b.checkResults(results, f)
}

// copied is the copy of a batch's inputs, which may be enqueued while a thread wakes up for it.
type copied struct {
	stored atomic.Bool
	there  chan struct{} // closed when `done` and `err` are there
	done   *cgotorch.Event
	err    error
}

// await waits until the copy is enqueued. It spins first, because a thread that sleeps is slow.
func (c *copied) await() (*cgotorch.Event, error) {
	const spin = 100 * time.Microsecond
	for began := time.Now(); !c.stored.Load() && time.Since(began) < spin; {
	}
	<-c.there
	return c.done, c.err
}

// copyInputs enqueues the copy of the slot's inputs. The views for the form are there. The caller
// closes the event at the copy's end.
func (b *Batcher) copyInputs(s *slot, f form) (done *cgotorch.Event, err error) {
	copies := make([]cgotorch.HostCopy, len(b.o.Inputs))
	for i, t := range s.views[f] {
		copies[i] = cgotorch.HostCopy{To: t, From: s.slab.Bytes()[s.offsets[i]:][:f.size*b.o.Inputs[i].bytes(f.length)]}
	}
	began, done, err := b.copies.CopyFrom(nil, copies...)
	if err == nil {
		began.Close()
	}
	return done, err
}

func (s *slot) close() error {
	var errs []error
	for _, views := range s.views {
		for _, t := range views {
			errs = append(errs, t.Close())
		}
	}
	for _, t := range s.whole {
		errs = append(errs, t.Close())
	}
	return errors.Join(append(errs, s.slab.Close())...)
}
