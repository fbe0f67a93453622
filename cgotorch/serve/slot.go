package serve

import (
	"errors"
	"runtime"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// slotCount is the number of slots: one batch is gathered while the device computes another one.
const slotCount = 2

// slot is the memory of one batch's inputs, in page-locked host memory and on the device. It is
// free when the results of its last batch are on the host, so nothing reads it then.
type slot struct {
	slab    *cgotorch.HostSlab
	offsets []int                      // where each input begins in the slab
	whole   []*cgotorch.Tensor         // the largest batch, on the device
	views   map[int][]*cgotorch.Tensor // its first entries, by their number
}

const alignment = 64

func (b *Batcher) newSlot() error {
	s := &slot{views: map[int][]*cgotorch.Tensor{}}
	b.slots = append(b.slots, s)
	size, most := 0, b.o.BatchSizes[len(b.o.BatchSizes)-1]
	for _, each := range b.each {
		s.offsets = append(s.offsets, size)
		size += (each*most + alignment - 1) / alignment * alignment
	}
	var err error
	if s.slab, err = cgotorch.NewHostSlab(size); err != nil {
		return err
	}
	if b.device.IsCUDA() {
		if err := s.slab.Pin(); err != nil {
			return err
		}
	}
	return b.compute.Do(func(x *cgotorch.Exec) error {
		for _, in := range b.o.Inputs {
			s.whole = append(s.whole, x.Keep(x.Zeros(in.DType, append([]int64{int64(most)}, in.Shape...)...)))
		}
		for _, n := range b.o.BatchSizes {
			s.view(x, n)
		}
		return nil
	})
}

// view returns the first n entries of the slot's inputs.
func (s *slot) view(x *cgotorch.Exec, n int) []*cgotorch.Tensor {
	if s.views[n] == nil {
		var views []*cgotorch.Tensor
		for _, t := range s.whole {
			views = append(views, x.Narrow(t, 0, 0, n))
		}
		for _, t := range views {
			x.Keep(t)
		}
		s.views[n] = views
	}
	return s.views[n]
}

// gather copies the requests' inputs into the slot's host memory, and zeros behind them up to the
// size of the batch.
func (b *Batcher) gather(s *slot, batch []*request, size int) {
	s.slab.HostWrites()
	memory, first, bytes := s.slab.Bytes(), 0, 0
	firsts := make([]int, len(batch))
	for i, r := range batch {
		firsts[i] = first
		first += r.entries
		for _, in := range r.inputs {
			bytes += len(in.Data)
		}
	}
	for k, each := range b.each {
		clear(memory[s.offsets[k]+first*each : s.offsets[k]+size*each])
	}
	one := func(i int) {
		for k, in := range batch[i].inputs {
			copy(memory[s.offsets[k]+firsts[i]*b.each[k]:], in.Data)
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
	all.Add(workers)
	for w := range workers {
		go func() {
			defer all.Done()
			for i := w; i < len(batch); i += workers {
				one(i)
			}
		}()
	}
	all.Wait()
}

// enqueueBatch enqueues the copy of the slot's inputs, the function, and the copies of its
// results. It does not wait for the device.
func (b *Batcher) enqueueBatch(s *slot, size int) (reads []*cgotorch.HostRead, shapes []Array, err error) {
	views := s.views[size]
	if views == nil {
		if err := b.do("serve.New", func(x *cgotorch.Exec) error { views = s.view(x, size); return nil }); err != nil {
			return nil, nil, err
		}
	}
	copies := make([]cgotorch.HostCopy, len(views))
	for i, t := range views {
		copies[i] = cgotorch.HostCopy{To: t, From: s.slab.Bytes()[s.offsets[i]:][:size*b.each[i]]}
	}
	began, done, err := b.copies.CopyFrom(nil, copies...)
	if err != nil {
		return nil, nil, err
	}
	defer began.Close()
	defer done.Close()
	err = b.do("serve.New", func(x *cgotorch.Exec) error {
		x.Wait(done) //edge:computed-behind-copy TestBatcher_HasNoRace checked
		results, err := b.results(x, s, size)
		for _, out := range results {
			reads = append(reads, x.ReadAsync(out))
			shapes = append(shapes, Array{DType: out.DType(), Shape: out.Shape()})
		}
		return err
	})
	if err != nil {
		for _, r := range reads {
			r.Close()
		}
		return nil, nil, errors.Join(err, b.compute.Synchronize()) // the slot is used again
	}
	return reads, shapes, nil
}

func (s *slot) close() {
	for _, views := range s.views {
		for _, t := range views {
			t.Close()
		}
	}
	for _, t := range s.whole {
		t.Close()
	}
	s.slab.Close()
}
