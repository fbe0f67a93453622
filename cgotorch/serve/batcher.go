// Package serve answers single requests of many goroutines with a model that runs in batches.
//
// A [Batcher] gathers the requests that wait while the device computes the batch before. So a
// request that comes to an idle device is computed at once, and under load the batches grow.
//
//	image := serve.Spec{Name: "image", DType: cgotorch.Uint8, Shape: []int64{224, 224, 3}}
//	b, err := serve.New(device, forward, serve.Options{Inputs: []serve.Spec{image}})
//	...
//	out, err := b.Predict(ctx, serve.Of(pixels, 1, 224, 224, 3))
//
// No Exec and no Tensor crosses: a request and its answer are Arrays in Go memory. A request may
// also hold encoded images, for an input with a Decoder. A [Repository] has several models.
package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/pace"
	"github.com/streamtorch/streamtorch/internal/panics"
)

// ErrQueueFull means that as many entries wait as [Options.Queue] allows. The request was not
// begun, and may be tried again later.
var ErrQueueFull = errors.New("the queue is full")

// ErrModel means that the model's function has failed, or the device while it computed. The cause
// is wrapped too.
var ErrModel = errors.New("the model has failed")

// Options are the options of [New].
type Options struct {
	Inputs  []Spec   // the inputs of the served function, in its order
	Outputs []string // names of its results; a missing or empty one is output0, output1 and so on
	// Lengths are the lengths to which an input's dimensions of -1 are padded. All such dimensions of
	// a request are padded to one of them, and a batch has one length. Results are of this length
	// too: they are not cut without Unpad.
	Lengths []int64
	// Unpad cuts results to the length of their request, in dimensions that are as long as the padded
	// request. These are known where there are two or more Lengths. A request whose own dimensions of
	// -1 have different sizes has no one length, and its results are not cut.
	Unpad bool
	// BatchSizes are the sizes for which graphs are made on a GPU. A batch is padded to the next of
	// them. On the CPU a batch has any size up to the largest. Empty means 1, 2, 4, 8, 16 and 32. If
	// the memory does not suffice for a size, it is given up with all larger ones. They are tried
	// again after 10 seconds, and then after twice that time.
	BatchSizes []int
	Pad        bool // pad batches on the CPU too, for a function that takes no other sizes
	// MaxDelay is the longest time for which a request waits for others while the device has nothing
	// to do. 0 means that it does not wait.
	MaxDelay time.Duration
	Queue    int            // most entries that wait; 0 means 16 of the largest batches
	Autocast cgotorch.DType // as in [cgotorch.Exec.Autocast]; 0 means none
	// Samples are entries, two or more, for each input, as for [Batcher.Predict] but without Files.
	// New compares their results alone and among others. Without Samples it takes random numbers from
	// 0 to 1, random pixels for a Decoder, and zeros for other integers and bools. Equal entries, as
	// zeros are, hide a dependence.
	Samples []Array
	// Dependent lets the results of an entry depend on the other entries of its batch, on its place
	// there, and on chance. New then compares nothing. An answer may hold what other callers have
	// sent, and equal requests get other answers when more of them come.
	Dependent bool
	Log       func(text string) // is told what is captured, and why a batch size is dropped; may be nil
}

// Batcher computes requests in batches on one device. Its methods may be called from any
// goroutine, outside a Do.
type Batcher struct {
	o        Options
	fn       func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor
	outputs  []Spec
	measured map[int64]measured // the results by length; written by New alone
	follows  [][]bool           // of each result: its dimensions that are as long as the padded request
	decoders []*decoding        // of each input; nil where it takes no files
	device   cgotorch.Device
	compute  *cgotorch.Stream
	copies   *cgotorch.Stream
	captured *cgotorch.Captured
	slots    []*slot
	free     chan *slot // slots that no batch uses
	ended    chan struct{}
	freed    error          // of the end, when `ended` is closed
	broken   chan struct{}  // closed when the device is lost
	answers  sync.WaitGroup // batches whose answers are not delivered yet
	alarm    *pace.Alarm

	mu       sync.Mutex
	policy   policy
	queue    []*request // by priority, then in order of arrival
	computed int        // entries of the batches on the device
	waiting  int        // entries in the queue, and of requests that are decoded
	updates  int        // Updates in the queue
	changed  chan struct{}
	closed   bool           // refuses new requests
	draining bool           // ends when the queue is empty
	decoded  sync.WaitGroup // requests that are decoded; none begins when closed is true
	lost     error          // why nothing can be computed any more, or nil
	stats    Stats
}

// Stats counts a Batcher's work.
type Stats struct {
	Requests, Entries int64         // that were computed
	Failed            int64         // requests for which the function or the device failed
	Batches           map[int]int64 // batches that were computed, by number of entries without padding
	Refused, Dropped  int64         // requests for which the queue was full, and requests that ended while they waited
	Took              time.Duration // from the call to the answer, of all computed requests together
	Queued            time.Duration // the part of Took before a batch took the request
	Waiting           int           // entries that wait now
	Sizes             []int         // batch sizes in use, of the first length
}

// New returns a Batcher of fn, and captures fn for each batch size. It waits for the device. fn
// gets one tensor for each of Options.Inputs, with the batch in the first dimension. Its results
// have the batch in the first dimension too, and each entry of a result depends on the same entry
// of the inputs alone. So a model must be in evaluation mode. New calls fn with zeros, and batches
// are padded with zeros. Then New compares entries alone and among others: see [Options.Samples].
// At its end New releases the memory that LibTorch's allocator has cached, which makes other work
// on the device wait for a moment. The caller must close the Batcher.
//
// New fails with [cgotorch.ErrInvalidArgument] for bad options, and for a result that depends on
// more than its entry. The error names the result. Differences as of rounding are no dependence.
// New fails with [cgotorch.ErrOutOfMemory] if there is no memory for the inputs of two of the
// largest batches or to compute the smallest one, and as fn fails.
func New(device cgotorch.Device, fn func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor, o Options) (*Batcher, error) {
	o, err := o.complete(fn != nil)
	if err != nil {
		return nil, err
	}
	if err := device.Synchronize(); err != nil {
		return nil, err
	}
	b := &Batcher{o: o, fn: fn, device: device, free: make(chan *slot, slotCount), ended: make(chan struct{}), broken: make(chan struct{}),
		changed: make(chan struct{}, 1), alarm: pace.NewAlarm(), measured: map[int64]measured{}, stats: Stats{Batches: map[int]int64{}}}
	for _, in := range o.Inputs {
		b.decoders = append(b.decoders, newDecoding(in))
	}
	b.captured = b.newCaptured()
	if err := b.open(); err != nil {
		return nil, errors.Join(err, b.release())
	}
	go b.run()
	return b, nil
}

// newCaptured returns the Captured of the served function.
func (b *Batcher) newCaptured() *cgotorch.Captured {
	return cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		x = x.NoGrad()
		if b.o.Autocast != 0 {
			x = x.Autocast(b.o.Autocast)
		}
		return b.fn(x, in...)
	}, cgotorch.CapturedOptions{WarmUp: 1, InPlace: true, MaxGraphs: slotCount * len(b.o.BatchSizes) * len(b.o.Lengths), Log: b.o.Log})
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
	o.Inputs = slices.Clone(o.Inputs)
	variable := false
	for i, in := range o.Inputs {
		var err error
		if o.Inputs[i], err = in.complete(); err != nil {
			return refuse("input %d, %q, %v", i, in.Name, err)
		}
		variable = variable || in.variable()
	}
	o.Lengths = slices.Clone(o.Lengths)
	slices.Sort(o.Lengths)
	o.Lengths = slices.Compact(o.Lengths)
	if variable != (len(o.Lengths) > 0) || len(o.Lengths) > 0 && o.Lengths[0] < 1 {
		return refuse("Lengths is %v; give the lengths, above 0, to which dimensions of -1 are padded, and none if no input has such a dimension", o.Lengths)
	}
	if !variable {
		o.Lengths = []int64{0}
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
	if len(o.Samples) > 0 {
		if err := checkSamples(o.Inputs, o.Samples); err != nil {
			return refuse("Samples: %v", err)
		}
	}
	if o.Queue == 0 {
		o.Queue = 16 * o.BatchSizes[len(o.BatchSizes)-1]
	}
	return o, nil
}

// Predict computes the function for the entries of the inputs, which are its Options.Inputs in
// order. Each has the shape of its Spec with the number of entries before it. Predict waits for
// the answer, without an OS thread. The inputs may be changed after the return. The results belong
// to the caller. Results of one batch lie side by side, so a kept result keeps the memory of all.
// Files are decoded before the request waits for a batch.
//
// Predict fails with [cgotorch.ErrInvalidArgument] for inputs that do not fit, with [ErrQueueFull],
// with [cgotorch.ErrClosed] after Close, with [cgotorch.ErrDeviceLost], with the Decoder's error,
// and with the cause of ctx's end. A request whose ctx ends while it waits is never computed. If
// the function fails for a batch, each of its requests is computed alone, and Predict fails with
// [ErrModel] and as the function does. A panic of the function or of the Decoder is raised again
// here.
func (b *Batcher) Predict(ctx context.Context, inputs ...Array) ([]Array, error) {
	r, err := b.request(ctx, inputs)
	if err != nil {
		return nil, err
	}
	if r.encoded {
		defer b.giveBack(r)
		if err := b.decode(r); err != nil {
			panics.Raise(err)
			return nil, err
		}
	} else if err := b.enqueue(r); err != nil {
		return nil, err
	}
	if err := b.await(r); err != nil {
		return nil, err
	}
	return r.out, nil
}

// Update runs fn in a Do between two batches. Answers to requests before it do not see what fn
// changes, and all later answers do: fn may copy new weights over the old ones. Update waits
// until fn has returned, or until ctx ends before fn begins. A ctx that ends later changes nothing.
// Update fails as fn does, with [cgotorch.ErrClosed], with [cgotorch.ErrDeviceLost], and with the
// cause of ctx's end. A panic of fn is raised again here.
func (b *Batcher) Update(ctx context.Context, fn func(x *cgotorch.Exec) error) error {
	if fn == nil {
		return fmt.Errorf("serve: Update: the function is nil; give one that changes the weights: %w", cgotorch.ErrInvalidArgument)
	}
	r := newRequest(ctx)
	r.update = fn
	if err := b.enqueue(r); err != nil {
		return err
	}
	return b.await(r)
}

// Stats returns the counts so far.
func (b *Batcher) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Waiting, s.Sizes, s.Batches = b.waiting, slices.Clone(b.policy.sizes[b.o.Lengths[0]]), maps.Clone(s.Batches)
	return s
}

// Err returns why the Batcher can compute nothing any more, such as [cgotorch.ErrDeviceLost], or
// nil. A server is not ready after that.
func (b *Batcher) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

// Lost returns a channel that is closed when Err has an error.
func (b *Batcher) Lost() <-chan struct{} { return b.broken }

// Inputs returns the inputs, with the dtypes and shapes of decoded images. The list and the shapes
// belong to the caller.
func (b *Batcher) Inputs() []Spec { return cloned(b.o.Inputs) }

// Outputs returns the results of the function for one entry. A size of -1 depends on the length of
// the request: see [Options.Unpad]. The list and the shapes belong to the caller.
func (b *Batcher) Outputs() []Spec { return cloned(b.outputs) }

// MaxEntries returns the largest number of entries of a request.
func (b *Batcher) MaxEntries() int { return b.o.BatchSizes[len(b.o.BatchSizes)-1] }

// Memory returns the number of bytes on the device that the inputs of batches and the graphs hold.
// The weights do not count. Memory waits while a batch is enqueued, and not for the device.
func (b *Batcher) Memory() (int64, error) {
	n, err := b.captured.Memory()
	for _, s := range b.slots {
		n += int64(len(s.slab.Bytes()))
	}
	return n, err
}

// Close refuses new requests, waits until all earlier ones are answered, and frees the Batcher. It
// fails if a part of the Batcher cannot be freed, such as a stream that a Do of the program uses. A
// second Close waits too, and returns the same error.
func (b *Batcher) Close() error {
	if b == nil || b.ended == nil {
		return nil
	}
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.decoded.Wait() // these requests still come into the queue
	b.mu.Lock()
	b.draining = true
	b.wake()
	b.mu.Unlock()
	<-b.ended
	return b.freed
}
