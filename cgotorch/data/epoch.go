package data

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/internal/panics"
)

// Note [Making batches]
//
//	reader     cuts the data into windows, see Note [Order of samples]
//	   | windows
//	planner    takes a free buffer for each batch, and names the samples of the batch
//	   | jobs
//	workers    read, map, pad and copy the samples of one batch each
//	   | job.done
//	consumer   takes the jobs in the planner's order. Release frees the buffer again
//
// A stage waits on its channel and on the context only. So the end of the context ends all stages.

// epoch makes the batches of one epoch.
type epoch struct {
	loader *Loader
	from   State
	ctx    context.Context
	cancel context.CancelCauseFunc

	windows chan *window
	jobs    chan *job // has room for every buffer
	ordered chan *job // has room for every buffer
	readErr error     // read it only after `windows` is closed
	err     error     // why `ordered` was closed early. Read it only after `ordered` is closed
	running sync.WaitGroup
	whole   bool // the consumer has had the last batch, and asked for the next one
}

// job is a batch in the making.
type job struct {
	parts  []part
	n      int
	index  int
	state  State
	buffer *buffer
	done   chan struct{} // closed when batch and err are set
	batch  *Batch
	err    error
}

// part is the samples `from` to `to` of this rank's share of a window.
type part struct {
	window   *window
	from, to int
}

// start starts the goroutines of an epoch. They run until the method `end`.
func (l *Loader) start(ctx context.Context, from State) *epoch {
	e := &epoch{
		loader: l, from: from, windows: make(chan *window, 1),
		jobs: make(chan *job, l.options.Buffers), ordered: make(chan *job, l.options.Buffers),
	}
	e.ctx, e.cancel = context.WithCancelCause(ctx)
	workers := min(l.options.Workers, l.options.Buffers)
	e.running.Add(2 + workers)
	go func() {
		defer e.running.Done()
		defer close(e.windows)
		panics.Run("the data set of a data.Loader", e.read, func(err error) { e.readErr = err })
	}()
	go func() {
		defer e.running.Done()
		defer close(e.ordered)
		defer close(e.jobs)
		panics.Run("the Pinner of a data.Loader", e.plan, func(err error) { e.err = err })
	}()
	for range workers {
		go e.work(newCollator(l))
	}
	return e
}

// end stops the goroutines, and gives back what the consumer did not take. After the whole epoch
// the loader's place is the start of the next one.
func (e *epoch) end() {
	e.cancel(context.Canceled)
	e.running.Wait()
	for j := range e.ordered {
		if j.batch != nil {
			j.batch.Release()
		}
	}
	l := e.loader
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = nil
	if e.whole {
		l.place = l.next
	}
	if l.closed {
		_ = l.ring.Close()
	}
}

// next waits for the next batch. It returns nil after the last batch.
func (e *epoch) next() (*Batch, error) {
	if e.ctx.Err() != nil {
		return nil, context.Cause(e.ctx)
	}
	select {
	case j, ok := <-e.ordered:
		if !ok {
			return nil, e.err
		}
		<-j.done // the worker ends soon, also when the context ends
		return j.batch, j.err
	case <-e.ctx.Done():
		return nil, context.Cause(e.ctx)
	}
}

// read sends the windows of the epoch to the planner.
func (e *epoch) read() error {
	send := func(w *window) error {
		select {
		case e.windows <- w:
			return nil
		case <-e.ctx.Done():
			return context.Cause(e.ctx)
		}
	}
	l := e.loader
	if l.stream != nil {
		return e.readWindows(l.stream, send)
	}
	w := &window{set: l.set, n: l.set.Len()}
	if table, ok := l.set.(*Table); ok {
		w.set, w.rows = nil, &table.rows
	}
	if l.options.Shuffle {
		w.order = permutation(w.n, e.from.Seed, e.from.Epoch, 0)
	}
	return send(w)
}

// plan cuts this rank's share of the windows into batches.
func (e *epoch) plan() error {
	o := &e.loader.options
	place := e.from
	skip := int(place.inWindow()) // samples of the first window that are over
	before := int(max(place.Before-place.Row, 0))
	var j *job
	none := true
	for w := range e.windows {
		if w.from = before; none && e.loader.stream != nil && place.begun(*o) && int64(w.n) != place.Window {
			return fmt.Errorf("data: the state's window has %d samples, and the data have %d there; restore with the data of the checkpoint: %w", place.Window, w.n, ErrInvalidState)
		}
		share := w.share(*o)
		if o.EachOnce {
			skip = min(skip, share) // the state is perhaps of a rank with one sample more
		}
		if skip > share {
			return fmt.Errorf("data: the state's position is %d, and its window of samples ends before: %w", e.from.Position, ErrInvalidState)
		}
		if !none && place.Before > place.Row {
			place.Before, place.Position = w.row, 0
		}
		none, before = false, 0
		if place.Row = w.row; e.loader.stream != nil {
			place.Window = int64(w.n)
		}
		for k := skip; k < share; {
			if j == nil {
				j = &job{done: make(chan struct{})}
			}
			to := min(share, k+o.BatchSize-j.n)
			j.parts = append(j.parts, part{w, k, to})
			j.n += to - k
			place.Position += int64(to - k)
			k = to
			if j.n == o.BatchSize {
				if err := e.send(j, &place); err != nil {
					return err
				}
				j = nil
			}
		}
		skip = 0
	}
	switch {
	case e.readErr != nil:
		return e.readErr
	case skip > 0, before > 0:
		return fmt.Errorf("data: the state's position is %d, and the data end before: %w", e.from.Position, ErrInvalidState)
	case j != nil && !o.DropLast:
		return e.send(j, &place)
	case e.from.Position == 0 && place.Batch == 0 && (none || !o.EachOnce):
		return o.empty(nameOf(e.loader.stream), place.Position)
	}
	return nil
}

// send gives a job a buffer, and gives the job to the workers.
func (e *epoch) send(j *job, place *State) (err error) {
	if j.buffer, err = e.takeBuffer(); err != nil {
		return err
	}
	j.index = place.Batch
	place.Batch++
	j.state = *place
	select {
	case e.ordered <- j: // waits only after the end of the context, when workers give buffers back that nobody took
	case <-e.ctx.Done():
		e.loader.ring.Give(j.buffer)
		return context.Cause(e.ctx)
	}
	e.jobs <- j // the workers take it, also after the end of the context
	return nil
}

const (
	shortestPatience, longestPatience = time.Second / 2, 4 * time.Second
	tellHeld                          = 10 * time.Second // when the log tells that the consumer holds all batches
)

// takeBuffer waits for a free buffer. It fails if the consumer has dropped all batches without a
// Release, because no buffer then comes back.
func (e *epoch) takeBuffer() (*buffer, error) {
	ring, began := e.loader.ring, time.Now()
	for patience := time.Duration(0); ; patience = min(max(2*patience, shortestPatience), longestPatience) {
		select {
		case b := <-ring.Free:
			ring.Taking(b)
			return b, nil
		default:
		}
		timer := time.NewTimer(patience)
		select {
		case b := <-ring.Free:
			timer.Stop()
			ring.Taking(b)
			return b, nil
		case <-e.ctx.Done():
			timer.Stop()
			return nil, context.Cause(e.ctx)
		case <-timer.C:
		}
		if patience == 0 || len(e.ordered) > 0 {
			continue // the consumer has batches to take
		}
		if err := e.lookForHeld(time.Since(began)); err != nil {
			return nil, err
		}
	}
}

// lookForHeld is called while the consumer has all batches, for the time `waited`. It fails if the
// consumer can release none of them any more. After a long time it tells, once for each loader.
func (e *epoch) lookForHeld(waited time.Duration) error {
	l := e.loader
	runtime.GC() // finds batches that are dropped
	if l.ring.AllLost() {
		return fmt.Errorf("data: all %d batches were dropped without Release, so there is no memory for the next; call Batch.Release", l.options.Buffers)
	}
	if waited >= tellHeld && !l.toldHeld.Swap(true) {
		slog.Warn("data: the loader waits for the memory of a batch, because the program holds all its batches: call Release on each batch, or raise Options.Buffers", "buffers", l.options.Buffers, "waited", waited)
	}
	return nil
}

// work makes batches until there are no more jobs.
func (e *epoch) work(c *collator) {
	over := false
	defer func() {
		if !over { // a function of the program has ended this goroutine
			go e.work(newCollator(e.loader))
			return
		}
		e.running.Done()
	}()
	for j := range e.jobs {
		e.make(c, j)
	}
	over = true
}

// make makes the batch of a job.
func (e *epoch) make(c *collator, j *job) {
	defer close(j.done)
	panics.Run("Options.Map, or Sample of the data set, of a data.Loader", func() (err error) {
		if e.ctx.Err() != nil {
			return context.Cause(e.ctx)
		}
		j.batch, err = c.batch(j, e)
		return err
	}, func(err error) {
		if j.err = err; err == nil {
			return
		}
		e.loader.ring.Give(j.buffer)
		if !errors.Is(err, context.Canceled) {
			j.err = fmt.Errorf("%w (batch %d of epoch %d)", err, j.index, e.from.Epoch)
		}
	})
}
