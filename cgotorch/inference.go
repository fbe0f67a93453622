package cgotorch

import (
	"context"
	"errors"
	"sync"
)

// Inference serves a function of tensors, such as a model's Forward, to many goroutines. It has a
// few streams, so calls on different streams run in parallel on the device. Each stream has its
// own graphs: see [Captured].
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
// The function must not change memory that it reads, because other calls read the same memory at
// the same time. The model must be in evaluation mode.
type Inference struct {
	lanes []*lane
	free  chan *lane // lanes that no Do uses; the channel has room for all lanes

	preparing sync.Mutex // held by Prepare, because two Prepares that each hold some lanes would deadlock

	mu     sync.Mutex
	closed bool
}

// A lane is a stream and a Captured that only this stream uses.
type lane struct {
	stream   *Stream
	captured *Captured
}

// InferenceOptions are the options of [NewInference]. The zero value means four streams, and a
// graph for each batch size that arrives.
type InferenceOptions struct {
	Streams    int               // number of streams, and of Dos that run at the same time; 0 means 4
	BatchSizes []int             // as in [CapturedOptions]; if empty, each batch size gets its own graph
	MaxGraphs  int               // as in [CapturedOptions], for each stream
	WarmUp     int               // as in [CapturedOptions]; 0 means 1
	InPlace    bool              // as in [CapturedOptions]
	Autocast   DType             // as in [Exec.Autocast]; 0 means none
	Log        func(text string) // as in [CapturedOptions]; may be called from several goroutines
}

// NewInference returns an Inference of fn on the device d. It waits for the device, so that all
// work that writes the weights is done. Graphs are captured when inputs of their shapes arrive,
// or by [Inference.Prepare]. If the weights change later, call [Device.Synchronize] before the
// next Do. The caller must Close the Inference.
//
// NewInference fails with [ErrNoDevice] or [ErrDeviceLost]. It fails with [ErrInvalidArgument] if
// fn is nil, for more than 1024 streams, if a batch size is below 1, or if BatchSizes and InPlace
// are both set.
func NewInference(d Device, fn func(x *Exec, in *Tensor) *Tensor, o InferenceOptions) (*Inference, error) {
	if o.Streams <= 0 {
		o.Streams = 4
	}
	if o.WarmUp <= 0 {
		o.WarmUp = 1
	}
	switch {
	case fn == nil:
		return nil, refuse("NewInference", ErrInvalidArgument, "fn is nil; give the function to serve, such as model.Forward")
	case o.Streams > mostWorkers:
		return nil, refuse("NewInference", ErrInvalidArgument, "Streams is %d; at most %d streams have a thread", o.Streams, mostWorkers)
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

// Do waits for a free stream and calls fn in a [Stream.Do] of this stream. fn may call the
// function `forward` any number of times, with inputs on the device. Do does not wait for the
// device. The result of `forward` belongs to the Do. It is valid until the next call of
// `forward`.
//
// Do fails like [Stream.Do]. A Do inside any Do fails with [ErrMisuse]. So does a Do for which all
// streams' Dos wait, after 10 s. It fails with the cause of ctx's end if ctx ends before a stream
// is free, and with [ErrClosed] after Close.
func (f *Inference) Do(ctx context.Context, fn func(x *Exec, forward func(in *Tensor) *Tensor) error) error {
	l, err := f.take(ctx, "Inference.Do")
	if err != nil {
		return err
	}
	defer f.give(l)
	return l.stream.Do(func(x *Exec) error {
		return fn(x, func(in *Tensor) *Tensor { return l.captured.Run(x, in)[0] })
	})
}

func (f *Inference) take(ctx context.Context, op string) (*lane, error) {
	if currentWorker() != nil {
		return nil, refuse(op, ErrMisuse, "called inside a Do, which would wait for itself: call `forward`, or the served function with the Exec")
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case l, ok := <-f.free:
		return f.taken(l, ok, op)
	default:
	}
	all := make([]*Stream, len(f.lanes))
	for i, l := range f.lanes {
		all[i] = l.stream
	}
	var deadlocked *Error
	l, ok := awaitTurn(op, all, f.free, ctx.Done(), func(why *Error) bool {
		deadlocked = why
		return true
	})
	switch {
	case deadlocked != nil:
		return nil, deadlocked
	case l == nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return f.taken(l, ok, op)
}

func (f *Inference) taken(l *lane, ok bool, op string) (*lane, error) {
	if !ok {
		return nil, refuse(op, ErrClosed, "it is closed")
	}
	return l, nil
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

// Prepare calls the served function on every stream until the function is captured there. The
// inputs of these calls come from the function `input`. On the CPU nothing is captured, so there it
// makes InferenceOptions.WarmUp calls. Then Prepare waits for the device. After Prepare, the first
// Dos with inputs of this shape take no longer than later Dos. For each stream, Prepare waits until
// no Do uses the stream. It then keeps the stream until Prepare returns. Prepare the largest shape
// first: the graphs of smaller ones then find room in its memory.
//
// Prepare fails with the cause of ctx's end, and with [ErrClosed] after Close. On a GPU it fails
// with [ErrNotCapturable] and the reason if the function is not captured.
func (f *Inference) Prepare(ctx context.Context, input func(x *Exec) *Tensor) error {
	if currentWorker() != nil {
		return refuse("Inference.Prepare", ErrMisuse, "called inside a Do, which would wait for itself: call it before the first Do")
	}
	f.preparing.Lock()
	defer f.preparing.Unlock()
	var taken []*lane
	defer func() {
		for _, l := range taken {
			f.give(l)
		}
	}()
	for range f.lanes {
		l, err := f.take(ctx, "Inference.Prepare")
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
	most := l.captured.o.WarmUp
	if l.stream.Device().IsCUDA() {
		most += maxTrials + comparedLaunches + 2 // the Run that captures, and the first Run after the compared launches
	}
	var err error
	settled := false
	for i := 0; i < most && err == nil && !settled; i++ {
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

// Close closes all streams that no Do uses. If a Do uses a stream, this stream is closed when the
// Do ends. Close does not wait for these Dos. A second Close does nothing.
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
