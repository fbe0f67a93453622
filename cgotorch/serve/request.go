package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/panics"
)

// request is a call of Predict, or of Update.
type request struct {
	ctx      context.Context
	priority int
	entries  int
	length   int64 // one of Options.Lengths
	own      int64 // the size of all dimensions of -1; 0 if they differ
	inputs   []Array
	encoded  bool                         // an input has files
	pixels   [][][]byte                   // of each input: the decoded pixels of its files
	update   func(x *cgotorch.Exec) error // of an Update, which has no entries
	since    time.Time
	taken    time.Time // when a batch took the request
	alone    bool      // a batch with this request has failed

	copied chan struct{} // closed when the inputs are not read any more
	done   chan struct{}
	out    []Array
	err    error
}

type priorityKey struct{}

// WithPriority returns a context whose requests go before waiting ones of a lower priority. It is
// 0 without this function. A request of a low priority waits as long as others come: give it a
// deadline.
func WithPriority(ctx context.Context, priority int) context.Context {
	return context.WithValue(ctx, priorityKey{}, priority)
}

func newRequest(ctx context.Context) *request {
	priority, _ := ctx.Value(priorityKey{}).(int)
	return &request{ctx: ctx, priority: priority, copied: make(chan struct{}), done: make(chan struct{})}
}

// request returns the request for the inputs, if they fit.
func (b *Batcher) request(ctx context.Context, inputs []Array) (*request, error) {
	if len(inputs) != len(b.o.Inputs) {
		return nil, fmt.Errorf("serve: %d inputs, want %d: %w", len(inputs), len(b.o.Inputs), cgotorch.ErrInvalidArgument)
	}
	r := newRequest(ctx)
	r.inputs = inputs
	for i, in := range b.o.Inputs {
		n, length, err := in.entries(inputs[i])
		if err != nil {
			return nil, err
		}
		if i > 0 && n != r.entries {
			return nil, in.refuse("has %d entries, and input %q has %d", n, b.o.Inputs[0].Name, r.entries)
		}
		r.entries, r.length = n, max(r.length, length)
		r.encoded = r.encoded || inputs[i].Files != nil
	}
	if r.entries > b.MaxEntries() {
		return nil, fmt.Errorf("serve: %d entries, at most %d are computed at once: divide the request: %w", r.entries, b.MaxEntries(), cgotorch.ErrInvalidArgument)
	}
	i, _ := slices.BinarySearch(b.o.Lengths, r.length)
	if i == len(b.o.Lengths) {
		return nil, fmt.Errorf("serve: the request has the length %d, and Options.Lengths ends with %d: %w", r.length, b.o.Lengths[i-1], cgotorch.ErrInvalidArgument)
	}
	r.own, r.length = r.length, b.o.Lengths[i]
	for k, in := range b.o.Inputs {
		for i, d := range in.Shape {
			if d < 0 && inputs[k].Shape[i+1] != r.own {
				r.own = 0
			}
		}
	}
	return r, nil
}

func isUpdate(r *request) bool { return r.update != nil }

// admit counts a request as waiting, if it is not refused. The caller holds b.mu.
func (b *Batcher) admit(r *request) error {
	if err := context.Cause(r.ctx); err != nil {
		return err
	}
	now := time.Now()
	b.policy.restore(now)
	switch {
	case b.lost != nil:
		return b.lost
	case b.closed:
		return fmt.Errorf("serve: the Batcher is %w", cgotorch.ErrClosed)
	case !isUpdate(r) && r.entries > b.policy.largest(r.length):
		return b.tooLarge(r)
	case !isUpdate(r) && b.waiting > 0 && b.waiting+r.entries > b.o.Queue:
		b.stats.Refused++
		return fmt.Errorf("serve: %d entries wait: %w", b.waiting, ErrQueueFull)
	}
	r.since = now
	b.waiting += r.entries
	return nil
}

// enqueue puts a request into the queue, if it is not refused.
func (b *Batcher) enqueue(r *request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.admit(r); err != nil {
		return err
	}
	b.insert(r)
	return nil
}

// insert puts a request behind those of its priority, and never before an Update. The caller holds
// b.mu.
func (b *Batcher) insert(r *request) {
	at := len(b.queue)
	for at > 0 && !isUpdate(r) && !isUpdate(b.queue[at-1]) && b.queue[at-1].priority < r.priority {
		at--
	}
	b.queue = slices.Insert(b.queue, at, r)
	if isUpdate(r) {
		b.updates++
	}
	b.wake()
}

// left counts a request that has left the queue, or is about to. The caller holds b.mu.
func (b *Batcher) left(r *request) {
	b.waiting -= r.entries
	if isUpdate(r) {
		b.updates--
	}
}

// decode decodes the files of a request, which then waits in the queue. Close waits for it.
func (b *Batcher) decode(r *request) (err error) {
	b.mu.Lock()
	if err := b.admit(r); err != nil {
		b.mu.Unlock()
		return err
	}
	b.decoded.Add(1)
	b.mu.Unlock()
	defer b.decoded.Done()

	r.inputs = slices.Clone(r.inputs)
	r.pixels = make([][][]byte, len(r.inputs))
	for i, in := range r.inputs {
		if in.Files != nil && err == nil {
			r.pixels[i], err = b.decoders[i].decode(r.ctx, in.Files)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		err = b.lost
	}
	if err == nil {
		b.insert(r)
		return nil
	}
	b.waiting -= r.entries
	switch {
	case context.Cause(r.ctx) != nil:
		b.stats.Dropped++
	case errors.Is(err, ErrNotDecoded) && !errors.As(err, new(*panics.Panic)): // the caller's file is broken
	default:
		b.stats.Failed++
	}
	return err
}

// giveBack gives the memory of decoded pixels back. No batch reads it any more.
func (b *Batcher) giveBack(r *request) {
	for i, pixels := range r.pixels {
		if pixels != nil {
			b.decoders[i].give(pixels)
		}
	}
}

// await waits for the answer, or until the request's context ends. An Update whose function has
// begun is awaited in any case: it changes the weights.
func (b *Batcher) await(r *request) error {
	select {
	case <-r.done:
		return r.outcome()
	case <-r.ctx.Done():
	}
	b.mu.Lock()
	if i := slices.Index(b.queue, r); i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
		b.left(r)
		b.dropped(r)
		b.wake()
		b.mu.Unlock()
		return context.Cause(r.ctx)
	}
	copied := r.copied // a batch that is tried again has a new channel
	b.mu.Unlock()
	if isUpdate(r) {
		<-r.done
		return r.outcome()
	}
	<-copied
	return context.Cause(r.ctx)
}

// outcome returns the error of a request that is done, or raises the panic of its function.
func (r *request) outcome() error {
	panics.Raise(r.err)
	return r.err
}

// dropped ends a request whose context has ended while it waited. The caller holds b.mu.
func (b *Batcher) dropped(r *request) {
	if !isUpdate(r) {
		b.stats.Dropped++
	}
	r.err = context.Cause(r.ctx)
	close(r.copied)
	close(r.done)
}

// wake tells the dispatcher that something has changed.
func (b *Batcher) wake() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// tooLarge is the error of a request for which the memory does not suffice at the moment. The
// caller holds b.mu.
func (b *Batcher) tooLarge(r *request) error {
	return fmt.Errorf("serve: %d entries, at most %d fit the device's memory at once: divide the request: %w", r.entries, b.policy.largest(r.length), cgotorch.ErrOutOfMemory)
}
