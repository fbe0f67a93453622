package prefetcher

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/data"
)

// TensorSource gives batches of any tensors in host memory. *[data.Loader] is a TensorSource.
type TensorSource interface {
	// Epoch yields the batches of one epoch. The prefetcher gives each batch back with its Release.
	// The sequence must end when ctx ends.
	Epoch(ctx context.Context) iter.Seq2[*data.Batch, error]
	// Fields returns the fields of the batches' columns. The elements of a sample may be fewer than
	// its Shape has, but not more.
	Fields() []data.Field
	// BatchSize returns the number of samples of the largest batch.
	BatchSize() int
	// NewTensors calls Pin once. See [Source] for what the source calls, and when.
	Pin(p data.Pinner) error
}

// TensorOptions are the options of [NewTensors].
type TensorOptions struct {
	// Depth is the number of batches that are copied before their use, besides the batch in use, up to
	// 1024. 0 means 2. Each takes device memory for the largest batch.
	Depth int
}

// Tensors copies the batches of a [TensorSource] to a device before their use, as a [Prefetcher]
// does with images. One goroutine at a time may use it. Stats and Close may be called from any
// goroutine.
type Tensors struct {
	copier[*TensorBatch]
	source TensorSource
	memory []*tensorMemory // of each slot, by its number
	fields []data.Field
	batch  int
}

// TensorBatch is a batch on the device, lent to the body of the loop that yielded it. After the
// body the next batches are written into the same memory.
type TensorBatch struct {
	N     int           // number of samples
	Epoch int           // number of the epoch, as the source counts
	Index int           // number of the batch in the epoch, from 0
	Texts []data.Column // the columns of texts, in host memory. They stay valid
	State data.State    // the source's position after this batch: Loader.Restore resumes there

	shapes  [][]int64 // for each field, [N, Shape...]
	lengths map[string][]int64
	memory  *tensorMemory
	slot    *slot
	ahead   *Tensors
}

// NewTensors allocates Depth+1 slots on the device, and calls source.Pin. The source stays the
// caller's and must outlive the Tensors. The caller closes the Tensors.
//
// NewTensors fails with [ErrInvalidOptions] for a Depth out of range or fields that are not valid,
// and with [cgotorch.ErrNoDevice] if the device is absent. It fails with [cgotorch.ErrOutOfMemory]
// if memory is short or cannot be page-locked. If the source's Pin fails, NewTensors returns its
// error.
func NewTensors(source TensorSource, device cgotorch.Device, o TensorOptions) (*Tensors, error) {
	if isNil(source) {
		return nil, fmt.Errorf("prefetcher: NewTensors: the source is nil; look at the error of the function that opened it: %w", ErrInvalidOptions)
	}
	p := &Tensors{source: source, fields: source.Fields(), batch: source.BatchSize(), copier: copier[*TensorBatch]{device: device, place: placeIn[data.State](source), pinner: &pinner{device: device}}}
	var err error
	if o.Depth, err = checkDepth("TensorOptions.Depth", o.Depth); err != nil {
		return nil, err
	}
	if p.batch < 1 || len(p.fields) == 0 {
		return nil, fmt.Errorf("prefetcher: the source has %d fields, and batches of %d samples: %w", len(p.fields), p.batch, ErrInvalidOptions)
	}
	for _, f := range p.fields {
		if f.Text || f.DType.Size() == 0 || len(f.Shape) > 0 && slices.Min(f.Shape) < 1 {
			return nil, fmt.Errorf("prefetcher: the source's field %s is no tensor of a known size: %w", f, ErrInvalidOptions)
		}
	}
	p.loads = p.tensorLoads
	p.freeMemory = func() { closeAll(p.memory) }
	err = p.open(o.Depth+1, func() error { return source.Pin(p.pinner) }, func(*cgotorch.Exec) error { return nil }, func(x *cgotorch.Exec) {
		m := &tensorMemory{}
		p.memory = append(p.memory, m)
		m.allocate(x, p.fields, p.batch)
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Epoch yields the batches of the source's next epoch. It waits, ends and fails as
// [Prefetcher.Epoch]. Run one Do for each batch, inside the body of the loop.
func (p *Tensors) Epoch(ctx context.Context) iter.Seq2[*TensorBatch, error] {
	return p.epoch(ctx)
}

// Stats returns the counts so far. It does not wait. See [Prefetcher.Stats].
func (p *Tensors) Stats() Stats { return p.statistics() }

// Close frees the slots and the copy stream, as [Prefetcher.Close] does. It may be called from any
// goroutine, and twice.
func (p *Tensors) Close() error {
	if p == nil {
		return nil
	}
	return p.close()
}

// Use returns the tensors of the batch by the names of their fields, each [N, Shape...]. It makes
// x's stream wait, on the device, for the batch's copy. The host does not wait. The tensors are
// valid until x's Do ends. x.Keep refuses them: Clone them to keep a copy. Use fails x's Do in the
// cases of [Batch.Use].
func (b *TensorBatch) Use(x *cgotorch.Exec) map[string]*cgotorch.Tensor {
	b.ahead.use(x, "TensorBatch.Use", b.slot, b)
	tensors := make(map[string]*cgotorch.Tensor, len(b.shapes))
	for i, shape := range b.shapes {
		whole := x.Lend(b.memory.elements[i], b.String())
		tensors[b.ahead.fields[i].Name] = x.View(x.Narrow(whole, 0, 0, int(product(shape))), shape...)
	}
	return tensors
}

// Lengths returns the length that each sample of a padded field had before the padding, as
// [data.Batch.Lengths] does. They are in host memory and stay valid. Lengths does not wait. It
// returns nil for a field that is not padded.
func (b *TensorBatch) Lengths(field string) []int64 { return b.lengths[field] }

// String returns the number of the batch, as messages give it.
func (b *TensorBatch) String() string { return fmt.Sprintf("batch %d of epoch %d", b.Index, b.Epoch) }

func product(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// tensorMemory is device memory for one batch: a flat tensor for each field. The two slices share
// their memory.
type tensorMemory struct {
	elements []*cgotorch.Tensor // of the field's dtype
	bytes    []*cgotorch.Tensor // uint8
}

// allocate makes the memory. If it fails, the method `close` frees what it has made.
func (m *tensorMemory) allocate(x *cgotorch.Exec, fields []data.Field, batch int) {
	for _, f := range fields {
		elements := x.Keep(x.Empty(f.DType, int64(batch)*product(f.Shape)))
		m.elements = append(m.elements, elements)
		m.bytes = append(m.bytes, x.Keep(x.Call("aten::view.dtype", elements, cgotorch.Uint8)[0].(*cgotorch.Tensor)))
	}
}

func (m *tensorMemory) close() {
	for _, t := range slices.Concat(m.bytes, m.elements) {
		t.Close()
	}
}

// tensorLoad is a batch of tensors on its way.
type tensorLoad struct {
	p       *Tensors
	host    *data.Batch
	columns []data.Column // without texts
	from    [][]byte      // for each column, the memory from which it is copied
	slabs   []*cgotorch.HostSlab
	staged  int64
}

func (p *Tensors) tensorLoads(ctx context.Context) iter.Seq2[load[*TensorBatch], error] {
	return func(yield func(load[*TensorBatch], error) bool) {
		for host, err := range p.source.Epoch(ctx) {
			l := &tensorLoad{p: p, host: host}
			if err == nil && host == nil {
				err = errNilBatch(p.source)
			}
			if err == nil {
				l.columns = slices.DeleteFunc(slices.Clone(host.Columns), func(c data.Column) bool { return c.Text })
			}
			if !yield(l, err) {
				return
			}
		}
	}
}

func (l *tensorLoad) String() string { return l.host.String() }

func (l *tensorLoad) check() error {
	if l.host.N < 1 || l.host.N > l.p.batch || len(l.columns) != len(l.p.fields) {
		return fmt.Errorf("prefetcher: %s has %d samples in %d columns; the source said at most %d, in %d", l, l.host.N, len(l.columns), l.p.batch, len(l.p.fields))
	}
	for i, c := range l.columns {
		f := l.p.fields[i]
		elements := product(c.Shape)
		if c.Name != f.Name || c.DType != f.DType || c.N != l.host.N || elements < 0 || elements > product(f.Shape) || int64(len(c.Data)) != int64(c.N)*elements*int64(f.DType.Size()) {
			return fmt.Errorf("prefetcher: %s has a column %s of %d samples in %d bytes; the source said %s", l, c.Field, c.N, len(c.Data), f)
		}
	}
	return nil
}

func (l *tensorLoad) draw(context.Context) error { return nil }

func (l *tensorLoad) stage(s *slot) error {
	need := 0
	for _, c := range l.columns {
		need += needs(l.p.pinner, c.Data)
	}
	if need > 0 {
		if err := s.staging.reserve(need, s.ready); err != nil {
			return err
		}
		l.slabs, l.staged = append(l.slabs, s.staging.slab), int64(need)
	}
	for _, c := range l.columns {
		if slab := slabOf(l.p.pinner, c.Data); slab != nil && !slices.Contains(l.slabs, slab) {
			l.slabs = append(l.slabs, slab)
		}
		l.from = append(l.from, staged(&s.staging, l.p.pinner, c.Data))
	}
	return nil
}

func (l *tensorLoad) copy(x *cgotorch.Exec, s *slot) {
	for i, from := range l.from {
		cgotorch.CopyFrom(x, first(x, l.p.memory[s.number].bytes[i], len(from)), from)
	}
}

func (l *tensorLoad) finish(_ *cgotorch.Exec, s *slot) *TensorBatch {
	h := l.host
	b := &TensorBatch{N: h.N, Epoch: h.Epoch, Index: h.Index, State: h.State, memory: l.p.memory[s.number], slot: s, ahead: l.p}
	for _, c := range h.Columns {
		if c.Text {
			b.Texts = append(b.Texts, c)
		}
	}
	for _, c := range l.columns {
		b.shapes = append(b.shapes, append([]int64{int64(c.N)}, c.Shape...))
		if lengths := h.Lengths(c.Name); lengths != nil {
			if b.lengths == nil {
				b.lengths = map[string][]int64{}
			}
			b.lengths[c.Name] = slices.Clone(lengths) // the batch goes back to the loader while this one is used
		}
	}
	return b
}

func (l *tensorLoad) counts() Stats {
	added := Stats{Samples: l.host.N, Staged: l.staged}
	for _, c := range l.columns {
		added.Bytes += int64(len(c.Data))
	}
	return added
}

func (l *tensorLoad) await(copied *cgotorch.Event) {
	for _, slab := range l.slabs {
		_ = slab.Await(copied) //edge:tensors-buffer-behind-copy TestTensors_HaveNoRace checked
	}
}

func (l *tensorLoad) release() {
	l.host.Release() //edge:tensors-buffer-goes-back TestTensors_ReleaseEachBatch
}
