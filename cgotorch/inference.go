package cgotorch

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Inference serves a function of tensors, such as a model's Forward, to many goroutines: a few streams, each with graphs of its own
// ([Captured]), so that calls run side by side on the device.
//
//	infer, err := cgotorch.NewInference(device, model.Forward, cgotorch.InferenceOptions{BatchSizes: []int{1, 8, 32}})
//	...
//	err = infer.Do(ctx, func(x *cgotorch.Exec, forward func(in *cgotorch.Tensor) *cgotorch.Tensor) error {
//		scores = cgotorch.ToSlice[float32](x, forward(cgotorch.FromSlice(x, pixels, 1, 3, 224, 224)))
//		return nil
//	})
//
// The function must not change what it reads: its calls overlap. The model is to be in evaluation mode.
type Inference struct {
	lanes []*lane
	free  chan *lane // has room for all

	preparing sync.Mutex // held by Prepare, which takes every lane

	mu     sync.Mutex
	closed bool
}

// lane is a stream and what is captured for it.
type lane struct {
	stream   *Stream
	captured *Captured
}

// InferenceOptions are the options of [NewInference]; the zero value serves each batch size that comes with a graph of its own, on four streams.
type InferenceOptions struct {
	Streams    int               // calls that run at a time; 0 means 4
	BatchSizes []int             // as in [CapturedOptions]; empty for a graph for each size that comes
	MaxGraphs  int               // on each stream, as in [CapturedOptions]
	Rehearsal  int               // as in [CapturedOptions]; 0 means 1
	InPlace    bool              // as in [CapturedOptions]
	Autocast   DType             // as in [Exec.Autocast]; 0 means none
	Log        func(text string) // as in [CapturedOptions]; may be called from several goroutines
}

// NewInference waits for the device, so that the weights are there, and makes the streams; graphs are captured when inputs of their shapes come,
// or by [Inference.Prepare]. Whoever changes the weights later synchronizes too. The caller must Close it. It fails with [ErrNoDevice],
// [ErrDeviceLost], and [ErrInvalidArgument] for batch sizes below 1 or beside InPlace.
func NewInference(d Device, fn func(x *Exec, in *Tensor) *Tensor, o InferenceOptions) (*Inference, error) {
	if o.Streams <= 0 {
		o.Streams = 4
	}
	if o.Rehearsal <= 0 {
		o.Rehearsal = 1
	}
	for _, n := range o.BatchSizes {
		if n < 1 || o.InPlace {
			return nil, &Error{Op: "NewInference", Kind: ErrInvalidArgument, Caller: caller(), Message: fmt.Sprintf("BatchSizes %v, InPlace %v: sizes are above 0, and padding needs a copy", o.BatchSizes, o.InPlace)}
		}
	}
	if err := d.Synchronize(); err != nil {
		return nil, err
	}
	f := &Inference{free: make(chan *lane, o.Streams)}
	for range o.Streams {
		s, err := NewStream(d, StreamOptions{})
		if err != nil {
			f.Close()
			return nil, err
		}
		l := &lane{s, NewCaptured(func(x *Exec, in ...*Tensor) []*Tensor {
			x = x.NoGrad()
			if o.Autocast != 0 {
				x = x.Autocast(o.Autocast)
			}
			return []*Tensor{fn(x, in[0])}
		}, CapturedOptions{Rehearsal: o.Rehearsal, MaxGraphs: o.MaxGraphs, BatchSizes: o.BatchSizes, InPlace: o.InPlace, Log: o.Log, lend: true})}
		f.lanes = append(f.lanes, l)
		f.free <- l
	}
	return f, nil
}

// Do waits for a stream to be free and is its [Stream.Do], where fn calls forward with an input on the device, as often as it likes; it does
// not wait for the device by itself. The result of forward is the Do's, and holds until forward's next call. It fails like the Do, with the
// cause of ctx's end, and with [ErrClosed].
func (f *Inference) Do(ctx context.Context, fn func(x *Exec, forward func(in *Tensor) *Tensor) error) error {
	l, err := f.take(ctx)
	if err != nil {
		return err
	}
	defer f.give(l)
	return l.stream.Do(func(x *Exec) error {
		return fn(x, func(in *Tensor) *Tensor { return l.captured.Run(x, in)[0] })
	})
}

func (f *Inference) take(ctx context.Context) (*lane, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case l, ok := <-f.free:
		if ok {
			return l, nil
		}
		return nil, &Error{Op: "Inference.Do", Kind: ErrClosed, Caller: caller(), Message: "it is closed"}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (f *Inference) give(l *lane) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		l.close()
		return
	}
	f.free <- l
}

// Prepare calls the function on every stream with what input makes, so often that it is captured, and waits for that: the first calls of users then
// take no longer than the later ones. It takes the streams one by one from the Dos that run, and fails, on a GPU, where the function is not captured, with the reason.
func (f *Inference) Prepare(ctx context.Context, input func(x *Exec) *Tensor) error {
	f.preparing.Lock()
	defer f.preparing.Unlock()
	var taken []*lane
	defer func() {
		for _, l := range taken {
			f.give(l)
		}
	}()
	for range f.lanes {
		l, err := f.take(ctx)
		if err != nil {
			return err
		}
		taken = append(taken, l)
		if err := l.prepare(input); err != nil {
			return err
		}
	}
	return nil
}

func (l *lane) prepare(input func(x *Exec) *Tensor) error {
	before := l.captured.Stats().Launches
	const more = 2 // the Run that captures, and the one after those that are compared
	var err error
	settled := false
	for i := 0; i < l.captured.o.Rehearsal+maxTrials+comparedLaunches+more && err == nil && !settled; i++ {
		err = l.stream.Do(func(x *Exec) error {
			in := input(x)
			l.captured.Run(x, in)
			settled = l.captured.settled(x, in)
			return nil
		})
	}
	if err == nil {
		err = l.stream.Synchronize()
	}
	if s := l.captured.Stats(); err == nil && s.Launches == before && l.stream.Device().IsCUDA() {
		return &Error{Op: "Inference.Prepare", Kind: ErrNotCapturable, Caller: caller(), Message: s.Why}
	}
	return err
}

// Memory is what the graphs hold of the device, in bytes. It waits for the Dos that run.
func (f *Inference) Memory() (int64, error) {
	var sum int64
	for _, l := range f.lanes {
		bytes, err := l.captured.Memory()
		if err != nil {
			return 0, err
		}
		sum += bytes
	}
	return sum, nil
}

// Stats returns the counts of all streams together.
func (f *Inference) Stats() CapturedStats {
	var sum CapturedStats
	for _, l := range f.lanes {
		s := l.captured.Stats()
		sum.Graphs += s.Graphs
		sum.Captures += s.Captures
		sum.Updates += s.Updates
		sum.Launches += s.Launches
		sum.Eager += s.Eager
		if s.Why != "" {
			sum.Why = s.Why
		}
	}
	return sum
}

// Close waits for no Do: each that runs ends, and its stream with it. Closing twice does nothing.
func (f *Inference) Close() error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	close(f.free)
	var errs []error
	for l := range f.free {
		errs = append(errs, l.close())
	}
	return errors.Join(errs...)
}

func (l *lane) close() error { return errors.Join(l.captured.Close(), l.stream.Close()) }
