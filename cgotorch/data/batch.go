package data

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Batch is some samples in the loader's memory, as one array for each field. The consumer owns it
// until Release, and may use it on any goroutine.
//
// A program may make batches itself, as a source of package prefetcher. It then fills in the
// exported fields.
type Batch struct {
	N int // number of samples; the last batch of an epoch may have fewer

	// Columns are the fields in their order, each [N, Shape...]. After a padded field comes its
	// column of lengths. The memory is valid until Release. Then Columns is nil.
	Columns []Column

	Epoch, Index int // number of the epoch, and of the batch in its epoch, both from 0

	// State is the position right after this batch. A loader that is restored to State continues with
	// the next batch. After the last batch of an epoch, State is the end of that epoch. Then the
	// restored loader yields an empty epoch first. After the loop a program saves the loader or its
	// prefetcher, or [State.NextEpoch].
	State State

	// OnRelease, if not nil, is called once, by the first Release. It must not wait. The maker of the
	// batch sets it before another goroutine has the batch.
	OnRelease func()

	ring     *buffers
	buffer   *buffer
	released atomic.Bool
	lost     runtime.Cleanup // tells the ring of a batch that is dropped without Release
}

// Column returns the column of that name. If there is none, it returns the zero Column, which has
// no samples.
func (b *Batch) Column(name string) Column { return columnOf(b.Columns, name) }

// Lengths returns the length that each sample of a padded field had before the padding, as
// LSTM.ForwardLengths of package nn takes them. They are the field's column of lengths, and are
// valid until Release. Lengths returns nil for a field without this column.
func (b *Batch) Lengths(field string) []int64 {
	c := b.Column(lengthsOf(Field{Name: field}).Name)
	if c.Text || c.DType != cgotorch.Int64 || len(c.Shape) > 0 {
		return nil
	}
	return Values[int64](c)
}

// Use returns copies of the columns on x's device, by the names of their fields, each [N,
// Shape...]. Texts are left out. Like [Column.Tensor] it waits until a CUDA device has read the
// columns: package prefetcher copies batches without this wait. The Do owns the tensors. Use fails
// x's Do with [cgotorch.ErrClosed] after Release.
func (b *Batch) Use(x *cgotorch.Exec) map[string]*cgotorch.Tensor {
	if b.released.Load() {
		x.Fail("Batch.Use", fmt.Errorf("data: %s was used after its Release: %w", b, cgotorch.ErrClosed))
	}
	tensors := make(map[string]*cgotorch.Tensor, len(b.Columns))
	for _, c := range b.Columns {
		if !c.Text {
			tensors[c.Name] = c.Tensor(x)
		}
	}
	return tensors
}

// Release gives the memory back to the loader, which fills it again. No reader may use the memory
// afterwards. A device copy is a reader too. Release never waits. It may be called twice, and
// after the loader's Close.
func (b *Batch) Release() {
	if b.released.Swap(true) {
		return
	}
	b.Columns = nil
	if b.ring != nil {
		b.lost.Stop()
		b.ring.Give(b.buffer)
	}
	if b.OnRelease != nil {
		b.OnRelease()
	}
}

// String returns the number of the batch, as messages give it.
func (b *Batch) String() string { return fmt.Sprintf("batch %d of epoch %d", b.Index, b.Epoch) }
