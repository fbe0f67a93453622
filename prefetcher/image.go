package prefetcher

import (
	"context"
	"fmt"
	"iter"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/images"
	"github.com/streamtorch/streamtorch/imageloader"
)

// imageMemory is device memory for one batch of images.
type imageMemory struct {
	pixels *cgotorch.Tensor // uint8 [N, H, W, C]
	flips  *cgotorch.Tensor // bool [N]
	images *cgotorch.Tensor // DType [N, C, H, W], with the padded size
	labels *cgotorch.Tensor // int64 [N]
	soft   *cgotorch.Tensor // float32 [N, Classes], or nil if labels are not mixed
}

// allocate makes the memory. If it fails, the method `close` frees what it has made.
func (m *imageMemory) allocate(x *cgotorch.Exec, shape shape, o Options) {
	n, h, w, c := int64(shape.batch), int64(shape.height), int64(shape.width), int64(shape.channels)
	m.pixels = x.Keep(x.Empty(cgotorch.Uint8, n, h, w, c))
	m.flips = x.Keep(x.Empty(cgotorch.Bool, n))
	m.labels = x.Keep(x.Empty(cgotorch.Int64, n))
	if o.mixes() {
		m.soft = x.Keep(x.Empty(cgotorch.Float32, n, int64(o.Classes)))
	}
	padded := o.padded(shape)
	h, w = int64(padded.height), int64(padded.width)
	if o.Contiguous {
		m.images = x.Keep(x.Empty(o.DType, n, c, h, w))
	} else {
		m.images = x.Keep(x.Permute(x.Empty(o.DType, n, h, w, c), 0, 3, 1, 2))
	}
}

func (m *imageMemory) close() {
	for _, t := range []*cgotorch.Tensor{m.pixels, m.flips, m.images, m.labels, m.soft} {
		t.Close()
	}
}

// imageLoad is a batch of images on its way, with its parameters: the random choices for the
// batch.
type imageLoad struct {
	p     *Prefetcher
	host  *imageloader.HostBatch
	from  origin
	drawn *parameters // nil if nothing is drawn
}

func (p *Prefetcher) imageLoads(ctx context.Context) iter.Seq2[load[*Batch], error] {
	return func(yield func(load[*Batch], error) bool) {
		for host, err := range p.source.Epoch(ctx) {
			if err == nil && host == nil {
				err = errNilBatch(p.source)
			}
			if !yield(&imageLoad{p: p, host: host}, err) {
				return
			}
		}
	}
}

func (l *imageLoad) String() string {
	return fmt.Sprintf("batch %d of epoch %d", l.host.Index, l.host.Epoch)
}

func (l *imageLoad) check() error { return l.p.fits(l.host) }

func (p *Prefetcher) fits(host *imageloader.HostBatch) error {
	s := p.shape
	if host.N < 1 || host.N > s.batch || host.Height != s.height || host.Width != s.width || host.Channels != s.channels {
		return fmt.Errorf("prefetcher: batch %d of epoch %d has shape [%d %d %d %d]; the source said at most [%d %d %d %d]",
			host.Index, host.Epoch, host.N, host.Height, host.Width, host.Channels, s.batch, s.height, s.width, s.channels)
	}
	return p.recipe.fits(host)
}

func (l *imageLoad) draw(ctx context.Context) error {
	recipe := &l.p.recipe
	if !recipe.o.draws() {
		return nil
	}
	select {
	case l.drawn = <-recipe.free:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	recipe.draw(l.drawn, l.host)
	return nil
}

func (l *imageLoad) stage(s *slot) (err error) {
	l.from, err = s.staging.stage(l.host, l.p.pinner, s.ready)
	return err
}

func (l *imageLoad) copy(x *cgotorch.Exec, s *slot) {
	m, n := l.p.memory[s.number], l.host.N
	cgotorch.CopyFrom(x, first(x, m.pixels, n), l.from.images)
	cgotorch.CopyFrom(x, first(x, m.labels, n), l.from.labels)
	if l.from.flips != nil {
		cgotorch.CopyFrom(x, first(x, m.flips, n), l.from.flips)
	}
	if l.drawn != nil { //edge:copied-behind-drawn TestAugmentations_HaveNoRace checked
		l.p.recipe.send(x, l.drawn, n)
	}
}

func (l *imageLoad) finish(x *cgotorch.Exec, s *slot) *Batch {
	m, h := l.p.memory[s.number], l.host
	var flips *cgotorch.Tensor
	if l.from.flips != nil {
		flips = first(x, m.flips, h.N)
	}
	//edge:ready-behind-normalise TestEpoch_HasNoRace checked
	l.p.recipe.images(x, first(x, m.pixels, h.N), flips, first(x, m.images, h.N), l.drawn, h.N)
	if m.soft != nil {
		images.MixLabels(x, first(x, m.labels, h.N), first(x, m.soft, h.N), l.drawn.mix.share)
	}
	return &Batch{N: h.N, Epoch: h.Epoch, Index: h.Index, Names: h.Names, State: h.State, memory: m, slot: s, ahead: l.p}
}

func (l *imageLoad) counts() Stats {
	h := l.host
	bytes := int64(len(h.Images)+8*len(h.Labels)+len(h.Flip)) + l.p.recipe.bytes(l.drawn, h.N)
	return Stats{Samples: h.N, Bytes: bytes, Staged: l.from.staged}
}

func (l *imageLoad) await(copied *cgotorch.Event) {
	// Await fails only on a lost device, where no copy runs any more.
	_ = l.from.slab.Await(copied) //edge:buffer-behind-copy TestEpoch_HasNoRace checked
	if l.drawn != nil && l.drawn.slab != nil {
		_ = l.drawn.slab.Await(copied) //edge:drawn-behind-copy TestAugmentations_HaveNoRace checked
	}
}

func (l *imageLoad) release() {
	defer l.p.recipe.takeBack(l.drawn) //edge:drawn-goes-back TestAugmentations_MemoryComesBack
	l.host.Release()                   //edge:buffer-goes-back TestEpoch_ReleasesEachBatch
}
