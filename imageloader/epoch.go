package imageloader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch/decode"
)

// Note [Pipeline]
//
//	reader goroutine      sequence.run: archive -> items, in the epoch's order
//	   | items            a channel
//	assembler goroutine   takes items for a batch, decodes them into a free buffer, closes the gaps of unusable ones
//	   | full             a channel
//	consumer              next, in the loop of Loader.Epoch; Release makes the buffer free again
//
// The batches are the sequence without its unusable images, cut into pieces of BatchSize. A stage that cannot go on waits on
// its channel and on the context, never on anything else, so that ending the context ends them all; a batch being decoded is
// waited for.

// epoch is the pipeline of one epoch.
type epoch struct {
	loader *Loader
	from   State
	ctx    context.Context
	cancel context.CancelCauseFunc

	items   chan item
	readErr error // why items was closed early; to be read once it is closed

	full chan *HostBatch
	err  error // why full was closed early; to be read once it is closed

	running sync.WaitGroup

	// The assembler's.
	place   State // after the batches so far
	bad     []*Error
	pending []item
	images  []decode.Image
	results []decode.Result
}

// start runs the pipeline from a state on, until ctx or stop ends it.
func (l *Loader) start(ctx context.Context, from State) *epoch {
	e := &epoch{
		loader: l, from: from, place: from,
		items: make(chan item, min(l.options.BatchSize, 256)),
		full:  make(chan *HostBatch, l.options.Buffers),
	}
	e.ctx, e.cancel = context.WithCancelCause(ctx)
	s := &sequence{
		archive: l.archive, index: l.index, options: l.options, memory: &l.memory, stats: &l.stats, from: from,
	}
	e.running.Add(2)
	go func() {
		defer e.running.Done()
		defer close(e.items)
		var samples int
		if samples, e.readErr = s.run(e.ctx, e.items); e.readErr == nil {
			l.length.Store(int64(samples))
		}
	}()
	go func() {
		defer e.running.Done()
		defer close(e.full)
		if e.err = e.assemble(); e.err == io.EOF {
			e.err = nil
		}
	}()
	return e
}

// stop ends the pipeline, waits for its goroutines, and frees the batches that nobody took. It may be called several times,
// by several goroutines.
func (e *epoch) stop(cause error) {
	e.cancel(cause)
	e.running.Wait()
	for batch := range e.full {
		batch.Release()
	}
}

// next waits for a batch. After the last it returns io.EOF.
func (e *epoch) next() (*HostBatch, error) {
	if e.ctx.Err() != nil {
		return nil, context.Cause(e.ctx)
	}
	var batch *HostBatch
	var ok bool
	e.loader.stats.timed(func(s *Stats) *time.Duration { return &s.ConsumerWait }, func() {
		select {
		case batch, ok = <-e.full:
		case <-e.ctx.Done():
		}
	})
	switch {
	case ok:
		e.loader.stats.update(func(s *Stats) { s.Batches++; s.Samples += batch.N })
		return batch, nil
	case e.ctx.Err() != nil:
		return nil, context.Cause(e.ctx)
	case e.err != nil:
		return nil, e.err
	}
	return nil, io.EOF
}

// assemble sends batches until the epoch ends, which is io.EOF.
func (e *epoch) assemble() error {
	l := e.loader
	for {
		var b *buffer
		var err error
		l.stats.timed(func(s *Stats) *time.Duration { return &s.WaitForBuffer }, func() { b, err = l.ring.take(e.ctx) })
		if err != nil {
			return err
		}
		batch, err := e.fill(b)
		if err != nil {
			l.ring.give(b)
			return err
		}
		e.full <- batch // has room for all: a batch is one of the ring's buffers
	}
}

// fill makes the next batch. Unusable images are replaced by those that follow. At the end of the epoch it returns io.EOF.
func (e *epoch) fill(b *buffer) (*HostBatch, error) {
	o := e.loader.options
	size := e.loader.ring.layout.batch
	batch := e.newBatch(b)
	ended := false
	for batch.N < size && !ended {
		var err error
		if ended, err = e.collect(size - batch.N); err != nil {
			return nil, err
		}
		if ended && o.DropLast && batch.N+len(e.pending) < o.BatchSize {
			return nil, e.finish()
		}
		if err := e.decode(batch, b); err != nil {
			return nil, err
		}
	}
	if batch.N == 0 || o.DropLast && batch.N < o.BatchSize {
		return nil, e.finish()
	}
	e.place.Batch++
	batch.State = e.place
	batch.view(b)
	return batch, nil
}

// collect waits for up to n items, fewer at the end of the sequence. They are pending then.
func (e *epoch) collect(n int) (ended bool, err error) {
	e.pending = e.pending[:0]
	e.loader.stats.timed(func(s *Stats) *time.Duration { return &s.WaitForSamples }, func() {
		for len(e.pending) < n && !ended {
			it, ok := <-e.items // closed by the reader when the context ends
			if ended = !ok; ok {
				e.pending = append(e.pending, it)
			}
		}
	})
	if ended {
		return true, e.readErr
	}
	return false, nil
}

// decode adds the pending items to the batch, and accounts for the unusable ones.
func (e *epoch) decode(batch *HostBatch, b *buffer) error {
	l := e.loader
	e.images = e.images[:0]
	for _, it := range e.pending {
		if it.bad == nil {
			key := random(e.place.Seed, e.place.Epoch, forKeys, uint64(it.number))
			e.images = append(e.images, decode.Image{Data: it.data, Key: key})
		}
	}
	e.results = append(e.results[:0], make([]decode.Result, len(e.images))...)
	each := l.ring.layout.each
	decoded := b.images[batch.N*each:][:len(e.images)*each]
	var err error
	l.stats.timed(func(s *Stats) *time.Duration { return &s.Decode }, func() { err = l.pool.Decode(e.images, decoded, e.results) })
	if err != nil {
		return fmt.Errorf("imageloader: %s: %w", l.archive.path, err)
	}
	next, bytes := 0, 0
	for _, it := range e.pending {
		e.place.Position++
		bad := it.bad
		if bad == nil {
			bytes += len(it.data)
			result := &e.results[next]
			if bad, err = e.judge(it, result); err != nil {
				return err
			} else if bad == nil {
				copy(b.images[batch.N*each:][:each], decoded[next*each:]) // onto itself until one is unusable
				batch.add(b, it, result.Flip)
			}
			next++
			l.memory.give(it)
		}
		if bad != nil {
			if err := e.skip(bad); err != nil {
				return err
			}
		}
	}
	l.stats.update(func(s *Stats) { s.Bytes += int64(bytes) })
	return nil
}

// add counts in an image whose pixels are in place.
func (b *HostBatch) add(memory *buffer, it item, flip bool) {
	memory.labels[b.N] = int64(it.label)
	memory.flips[b.N] = 0
	if flip {
		memory.flips[b.N] = 1
	}
	b.Names = append(b.Names, it.name)
	b.N++
}

// judge returns what is wrong with an image that the decoder refused. It fails when that is not the image's fault, and so no
// reason to skip it.
func (e *epoch) judge(it item, result *decode.Result) (*Error, error) {
	if result.Err == nil {
		return nil, nil
	}
	bad := e.loader.archive.badMember(entry{number: it.member, name: it.name}, result.Err, "%v", result.Err)
	if errors.Is(bad, decode.ErrOutOfMemory) || errors.Is(bad, decode.ErrInternal) {
		return nil, bad
	}
	return bad, nil
}

// skip counts an unusable image, and fails when that makes too many.
func (e *epoch) skip(bad *Error) error {
	l := e.loader
	e.place.Skipped++
	if l.options.MaxSkipRate == 0 {
		return fatal(bad)
	}
	l.stats.skip(bad)
	if len(e.bad) < maxExamples {
		e.bad = append(e.bad, bad)
	}
	if e.from.Samples == 0 {
		return nil // finish will see
	}
	return l.archive.tooMany(e.bad, e.place.Skipped, e.from.Samples, l.options.MaxSkipRate)
}

// finish ends the epoch: with io.EOF, or because too many of its images were unusable.
func (e *epoch) finish() error {
	l := e.loader
	samples := max(e.place.Position, e.from.Samples) // fewer were seen when the last ones are dropped
	if err := l.archive.tooMany(e.bad, e.place.Skipped, samples, l.options.MaxSkipRate); err != nil {
		return err
	}
	return io.EOF
}

// tooMany is the error for more unusable images than the rate allows, or for no usable one. Otherwise it returns nil.
func (a *archive) tooMany(bad []*Error, skipped, samples int, rate float64) error {
	if skipped == 0 || skipped < samples && float64(skipped) <= rate*float64(samples) {
		return nil
	}
	reason := fmt.Sprintf("%d of %d images are unusable", skipped, samples)
	if skipped < samples {
		reason += fmt.Sprintf(", and Options.MaxSkipRate is %v", rate)
	}
	for i, b := range bad {
		reason += fmt.Sprintf("%s member %d (%s): %s", [...]string{":", ";"}[min(i, 1)], b.Member, printable(b.Name), b.Reason)
	}
	return &Error{Path: a.path, Kind: ErrBadMember, Reason: reason}
}

func (e *epoch) newBatch(b *buffer) *HostBatch {
	l := e.loader
	height, width, channels := l.pool.Size()
	return &HostBatch{
		Height: height, Width: width, Channels: channels, Names: make([]string, 0, l.ring.layout.batch),
		Epoch: e.place.Epoch, Index: e.place.Batch, ring: l.ring, buffer: b,
	}
}

// view gives the batch the part of the buffer that it fills.
func (b *HostBatch) view(memory *buffer) {
	b.Images = memory.images[:b.N*b.Height*b.Width*b.Channels]
	b.Labels = memory.labels[:b.N]
	b.Flip = unsafe.Slice((*bool)(unsafe.Pointer(unsafe.SliceData(memory.flips))), b.N)
}
