package imageloader

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"
	"unsafe"

	"github.com/streamtorch/streamtorch/imageloader/decode"
)

// A part is a number of items that are decoded into one buffer. If some of its images are
// unusable, images from the beginning of the next part take their places.
type part struct {
	buffer *buffer
	items  []item // items whose images are not in a batch yet
	done   chan struct{}

	// The fields below are valid after done is closed. results and bad have the order of the items.
	images  int // number of usable images
	results []decode.Result
	bad     []*Error // the fault of each item, nil for a usable image
	err     error    // an error that is not about an image
}

// assemble sends batches until the epoch ends. It then returns io.EOF.
func (e *epoch) assemble() error {
	for {
		size := min(e.loader.ring.layout.batch, e.left())
		if size == 0 {
			return e.finish()
		}
		e.cut(size)
		if len(e.parts) == 0 && e.ended && !e.canCut(size) {
			return e.finish()
		}
		if len(e.parts) == 0 {
			if err := e.wait(size, nil); err != nil {
				return err
			}
			continue
		}
		oldest := e.parts[0]
		select {
		case <-oldest.done:
			if err := e.complete(oldest, size); err != nil {
				return err
			}
		default:
			if err := e.wait(size, oldest.done); err != nil {
				return err
			}
		}
	}
}

// left returns the number of images that the epoch still needs. If the epoch takes all images of
// its part, the method returns the largest int.
func (e *epoch) left() int {
	o := e.loader.options
	if e.share.images == math.MaxInt {
		return math.MaxInt
	}
	left := e.share.images - (e.place.Position - e.place.Skipped)
	if o.DropLast {
		left -= left % o.BatchSize
	}
	return left
}

// planned returns how many images the parts in e.parts can give at most. A decoded part counts
// its usable images. A part that is still being decoded counts all its items.
func (e *epoch) planned() (images int) {
	for _, p := range e.parts {
		select {
		case <-p.done:
			images += p.images
		default:
			images += len(p.items)
		}
	}
	return images
}

// canCut reports whether the pending items are enough for a part. Only the last part may have
// fewer than `size` items. With DropLast, the last part needs BatchSize items too.
func (e *epoch) canCut(size int) bool {
	if o := e.loader.options; o.DropLast {
		return len(e.pending) >= o.BatchSize
	}
	return len(e.pending) >= size || e.ended && e.readErr == nil && len(e.pending) > 0
}

// depth returns the number of parts that are decoded at a time, at most Options.Buffers-1. Below
// this limit, the number is so large that every thread and the JPEGDevice have images. This holds
// even while the last images of a part are being decoded.
func (e *epoch) depth(size int) int {
	return min(1+(2*e.loader.pool.AtATime()+size-1)/size, e.loader.options.Buffers-1)
}

// cut begins the next parts, while there are enough items and a buffer.
func (e *epoch) cut(size int) {
	for e.spare != nil && (e.canCut(size) || e.early) {
		e.early = false
		n := min(size, len(e.pending), e.left()-e.planned())
		if n <= 0 {
			return
		}
		p := &part{buffer: e.spare, items: e.pending[:n:n]}
		e.pending, e.spare = e.pending[n:], nil
		e.parts = append(e.parts, p)
		e.decode(p, 0)
	}
}

// wait waits until the assembler can go on: until there are new items or a free buffer, or until
// a part is decoded.
func (e *epoch) wait(size int, done <-chan struct{}) error {
	l := e.loader
	var items chan []item
	if !e.ended && len(e.pending) < l.options.BatchSize {
		items = e.items
	}
	var free chan *buffer
	if e.spare == nil && len(e.parts) < max(e.depth(size), 1) {
		free = l.ring.Free
	}
	var short chan struct{}
	if len(e.parts) == 0 && len(e.pending) > 0 && e.spare != nil {
		short = e.short
	}
	var missing chan int
	wanted := 0
	if done == nil && len(e.items) == 0 && e.share.images < math.MaxInt {
		if wanted = e.left() - e.planned() - len(e.pending); wanted > 0 {
			missing = e.missing
		}
	}
	var dropped <-chan time.Time
	if done == nil && e.spare == nil {
		timer := time.NewTimer(e.patience)
		defer timer.Stop()
		dropped = timer.C
	}
	began := time.Now()
	select {
	case <-dropped:
		return e.lookForDropped()
	case <-short:
		e.early = true
	case missing <- wanted:
	case more, ok := <-items:
		e.ended = !ok
		e.pending = append(e.pending, more...)
	case b := <-free:
		e.patience = shortestPatience
		l.ring.Taking(b)
		e.spare = b
	case <-done:
	case <-e.ctx.Done():
		return context.Cause(e.ctx)
	}
	if done == nil {
		waited := time.Since(began)
		l.stats.update(func(s *Stats) {
			if e.spare == nil {
				s.WaitForBuffer += waited
			} else {
				s.WaitForSamples += waited
			}
		})
	}
	return nil
}

// decode starts to decode the items of p into the buffer of p, and does not wait. It begins at
// item number `first`. The images of earlier items are already in the buffer.
func (e *epoch) decode(p *part, first int) {
	l := e.loader
	p.done = make(chan struct{})
	images := make([]decode.Image, 0, len(p.items)-first)
	for _, it := range p.items[first:] {
		if it.bad == nil {
			images = append(images, decode.Image{Data: it.data, Key: e.random(forKeys, it), Sound: l.sound.of(it.number)})
		}
	}
	each := l.ring.layout.each
	to := p.buffer.Parts.images[p.images*each:][:len(images)*each]
	results := make([]decode.Result, len(images))
	go func() {
		defer close(p.done)
		p.err = l.pool.Decode(images, to, results)
		e.accept(p, first, results)
	}()
}

// random returns an image's random number of this epoch for one purpose.
func (e *epoch) random(p purpose, it item) uint64 {
	return random(e.place.Seed, e.place.Epoch, p, uint64(it.number))
}

// accept stores the results of the items of p, from item number `first` on. It moves the images
// together, so that unusable images leave no gaps.
func (e *epoch) accept(p *part, first int, results []decode.Result) {
	if p.err != nil {
		p.err = fmt.Errorf("imageloader: %s: %w", e.loader.archive.Path, p.err)
		return
	}
	each := e.loader.ring.layout.each
	next, at, bytes, onDevice := 0, p.images, 0, 0
	for i := first; i < len(p.items); i++ {
		it := &p.items[i]
		bad := it.bad
		var result decode.Result
		if bad == nil {
			bytes += len(it.data)
			result = results[next]
			if result.Sound != 0 {
				e.loader.sound.set(it.number, result.Sound)
			}
			if result.OnDevice {
				onDevice++
			}
			if bad, p.err = it.judge(&result); p.err != nil {
				return
			}
			if bad == nil {
				if p.images != at {
					copy(p.buffer.Parts.images[p.images*each:][:each], p.buffer.Parts.images[at*each:][:each])
				}
				p.images++
			}
			next++
			at++
			it.memory.release()
			it.data, it.memory = nil, nil
		}
		p.bad, p.results = append(p.bad, bad), append(p.results, result)
	}
	e.loader.stats.update(func(s *Stats) {
		s.Bytes += int64(bytes)
		s.OnDevice += onDevice
	})
}

// complete makes a batch of p, the oldest part, if p has enough images or can get no more. The
// decoding of p has ended before the call.
func (e *epoch) complete(p *part, size int) error {
	if p.err != nil {
		return p.err
	}
	for p.images < size {
		if len(e.parts) > 1 {
			if err := e.borrow(p, e.parts[1], size-p.images); err != nil {
				return err
			}
			continue
		}
		if len(e.pending) > 0 {
			n := min(size-p.images, len(e.pending))
			first := len(p.items)
			p.items = append(p.items, e.pending[:n]...)
			e.pending = e.pending[n:]
			e.decode(p, first)
			return nil
		}
		if p.images == 0 && e.share.images < math.MaxInt && len(p.items) >= e.share.own+places(e.share.again) {
			break // no image is usable, also none of those to repeat. The method `send` fails
		}
		if e.ended && e.readErr != nil {
			return e.readErr
		}
		if o := e.loader.options; e.ended && o.DropLast && len(p.items) < o.BatchSize { // the part was begun early and is too small
			e.parts = e.parts[1:]
			e.loader.ring.Give(p.buffer)
			return nil
		}
		if e.ended {
			break
		}
		if err := e.wait(size, nil); err != nil {
			return err
		}
	}
	return e.send(p)
}

// borrow moves up to n images from the beginning of the next part, `from`, to the part p.
func (e *epoch) borrow(p, from *part, n int) error {
	<-from.done //edge:decoded-before-borrowed TestEpoch_ManySkipped
	if from.err != nil {
		return from.err
	}
	each := e.loader.ring.layout.each
	items, moved := 0, 0
	for items < len(from.items) && moved < n {
		if from.bad[items] == nil {
			moved++
		}
		items++
	}
	copy(p.buffer.Parts.images[p.images*each:], from.buffer.Parts.images[:moved*each])
	copy(from.buffer.Parts.images, from.buffer.Parts.images[moved*each:from.images*each])
	p.images, from.images = p.images+moved, from.images-moved
	p.items, from.items = append(p.items, from.items[:items]...), from.items[items:]
	p.bad, from.bad = append(p.bad, from.bad[:items]...), from.bad[items:]
	p.results, from.results = append(p.results, from.results[:items]...), from.results[items:]
	if len(from.items) == 0 {
		e.parts = append(e.parts[:1], e.parts[2:]...)
		e.loader.ring.Give(from.buffer) //edge:emptied-part-goes-back TestEpoch_ManySkipped
	}
	return nil
}

// send sends the oldest part as a batch and counts its unusable images.
func (e *epoch) send(p *part) error {
	batch := e.newBatch(p.buffer)
	for i, it := range p.items {
		e.place.Position++
		if bad := p.bad[i]; bad != nil {
			if err := e.skip(bad); err != nil {
				batch.lost.Stop()
				return err
			}
			continue
		}
		p.buffer.Parts.labels[batch.N], p.buffer.Parts.flips[batch.N] = int64(it.label), 0
		if p.results[i].Flip {
			p.buffer.Parts.flips[batch.N] = 1
		}
		batch.Names = append(batch.Names, it.name)
		batch.Keys = append(batch.Keys, e.random(forBatches, it))
		batch.N++
	}
	e.parts = e.parts[1:]
	if batch.N == 0 || e.loader.options.DropLast && batch.N < e.loader.options.BatchSize {
		batch.lost.Stop()            // nobody gets the batch
		e.loader.ring.Give(p.buffer) //edge:empty-batch-goes-back TestEpoch_ManySkipped
		return nil
	}
	e.place.Batch++
	batch.State = e.place
	batch.skipped, e.skips = e.skips, nil
	batch.view(p.buffer)
	e.full <- batch // does not wait, because the channel `full` has room for all buffers of the ring
	return nil
}

// abandon is called when the assembler ends. It waits for the parts that are being decoded. It
// then gives back the buffers and items that the assembler still has.
func (e *epoch) abandon() {
	for _, p := range e.parts {
		<-p.done //edge:abandon-waits-for-decoding TestEpoch_LeftEarly_WaitsForDecoding
		drop(p.items)
		e.loader.ring.Give(p.buffer) //edge:abandoned-part-goes-back TestEpoch_LeftEarly
	}
	if e.spare != nil {
		e.loader.ring.Give(e.spare) //edge:unfilled-buffer-goes-back TestEpoch_LeftEarly
	}
	drop(e.pending)
	e.parts, e.spare, e.pending = nil, nil, nil
}

// finish returns the outcome of the epoch: io.EOF, the reader's error, or the error for too many
// unusable images.
func (e *epoch) finish() error {
	l := e.loader
	if e.ended && e.readErr != nil {
		return e.readErr
	}
	samples := max(e.place.Position, e.samples) // with DropLast, Position does not count the last images
	if err := l.tooMany(e.bad, e.before, e.unusable, samples, l.options.mayBeNone()); err != nil {
		return err
	}
	return io.EOF
}

// view points the slices of the batch at the filled part of `memory`, the buffer of the batch.
func (b *HostBatch) view(memory *buffer) {
	b.Images = memory.Parts.images[:b.N*b.Height*b.Width*b.Channels]
	b.Labels = memory.Parts.labels[:b.N]
	b.Flip = unsafe.Slice((*bool)(unsafe.Pointer(unsafe.SliceData(memory.Parts.flips))), b.N)
}
