package imageloader

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/imageloader/internal/archive"
	"github.com/streamtorch/streamtorch/internal/panics"
	"github.com/streamtorch/streamtorch/internal/ring"
)

// Note [Pipeline]
//
//	reader goroutine      sequence.run: archive -> items, in the epoch's order. Other
//	   |                  goroutines read ahead for it
//	   | items            a channel
//	assembler goroutine   cuts the items into parts of a batch's size. Where images of a part
//	   |                  are unusable, images of the next part take their places
//	   | parts            decoded on goroutines of their own, a few parts at a time, each part
//	   |                  into a free buffer
//	   | full             a channel
//	consumer              calls next, in the loop of Loader.Epoch. Release frees the buffer again
//
// The batches are the sequence of the usable images, cut into pieces of BatchSize. A stage that
// cannot go on waits on its channel and on the context, never on anything else. So the end of the
// context ends all stages. Parts that are being decoded are decoded to their end.

// epoch is the pipeline of one epoch.
type epoch struct {
	loader *Loader
	from   State
	share  share // what this rank delivers
	ctx    context.Context
	cancel context.CancelCauseFunc

	// samples is the number of images of this rank in a whole epoch, 0 while it is not known.
	// Options.Reading.MaxSkipRate is a share of it.
	samples int

	items   chan []item
	readErr error         // why the channel `items` was closed early. Read this field only after the channel is closed
	short   chan struct{} // the reader offers a value here while it waits for images to be decoded
	missing chan int      // with ranks: number of images to send again in place of unusable images

	full chan *HostBatch
	err  error // why the channel `full` was closed early. Read this field only after the channel is closed

	running   sync.WaitGroup
	draining  sync.Mutex
	assembled bool // all batches are made. Guarded by the loader's mutex
	whole     bool // the consumer has had all batches

	// The assembler uses the fields below.
	place    State    // the position after the batches so far
	unusable int      // number of the rank's images that were skipped, each counted once
	before   int      // number of these that were skipped before the state of the epoch's start
	bad      []*Error // the first few skipped images
	skips    []*Error // images skipped after the latest batch. The consumer takes them after the channel `full` is closed
	pending  []item   // items that are not cut into parts yet
	ended    bool     // no more items will come
	parts    []*part  // parts that are being decoded or wait to be completed, in order
	spare    *buffer  // a buffer for the next part
	// `early` is true while the reader waits for the memory of the pending items. These items are
	// then decoded although they are too few for a part.
	early bool
	// patience is how long the assembler waits for a buffer before it looks for dropped batches.
	// `told` is true after the log has a line on held batches.
	patience time.Duration
	told     bool
}

// start starts the pipeline at a state. The pipeline runs until the function `stop` is called.
// The caller holds the loader's mutex.
func (l *Loader) start(from State) *epoch {
	e := &epoch{
		loader: l, from: from, share: from.share(l.options), samples: l.options.division().images(from.Samples, l.options.Ranks.Rank), place: from, items: make(chan []item, 2*max(l.ring.layout.batch/sendItems, 1)),
		full: make(chan *HostBatch, l.options.Buffers), short: make(chan struct{}), missing: make(chan int),
		patience: shortestPatience,
	}
	l.running[e] = true //edge:close-waits-epochs TestLoader_Close_WhileLeaving
	e.before = max(from.Skipped-max(from.Position-e.share.own, 0), 0)
	e.unusable = e.before
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	e.running.Add(2)
	go func() {
		defer e.running.Done()
		defer close(e.items)
		e.readErr = e.read()
	}()
	go func() {
		defer e.running.Done()
		defer close(e.full)
		panics.Run("the Pinner of a loader", e.assemble, func(err error) {
			if e.err = err; err == io.EOF {
				e.err = nil
				l.readAhead(e)
			}
			e.abandon()
		})
	}()
	return e
}

// read sends the items of the epoch to the assembler.
func (e *epoch) read() error {
	l := e.loader
	index := l.index.Load()
	streamed := l.streamsFirst && e.from.Epoch == 0 && e.share.firstOfOne && l.options.Train || !index.IsWhole() && !l.options.Train
	if !index.IsWhole() && !streamed {
		var err error
		if index, err = l.archive.Index(e.ctx, true); err != nil {
			return err
		}
		l.adopt(index)
	}
	if index.IsWhole() {
		if err := e.checkSamples(index); err != nil {
			return err
		}
	}
	s := &sequence{
		ctx: e.ctx, archive: l.archive, index: index, options: l.options, memory: l.memory, from: e.from, share: e.share,
		streamed: streamed, workers: l.pool.Workers() + 1, out: e.items, short: e.short, missing: e.missing,
	}
	made, err := s.run()
	if err == nil && made != nil {
		l.adopt(made)
		if e.from.Ranks != "" || e.from.Position > 0 {
			err = e.checkSamples(made)
		}
	}
	return err
}

// checkSamples fails if the archive has another number of images than the state of the epoch. If
// the number was not known, Restore did not check it.
func (e *epoch) checkSamples(x *archive.Index) error {
	if e.from.Samples == 0 || e.from.Samples == len(x.Samples) {
		return nil
	}
	_, err := e.from.startFor(e.loader.options, len(x.Samples))
	return e.loader.fail(fmt.Sprintf("cannot continue from the restored state: %v", err), ErrInvalidState)
}

// stop ends the pipeline, waits for its goroutines, and releases the batches that the consumer
// did not take. Several goroutines may call stop, and more than once.
func (e *epoch) stop(cause error) {
	e.cancel(cause)
	e.running.Wait()
	e.draining.Lock() // no call returns while another one still gives memory back
	defer e.draining.Unlock()
	for items := range e.items {
		drop(items)
	}
	for batch := range e.full {
		batch.Release() //edge:untaken-batch-goes-back TestLoader_Close_Anywhere
	}
}

// next waits for a batch. After the last batch it returns io.EOF.
func (e *epoch) next(ctx context.Context) (*HostBatch, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if e.ctx.Err() != nil {
		return nil, context.Cause(e.ctx)
	}
	var batch *HostBatch
	var ok bool
	ready, began := len(e.full), time.Now()
	select {
	case batch, ok = <-e.full:
	case <-e.ctx.Done():
	case <-ctx.Done():
	}
	waited := time.Since(began)
	e.loader.stats.update(func(s *Stats) { s.ConsumerWait += waited })
	switch {
	case ok:
		e.loader.stats.skip(batch.skipped)
		e.loader.stats.update(func(s *Stats) { s.Batches++; s.Samples += batch.N; s.Ready += ready })
		return batch, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case e.ctx.Err() != nil:
		return nil, context.Cause(e.ctx)
	}
	e.loader.stats.skip(e.skips)
	e.skips = nil
	if e.err != nil {
		return nil, e.err
	}
	return nil, io.EOF
}

// skip counts an unusable image. It fails if more images are unusable than
// Options.Reading.MaxSkipRate allows.
func (e *epoch) skip(bad *Error) error {
	l := e.loader
	e.place.Skipped++
	if l.options.Reading.MaxSkipRate == 0 {
		return archive.Fatal(bad)
	}
	repeated := e.place.Position - e.share.own
	if repeated > 0 && len(e.share.again) > 0 && repeated >= places(e.share.again) && e.place.Skipped == e.place.Position {
		return l.tooMany([]*Error{bad}, 0, e.samples, e.samples, false) // else it would repeat forever
	}
	if e.share.repeats(e.place.Position - 1) {
		return nil // this rank has skipped the image before
	}
	e.skips = append(e.skips, bad)
	if repeated > 0 {
		return nil // it counts against the rate of the rank that has it in its part
	}
	e.unusable++
	if len(e.bad) < maxExamples {
		e.bad = append(e.bad, bad)
	}
	if e.samples == 0 {
		return nil // the number of images is not known, so the function `finish` checks the rate
	}
	return l.tooMany(e.bad, e.before, e.unusable, e.samples, l.options.mayBeNone())
}

// mayBeNone reports whether it is no fault if none of a rank's images is usable.
func (o Options) mayBeNone() bool { return o.Ranks.EachOnce && o.Ranks.World > 1 }

// tooMany returns the error for more unusable images than the rate allows, or for no usable
// image. In all other cases it returns nil. `before` is the number of skipped images that an
// earlier run found. They are not in `bad`. If mayBeNone is true, the rate alone counts.
func (l *Loader) tooMany(bad []*Error, before, skipped, samples int, mayBeNone bool) error {
	rate, path := l.options.Reading.MaxSkipRate, l.archive.Path
	if skipped == 0 || (skipped < samples || mayBeNone) && float64(skipped) <= rate*float64(samples) {
		return nil
	}
	reason := fmt.Sprintf("%d of %d images are unusable", skipped, samples)
	if skipped < samples || mayBeNone {
		reason += fmt.Sprintf(", and Options.Reading.MaxSkipRate is %v", rate)
	}
	if before > 0 {
		reason += fmt.Sprintf(" (%d of them were found before the State was saved, and Stats.Examples of that run names some)", before)
	}
	for i, b := range bad {
		of := ""
		if b.Path != path {
			of = b.Path + ": "
		}
		reason += fmt.Sprintf("%s %smember %d (%s): %s", [...]string{":", ";"}[min(i, 1)], of, b.Member, archive.Printable(b.Name), b.Reason)
	}
	return &Error{Path: path, Kind: ErrBadMember, Reason: reason}
}

func (e *epoch) newBatch(b *buffer) *HostBatch {
	l := e.loader
	height, width, channels := l.pool.Size()
	batch := &HostBatch{
		Height: height, Width: width, Channels: channels, Names: make([]string, 0, l.ring.layout.batch), Keys: make([]uint64, 0, l.ring.layout.batch),
		Epoch: e.place.Epoch, Index: e.place.Batch, ring: l.ring, buffer: b,
	}
	batch.lost = runtime.AddCleanup(batch, (*ring.Ring[arrays]).Lose, l.ring.Ring)
	return batch
}
