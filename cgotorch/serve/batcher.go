// Package serve answers single requests of many goroutines with a model that runs in batches.
//
// A [Batcher] gathers the requests that wait while the device computes the batch before. So a
// request that comes to an idle device is computed at once, and under load the batches grow.
//
//	image := serve.Input{Name: "image", DType: cgotorch.Uint8, Shape: []int64{224, 224, 3}}
//	b, err := serve.New(device, forward, serve.Options{Inputs: []serve.Input{image}})
//	...
//	out, err := b.Predict(ctx, serve.Of(pixels, 1, 224, 224, 3))
//
// No Exec and no Tensor crosses: a request and its answer are Arrays in Go memory.
package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/panics"
)

// ErrQueueFull means that as many entries wait as [Options.Queue] allows. The request was not
// begun, and may be tried again later.
var ErrQueueFull = errors.New("the queue is full")

// Options are the options of [New].
type Options struct {
	Inputs []Input // the inputs of the served function, in its order
	// BatchSizes are the sizes for which graphs are made on a GPU. A batch is padded to the next of
	// them. On the CPU a batch has any size up to the largest. Empty means 1, 2, 4, 8, 16 and 32. A
	// size for which the memory does not suffice is given up, with all larger ones.
	BatchSizes []int
	// MaxDelay is the longest time for which a request waits for others while the device has nothing
	// to do. 0 means that it does not wait.
	MaxDelay time.Duration
	Queue    int               // most entries that wait; 0 means 16 of the largest batches
	Autocast cgotorch.DType    // as in [cgotorch.Exec.Autocast]; 0 means none
	Log      func(text string) // is told what is captured, and why a batch size is dropped; may be nil
}

// Batcher computes requests in batches on one device. Its methods may be called from any
// goroutine, outside a Do.
type Batcher struct {
	o        Options
	each     []int // bytes of an entry of each input
	device   cgotorch.Device
	compute  *cgotorch.Stream
	copies   *cgotorch.Stream
	captured *cgotorch.Captured
	slots    []*slot
	free     chan *slot // slots that no batch uses
	ended    chan struct{}
	answers  sync.WaitGroup // batches whose answers are not delivered yet

	mu       sync.Mutex
	policy   policy
	queue    []*request // in order of arrival
	inFlight []int      // the sizes of the batches on the device, in their order
	waiting  int        // entries in the queue
	changed  chan struct{}
	closed   bool
	lost     error // why nothing can be computed any more, or nil
	stats    Stats
}

// request is a call of Predict, or of Update.
type request struct {
	ctx     context.Context
	entries int
	inputs  []Array
	update  func(x *cgotorch.Exec) error // of an Update, which has no entries
	since   time.Time
	alone   bool // a batch with this request has failed

	copied chan struct{} // closed when the inputs are not read any more
	done   chan struct{}
	out    []Array
	err    error
}

// Stats counts a Batcher's work.
type Stats struct {
	Requests, Entries int64         // that were computed
	Failed            int64         // requests for which the function or the device failed
	Batches           int64         // batches that were computed
	Refused, Dropped  int64         // requests for which the queue was full, and requests that ended while they waited
	Took              time.Duration // from the call to the answer, of all computed requests together
	Waiting           int           // entries in the queue now
	Sizes             []int         // batch sizes in use
}

// New returns a Batcher of fn, and captures fn for each batch size. It waits for the device. fn
// gets one tensor for each of Options.Inputs, with the batch in the first dimension. Its results
// have the batch in the first dimension too, and each entry of a result depends on the same entry
// of the inputs alone. So a model must be in evaluation mode. New calls fn with zeros, and batches
// are padded with zeros. The caller must close the Batcher.
//
// New fails with [cgotorch.ErrInvalidArgument] for bad options, with [cgotorch.ErrOutOfMemory] if
// there is no memory for the inputs of two of the largest batches or to compute the smallest one,
// and as fn fails.
func New(device cgotorch.Device, fn func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor, o Options) (*Batcher, error) {
	o, err := o.complete(fn != nil)
	if err != nil {
		return nil, err
	}
	if err := device.Synchronize(); err != nil {
		return nil, err
	}
	b := &Batcher{o: o, device: device, free: make(chan *slot, slotCount), ended: make(chan struct{}), changed: make(chan struct{}, 1)}
	for _, in := range o.Inputs {
		b.each = append(b.each, in.bytes())
	}
	b.captured = cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		x = x.NoGrad()
		if o.Autocast != 0 {
			x = x.Autocast(o.Autocast)
		}
		return fn(x, in...)
	}, cgotorch.CapturedOptions{WarmUp: 1, InPlace: true, MaxGraphs: slotCount * len(o.BatchSizes), Log: o.Log})
	if err := b.open(); err != nil {
		b.release()
		return nil, err
	}
	go b.run()
	return b, nil
}

const mostEntries = 1 << 16 // of a batch

func (o Options) complete(hasFunction bool) (Options, error) {
	refuse := func(format string, args ...any) (Options, error) {
		return o, fmt.Errorf("serve: New: %s: %w", fmt.Sprintf(format, args...), cgotorch.ErrInvalidArgument)
	}
	if !hasFunction {
		return refuse("the function is nil; give the function to serve")
	}
	if len(o.Inputs) == 0 {
		return refuse("Options.Inputs is empty; describe each input of the function")
	}
	for i, in := range o.Inputs {
		if in.DType.Size() == 0 || slices.ContainsFunc(in.Shape, func(d int64) bool { return d < 1 }) {
			return refuse("input %d, %q, is %v of shape %v; want a dtype, and sizes above 0", i, in.Name, in.DType, in.Shape)
		}
	}
	o.Inputs = slices.Clone(o.Inputs)
	for i := range o.Inputs {
		o.Inputs[i].Shape = slices.Clone(o.Inputs[i].Shape)
	}
	o.BatchSizes = slices.Clone(o.BatchSizes)
	if len(o.BatchSizes) == 0 {
		o.BatchSizes = []int{1, 2, 4, 8, 16, 32}
	}
	slices.Sort(o.BatchSizes)
	o.BatchSizes = slices.Compact(o.BatchSizes)
	if o.BatchSizes[0] < 1 || o.BatchSizes[len(o.BatchSizes)-1] > mostEntries {
		return refuse("BatchSizes is %v; sizes are 1 to %d", o.BatchSizes, mostEntries)
	}
	if o.MaxDelay < 0 || o.Queue < 0 {
		return refuse("MaxDelay is %v and Queue is %d; neither may be below 0", o.MaxDelay, o.Queue)
	}
	if o.Queue == 0 {
		o.Queue = 16 * o.BatchSizes[len(o.BatchSizes)-1]
	}
	return o, nil
}

// Predict computes the function for the entries of the inputs, which are its Options.Inputs in
// order. Each has the shape of its Input with the number of entries before it. Predict waits for
// the answer, without an OS thread. The inputs may be changed after the return. The results belong
// to the caller.
//
// Predict fails with [cgotorch.ErrInvalidArgument] for inputs that do not fit, with [ErrQueueFull],
// with [cgotorch.ErrClosed] after Close, with [cgotorch.ErrDeviceLost], and with the cause of ctx's
// end. A request whose ctx ends while it waits is never computed. If the function fails for a
// batch, each of its requests is computed alone, and Predict fails as the function does. A panic of
// the function is raised again here.
func (b *Batcher) Predict(ctx context.Context, inputs ...Array) ([]Array, error) {
	r, err := b.request(ctx, inputs)
	if err != nil {
		return nil, err
	}
	if err := b.enqueue(r); err != nil {
		return nil, err
	}
	if err := b.await(r); err != nil {
		return nil, err
	}
	return r.out, nil
}

// Update runs fn in a Do between two batches. Answers to requests before it do not see what fn
// changes, and all later answers do: fn may copy new weights over the old ones. Update waits
// until fn has returned, or until ctx ends before fn begins. It fails as fn does, and as Predict
// fails.
func (b *Batcher) Update(ctx context.Context, fn func(x *cgotorch.Exec) error) error {
	if fn == nil {
		return fmt.Errorf("serve: Update: the function is nil; give one that changes the weights: %w", cgotorch.ErrInvalidArgument)
	}
	r := &request{ctx: ctx, update: fn, copied: make(chan struct{}), done: make(chan struct{})}
	if err := b.enqueue(r); err != nil {
		return err
	}
	return b.await(r)
}

func (b *Batcher) request(ctx context.Context, inputs []Array) (*request, error) {
	if len(inputs) != len(b.o.Inputs) {
		return nil, fmt.Errorf("serve: %d inputs, want %d: %w", len(inputs), len(b.o.Inputs), cgotorch.ErrInvalidArgument)
	}
	r := &request{ctx: ctx, inputs: inputs, copied: make(chan struct{}), done: make(chan struct{})}
	for i, in := range b.o.Inputs {
		n, err := in.entries(inputs[i])
		if err != nil {
			return nil, err
		}
		if i > 0 && n != r.entries {
			return nil, in.refuse("has %d entries, and input %q has %d", n, b.o.Inputs[0].Name, r.entries)
		}
		r.entries = n
	}
	if most := b.o.BatchSizes[len(b.o.BatchSizes)-1]; r.entries > most {
		return nil, fmt.Errorf("serve: %d entries, at most %d are computed at once: divide the request: %w", r.entries, most, cgotorch.ErrInvalidArgument)
	}
	return r, nil
}

func isUpdate(r *request) bool { return r.update != nil }

func (b *Batcher) enqueue(r *request) error {
	if err := context.Cause(r.ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.lost != nil:
		return b.lost
	case b.closed:
		return fmt.Errorf("serve: the Batcher is %w", cgotorch.ErrClosed)
	case r.entries > b.policy.largest():
		return b.tooLarge(r)
	case b.waiting > 0 && b.waiting+r.entries > b.o.Queue:
		b.stats.Refused++
		return fmt.Errorf("serve: %d entries wait: %w", b.waiting, ErrQueueFull)
	}
	r.since = time.Now()
	b.queue = append(b.queue, r)
	b.waiting += r.entries
	b.wake()
	return nil
}

// await waits for the answer, or until the request's context ends.
func (b *Batcher) await(r *request) error {
	select {
	case <-r.done:
		panics.Raise(r.err)
		return r.err
	case <-r.ctx.Done():
	}
	b.mu.Lock()
	if i := slices.Index(b.queue, r); i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
		b.waiting -= r.entries
		b.dropped(r)
		b.wake()
		b.mu.Unlock()
		return context.Cause(r.ctx)
	}
	copied := r.copied // a batch that is tried again has a new channel
	b.mu.Unlock()
	<-copied
	return context.Cause(r.ctx)
}

// dropped counts a request that has ended while it waited. The caller holds b.mu.
func (b *Batcher) dropped(r *request) {
	if !isUpdate(r) {
		b.stats.Dropped++
	}
}

// wake tells the dispatcher that something has changed.
func (b *Batcher) wake() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// Stats returns the counts so far.
func (b *Batcher) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Waiting, s.Sizes = b.waiting, slices.Clone(b.policy.sizes)
	return s
}

// Err returns why the Batcher can compute nothing any more, such as [cgotorch.ErrDeviceLost], or
// nil. A server is not ready after that.
func (b *Batcher) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

// Memory returns the number of bytes on the device that the graphs hold.
func (b *Batcher) Memory() (int64, error) { return b.captured.Memory() }

// Close refuses new requests, waits until all earlier ones are answered, and frees the Batcher. A
// second Close waits too.
func (b *Batcher) Close() error {
	if b == nil || b.ended == nil {
		return nil
	}
	b.mu.Lock()
	b.closed = true
	b.wake()
	b.mu.Unlock()
	<-b.ended
	return nil
}
