package cgotorch

import (
	"context"
	"errors"
	"sync"
)

// Inference serves a function of tensors, such as a model's Forward, to many goroutines. It has
// a few streams, each with graphs of its own ([Captured]), so that calls run in parallel on the
// device.
//
//	options := cgotorch.InferenceOptions{BatchSizes: []int{1, 8, 32}}
//	infer, err := cgotorch.NewInference(device, model.Forward, options)
//	...
//	type Tensor = cgotorch.Tensor
//	err = infer.Do(ctx, func(x *cgotorch.Exec, forward func(in *Tensor) *Tensor) error {
//		in := cgotorch.FromSlice(x, pixels, 1, 3, 224, 224)
//		scores = cgotorch.ToSlice[float32](x, forward(in))
//		return nil
//	})
//
// The function must not change memory that it reads, because calls overlap. The model must be
// in evaluation mode.
type Inference struct {
	lanes []*lane
	free  chan *lane // has room for all

	preparing sync.Mutex // held by Prepare, which takes every lane

	mu     sync.Mutex
	closed bool
}

// A lane is a stream and the graphs captured for it.
type lane struct {
	stream   *Stream
	captured *Captured
}

// InferenceOptions are the options of [NewInference]. The zero value has four streams, and a
// graph for each batch size that arrives.
type InferenceOptions struct {
	Streams    int               // calls that run at a time; 0 means 4
	BatchSizes []int             // as in [CapturedOptions]; empty means a graph for each size that arrives
	MaxGraphs  int               // on each stream, as in [CapturedOptions]
	WarmUp     int               // as in [CapturedOptions]; 0 means 1
	InPlace    bool              // as in [CapturedOptions]
	Autocast   DType             // as in [Exec.Autocast]; 0 means none
	Log        func(text string) // as in [CapturedOptions]; may be called from several goroutines
}

// NewInference makes the streams. It waits for the device, so that the weights are there.
// Graphs are captured when inputs of their shapes arrive, or by [Inference.Prepare]. A later
// change of the weights needs a [Device.Synchronize] too. The caller must Close the Inference.
//
// It fails with [ErrNoDevice] and [ErrDeviceLost]. It fails with [ErrInvalidArgument] for batch
// sizes below 1, and for batch sizes together with InPlace.
func NewInference(d Device, fn func(x *Exec, in *Tensor) *Tensor, o InferenceOptions) (*Inference, error) {
	if o.Streams <= 0 {
		o.Streams = 4
	}
	if o.WarmUp <= 0 {
		o.WarmUp = 1
	}
	for _, n := range o.BatchSizes {
		if n < 1 || o.InPlace {
			return nil, refuse("NewInference", ErrInvalidArgument,
				"BatchSizes %v, InPlace %v: sizes are above 0, and padding needs a copy", o.BatchSizes, o.InPlace)
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
		}, CapturedOptions{WarmUp: o.WarmUp, MaxGraphs: o.MaxGraphs, BatchSizes: o.BatchSizes, InPlace: o.InPlace, Log: o.Log, lend: true})}
		f.lanes = append(f.lanes, l)
		f.free <- l
	}
	return f, nil
}

// Do waits for a free stream and calls fn in a [Stream.Do] of it. fn calls forward with inputs
// on the device, any number of times. Do does not wait for the device. The result of forward
// belongs to the Do, and holds until the next call of forward.
//
// Do fails like [Stream.Do], with the cause of ctx's end, and with [ErrClosed].
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
		return nil, refuse("Inference.Do", ErrClosed, "it is closed")
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

// Prepare calls the function on every stream with the result of input until it is captured, and
// waits for the device. The first calls of users then take no longer than later calls. Prepare
// takes the streams one by one from running Dos.
//
// It fails with the cause of ctx's end and with [ErrClosed]. On a GPU it fails with
// [ErrNotCapturable] and the reason where the function is not captured.
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
	const more = 2 // the Run that captures, and the first Run after the compared launches
	var err error
	settled := false
	for i := 0; i < l.captured.o.WarmUp+maxTrials+comparedLaunches+more && err == nil && !settled; i++ {
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
		return refuse("Inference.Prepare", ErrNotCapturable, "%s", s.Why)
	}
	return err
}

// Memory returns the bytes of the device that the graphs hold. It waits for running Dos.
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

// Close closes each stream when its running Do has ended, and does not wait for it. Closing
// twice does nothing.
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
