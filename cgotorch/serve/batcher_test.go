package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/panics"
	"github.com/streamtorch/streamtorch/internal/together"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

type tensor = cgotorch.Tensor

var vector = []Spec{{Name: "x", DType: cgotorch.Float32, Shape: []int64{3}}}

func open(t *testing.T, d cgotorch.Device, fn func(x *cgotorch.Exec, in ...*tensor) []*tensor, o Options) *Batcher {
	t.Helper()
	if o.Inputs == nil {
		o.Inputs = vector
	}
	b := must.Get(New(d, fn, o))(t)
	t.Cleanup(func() { must.Check(t, b.Close()) })
	return b
}

// plusOne is a function whose result shows the entry that it was given.
func plusOne(x *cgotorch.Exec, in ...*tensor) []*tensor {
	return []*tensor{x.AddScalar(in[0], 1), x.SumDim(in[0], []int64{1}, cgotorch.SumOptions{})}
}

func row(v float32) Array { return Of([]float32{v, 2 * v, 3 * v}, 1, 3) }

// check fails unless out is what plusOne makes of rows that begin with the values.
func check(out []Array, values ...float32) error {
	rows, err := Elements[float32](out[0])
	sums, err2 := Elements[float32](out[1])
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	var want, sum []float32
	for _, v := range values {
		want = append(want, v+1, 2*v+1, 3*v+1)
		sum = append(sum, 6*v)
	}
	if n := int64(len(values)); !slices.Equal(rows, want) || !slices.Equal(sums, sum) || !slices.Equal(out[0].Shape, []int64{n, 3}) || !slices.Equal(out[1].Shape, []int64{n}) {
		return fmt.Errorf("%v%v %v%v, want %v %v", rows, out[0].Shape, sums, out[1].Shape, want, sum)
	}
	return nil
}

func TestBatcher_ManyCallers(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		b := open(t, d, plusOne, Options{BatchSizes: []int{1, 4, 16}})
		together.Run(32, func(c int) {
			draw := rand.New(rand.NewPCG(1, uint64(c)))
			for range 50 {
				values := make([]float32, 1+draw.IntN(5))
				var data []float32
				for i := range values {
					values[i] = float32(draw.IntN(1000))
					data = append(data, values[i], 2*values[i], 3*values[i])
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(draw.IntN(5000))*time.Microsecond)
				out, err := b.Predict(ctx, Of(data, int64(len(values)), 3))
				cancel()
				for i := range data { // the inputs belong to the caller again
					data[i] = float32(math.NaN())
				}
				if err == nil {
					err = check(out, values...)
				}
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			}
		})
		if s := b.Stats(); s.Waiting != 0 || len(s.Batches) == 0 || s.Requests == 0 || s.Entries < s.Requests {
			t.Errorf("%+v", s)
		}
	})
}

// hold keeps the Batcher from the next batch until release is called.
func hold(t *testing.T, b *Batcher) (release func()) {
	t.Helper()
	entered, gate, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		ended <- b.Update(context.Background(), func(*cgotorch.Exec) error {
			close(entered)
			<-gate
			return nil
		})
	}()
	<-entered
	return func() {
		close(gate)
		must.Check(t, <-ended)
	}
}

// wantBatches fails the test unless batches of these numbers of entries were computed.
func wantBatches(t *testing.T, b *Batcher, want map[int]int64) {
	t.Helper()
	if got := b.Stats().Batches; !maps.Equal(got, want) {
		t.Errorf("batches %v, want %v", got, want)
	}
}

// waitFor waits until so many entries wait in the queue.
func waitFor(t *testing.T, b *Batcher, entries int) {
	t.Helper()
	for began := time.Now(); b.Stats().Waiting != entries; time.Sleep(time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("%d entries wait, want %d", b.Stats().Waiting, entries)
		}
	}
}

// predict starts a request for a row that begins with v. The channel gets what became of it.
func predict(ctx context.Context, b *Batcher, v float32) chan error {
	out := make(chan error, 1)
	go func() {
		got, err := b.Predict(ctx, row(v))
		if err == nil {
			err = check(got, v)
		}
		out <- err
	}()
	return out
}

func TestBatcher_GathersWhatWaits(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		b := open(t, d, plusOne, Options{BatchSizes: []int{8}})
		release := hold(t, b)
		var results []chan error
		for i := range 17 {
			results = append(results, predict(context.Background(), b, float32(i)))
		}
		waitFor(t, b, 17)
		release()
		for _, r := range results {
			must.Check(t, <-r)
		}
		wantBatches(t, b, map[int]int64{8: 2, 1: 1})
	})
}

// A function that takes one size alone gets this size.
func TestBatcher_Pad(t *testing.T) {
	b := open(t, cgotorch.CPU, func(x *cgotorch.Exec, in ...*tensor) []*tensor {
		if n := in[0].Shape()[0]; n != 4 {
			x.Fail("forward", fmt.Errorf("%d entries: %w", n, cgotorch.ErrInvalidArgument))
		}
		return plusOne(x, in...)
	}, Options{BatchSizes: []int{4}, Pad: true})
	must.Check(t, <-predict(context.Background(), b, 5))
}

func TestBatcher_MaxDelay(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		b := open(t, d, plusOne, Options{BatchSizes: []int{4}, MaxDelay: time.Minute})
		var results []chan error
		for i := range 4 {
			results = append(results, predict(context.Background(), b, float32(i)))
		}
		for _, r := range results {
			must.Check(t, <-r)
		}
		wantBatches(t, b, map[int]int64{4: 1})
	})
}

// A request of higher priority does not prolong the wait of those before it.
func TestBatcher_MaxDelay_Priority(t *testing.T) {
	const delay = time.Second
	b := open(t, cgotorch.CPU, plusOne, Options{BatchSizes: []int{4}, MaxDelay: delay})
	if err := <-predict(context.Background(), b, 1); err != nil { // warms up
		t.Fatal(err)
	}
	began := time.Now()
	first := predict(context.Background(), b, 1)
	time.Sleep(delay * 3 / 4)
	second := predict(WithPriority(context.Background(), 1), b, 2)
	for _, r := range []chan error{first, second} {
		must.Check(t, <-r)
	}
	if took := time.Since(began); took < delay*9/10 || took > delay*3/2 {
		t.Errorf("the first request took %v, and MaxDelay is %v", took, delay)
	}
}

func TestBatcher_QueueFullAndCancelled(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		b := open(t, d, plusOne, Options{BatchSizes: []int{4}, Queue: 2})
		release := hold(t, b)
		ctx, cancel := context.WithCancel(context.Background())
		cancelled := predict(ctx, b, 2)
		kept := predict(context.Background(), b, 3)
		waitFor(t, b, 2)
		if _, err := b.Predict(context.Background(), row(4)); !errors.Is(err, ErrQueueFull) {
			t.Errorf("a request for a full queue: %v", err)
		}
		cancel()
		if err := <-cancelled; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled request: %v", err)
		}
		release()
		must.Check(t, <-kept)
		wantBatches(t, b, map[int]int64{1: 1})
		if s := b.Stats(); s.Refused != 1 || s.Dropped != 1 || s.Requests != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A request for which the function fails does not fail the others of its batch.
func TestBatcher_BatchMates(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		b := open(t, d, func(x *cgotorch.Exec, in ...*tensor) []*tensor {
			if math.IsNaN(x.Item(x.Sum(in[0]))) {
				x.Fail("forward", fmt.Errorf("a value is NaN: %w", cgotorch.ErrInvalidArgument))
			}
			return plusOne(x, in...)
		}, Options{BatchSizes: []int{8}, MaxDelay: time.Minute})
		var results []chan error
		for i := range 8 {
			v := float32(i)
			if i == 3 {
				v = float32(math.NaN())
			}
			results = append(results, predict(context.Background(), b, v))
		}
		for i, r := range results {
			if err := <-r; (i == 3) != errors.Is(err, cgotorch.ErrInvalidArgument) || (i == 3) != errors.Is(err, ErrModel) || i != 3 && err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		}
		if s := b.Stats(); s.Failed != 1 || s.Requests != 7 {
			t.Errorf("%+v", s)
		}
	})
}

// Where a batch does not fit the memory, smaller ones are computed. The function reads a value, so
// that it cannot be captured and is called for each batch.
func TestBatcher_OutOfMemory(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		var limit atomic.Int64
		limit.Store(16)
		var logged atomic.Int64
		b := open(t, d, func(x *cgotorch.Exec, in ...*tensor) []*tensor {
			if in[0].Shape()[0] > limit.Load() {
				x.Fail("forward", &cgotorch.Error{Op: "forward", Kind: cgotorch.ErrOutOfMemory, Message: "no memory"})
			}
			x.Item(x.Sum(in[0]))
			return plusOne(x, in...)
		}, Options{BatchSizes: []int{2, 4, 8, 32}, MaxDelay: 20 * time.Millisecond, Log: func(string) { logged.Add(1) }})
		if s := b.Stats(); !slices.Equal(s.Sizes, []int{2, 4, 8}) {
			t.Errorf("sizes %v", s.Sizes)
		}
		limit.Store(4)
		var results []chan error
		for i := range 24 {
			results = append(results, predict(context.Background(), b, float32(i)))
		}
		for _, r := range results {
			must.Check(t, <-r)
		}
		if _, err := b.Predict(context.Background(), Of(make([]float32, 18), 6, 3)); !errors.Is(err, cgotorch.ErrOutOfMemory) {
			t.Errorf("6 entries: %v", err)
		}
		if s := b.Stats(); !slices.Equal(s.Sizes, []int{2, 4}) || logged.Load() == 0 {
			t.Errorf("sizes %v, %d lines logged", s.Sizes, logged.Load())
		}
	})
}

// The same where CUDA has no memory.
func TestBatcher_OutOfMemory_CUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	b := open(t, torchtest.CUDA(t), func(x *cgotorch.Exec, in ...*tensor) []*tensor {
		if in[0].Shape()[0] >= 32 {
			x.Empty(cgotorch.Uint8, 1<<42)
		}
		return plusOne(x, in...)
	}, Options{BatchSizes: []int{2, 8, 32, 64}})
	if s := b.Stats(); !slices.Equal(s.Sizes, []int{2, 8}) {
		t.Errorf("sizes %v", s.Sizes)
	}
	if s := b.captured.Stats(); s.Graphs != 4 || s.Why != "" {
		t.Errorf("%+v", s)
	}
	for i := range 20 {
		must.Check(t, <-predict(context.Background(), b, float32(i)))
	}
}

// Every answer is of exactly one version of the weights.
func TestBatcher_Update(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		var weight *tensor
		torchtest.Do(t, d, func(x *cgotorch.Exec) { weight = x.Keep(x.Zeros(cgotorch.Float32, 3)) })
		defer weight.Close()
		b := open(t, d, func(x *cgotorch.Exec, in ...*tensor) []*tensor {
			return []*tensor{x.Add(in[0], weight), x.Add(x.MulScalar(in[0], 0), weight)}
		}, Options{BatchSizes: []int{1, 4}})
		stop := make(chan struct{})
		var all sync.WaitGroup
		for range 8 {
			all.Add(1)
			go func() {
				defer all.Done()
				last := float32(0)
				for {
					select {
					case <-stop:
						return
					default:
					}
					out, err := b.Predict(context.Background(), Of([]float32{10, 10, 10}, 1, 3))
					if err != nil {
						t.Error(err)
						return
					}
					sum, _ := Elements[float32](out[0])
					version, _ := Elements[float32](out[1])
					for i := range sum {
						if sum[i] != 10+version[0] || version[i] != version[0] || version[0] < last {
							t.Errorf("%v and %v after version %v", sum, version, last)
						}
					}
					last = version[0]
				}
			}()
		}
		for v := range 100 {
			if err := b.Update(context.Background(), func(x *cgotorch.Exec) error {
				cgotorch.CopyFrom(x, weight, []float32{float32(v), float32(v), float32(v)})
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
		close(stop)
		all.Wait()
	})
}

// What fn has done counts, also if its context has ended meanwhile. Without the rule half of the
// Updates would tell of the context.
func TestBatcher_Update_ContextEndsInside(t *testing.T) {
	b := open(t, cgotorch.CPU, plusOne, Options{BatchSizes: []int{1}})
	failed := errors.New("no weights")
	for name, c := range map[string]struct {
		fn   func() error
		want string
	}{
		"succeeds": {func() error { return nil }, "<nil>"},
		"fails":    {func() error { return failed }, "no weights"},
		"panics":   {func() error { panic("six") }, "panic"},
	} {
		for range 50 {
			ctx, cancel := context.WithCancel(context.Background())
			got := func() (text string) {
				defer func() {
					if p, ok := recover().(*panics.Panic); ok && strings.Contains(p.Error(), "six") {
						text = "panic"
					}
				}()
				return fmt.Sprint(b.Update(ctx, func(*cgotorch.Exec) error {
					cancel()
					return c.fn()
				}))
			}()
			if got != c.want {
				t.Fatalf("%s: %s, want %s", name, got, c.want)
			}
		}
	}
}

// An Update whose context ends before its turn never runs, wherever it waits.
func TestBatcher_Update_ContextEndsBefore(t *testing.T) {
	b := open(t, cgotorch.CPU, plusOne, Options{BatchSizes: []int{1}})
	release := hold(t, b)
	ctx, cancel := context.WithCancel(context.Background())
	r := newRequest(ctx)
	r.update = func(*cgotorch.Exec) error { t.Error("it has run"); return nil }
	must.Do(t, b.enqueue(r))
	cancel()
	release() // the dispatcher finds the request before await does
	must.Check(t, <-predict(context.Background(), b, 1))
	if err := b.await(r); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// An Update has no entries, so the queue is never full for it.
func TestBatcher_Update_QueueFull(t *testing.T) {
	b := open(t, cgotorch.CPU, plusOne, Options{BatchSizes: []int{8}, Queue: 1})
	release := hold(t, b)
	large := make(chan error)
	go func() {
		_, err := b.Predict(context.Background(), Of(make([]float32, 24), 8, 3))
		large <- err
	}()
	waitFor(t, b, 8)
	r := newRequest(context.Background())
	r.update = func(*cgotorch.Exec) error { return nil }
	if err := b.enqueue(r); err != nil {
		t.Errorf("behind more entries than the queue takes: %v", err)
		close(r.done)
	}
	release()
	must.Check(t, errors.Join(b.await(r), <-large))
}

func TestBatcher_Close(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		b := open(t, d, plusOne, Options{BatchSizes: []int{1}})
		release := hold(t, b)
		var results []chan error
		for i := range 5 {
			results = append(results, predict(context.Background(), b, float32(i)))
		}
		waitFor(t, b, 5)
		closed := make(chan error)
		go func() { closed <- b.Close() }()
		for refuses := false; !refuses; time.Sleep(time.Millisecond) {
			b.mu.Lock()
			refuses = b.closed
			b.mu.Unlock()
		}
		release()
		for _, r := range results {
			if err := <-r; err != nil {
				t.Errorf("a request before Close: %v", err)
			}
		}
		must.Check(t, <-closed)
		if _, err := b.Predict(context.Background(), row(1)); !errors.Is(err, cgotorch.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
	must.Check(t, (*Batcher)(nil).Close())
}

// Close tells of what could not be freed.
func TestBatcher_Close_Fails(t *testing.T) {
	torchtest.CheckLeaks(t)
	b, err := New(cgotorch.CPU, plusOne, Options{Inputs: vector, BatchSizes: []int{1}})
	must.Do(t, err)
	err = cgotorch.DefaultStream(cgotorch.CPU).Do(func(x *cgotorch.Exec) error {
		x.On(b.compute) // its stream cannot be closed before this Do ends
		torchtest.WantError(t, b.Close(), cgotorch.ErrMisuse, "close it afterwards")
		torchtest.WantError(t, b.Close(), cgotorch.ErrMisuse, "close it afterwards")
		return nil
	})
	if err = errors.Join(err, b.compute.Close()); err != nil {
		t.Error(err)
	}
}

// The descriptions belong to the caller.
func TestBatcher_InputsAndOutputs(t *testing.T) {
	b := open(t, cgotorch.CPU, plusOne, Options{BatchSizes: []int{1}})
	b.Inputs()[0].Shape[0], b.Outputs()[0].Shape[0] = 7, 7
	if in, out := b.Inputs()[0].Shape, b.Outputs()[0].Shape; in[0] != 3 || out[0] != 3 {
		t.Errorf("a caller has changed the shapes to %v and %v", in, out)
	}
	must.Check(t, <-predict(context.Background(), b, 1))
}

func TestBatcher_HasNoRace(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for name, fn := range map[string]func(x *cgotorch.Exec, in ...*tensor) []*tensor{
			"captured": plusOne,
			"eager":    func(x *cgotorch.Exec, in ...*tensor) []*tensor { x.Item(x.Sum(in[0])); return plusOne(x, in...) },
		} {
			t.Run(name, func(t *testing.T) {
				torchtest.CheckStreams(t)
				b := open(t, d, fn, Options{BatchSizes: []int{1, 4}})
				together.Run(8, func(c int) {
					for i := range 20 {
						must.Check(t, <-predict(context.Background(), b, float32(20*c+i)))
					}
				})
			})
		}
	})
}

func TestNew_Refused(t *testing.T) {
	for _, c := range []struct {
		fn   func(x *cgotorch.Exec, in ...*tensor) []*tensor
		o    Options
		text string
	}{
		{nil, Options{Inputs: vector}, "the function is nil"},
		{plusOne, Options{}, "Options.Inputs is empty"},
		{plusOne, Options{Inputs: []Spec{{Name: "a", DType: cgotorch.Float32, Shape: []int64{0}}}}, `input 0, "a"`},
		{plusOne, Options{Inputs: vector, BatchSizes: []int{0, 1}}, "BatchSizes is [0 1]"},
		{plusOne, Options{Inputs: vector, MaxDelay: -1}, "MaxDelay is -1ns"},
		{func(x *cgotorch.Exec, in ...*tensor) []*tensor { return []*tensor{x.Sum(in[0])} }, Options{Inputs: vector}, "its first dimension must be that of the inputs"},
		{func(*cgotorch.Exec, ...*tensor) []*tensor { return nil }, Options{Inputs: vector}, "the function has no result"},
	} {
		b, err := New(cgotorch.CPU, c.fn, c.o)
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, c.text)
		if b != nil {
			t.Errorf("%s: a Batcher besides the error", c.text)
		}
	}
}

func TestPredict_Refused(t *testing.T) {
	b := open(t, cgotorch.CPU, plusOne, Options{BatchSizes: []int{2}})
	for _, c := range []struct {
		in   []Array
		text string
	}{
		{nil, "0 inputs, want 1"},
		{[]Array{Of([]int64{1, 2, 3}, 1, 3)}, `input "x" is int64, want float32`},
		{[]Array{Of([]float32{1, 2, 3}, 3)}, `input "x" has the shape [3], want [n 3]`},
		{[]Array{Of([]float32{1, 2, 3}, 0, 3)}, `has the shape [0 3]`},
		{[]Array{Of([]float32{1, 2}, 1, 3)}, `has 8 bytes, want 12 for each of 1 entries`},
		{[]Array{Of([]float32{1, 2}, math.MaxInt64, 3)}, `has 8 bytes`},
		{[]Array{Of(make([]float32, 9), 3, 3)}, "3 entries, at most 2"},
	} {
		_, err := b.Predict(context.Background(), c.in...)
		torchtest.WantError(t, err, cgotorch.ErrInvalidArgument, c.text)
	}
	torchtest.WantError(t, b.Update(context.Background(), nil), cgotorch.ErrInvalidArgument, "the function is nil")
	if _, err := Elements[int64](row(1)); !errors.Is(err, cgotorch.ErrInvalidArgument) {
		t.Error(err)
	}
}

// A panic of the function is raised in the caller, and the Batcher goes on.
func TestBatcher_Panic(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		b := open(t, d, func(x *cgotorch.Exec, in ...*tensor) []*tensor {
			switch v := x.Item(x.Sum(in[0])); v {
			case 6:
				panic("six")
			case 12:
				runtime.Goexit()
			}
			return plusOne(x, in...)
		}, Options{BatchSizes: []int{1}})
		for range 3 {
			func() {
				defer func() {
					if p, ok := recover().(*panics.Panic); !ok || !strings.Contains(p.Error(), "six") {
						t.Errorf("the caller gets the panic %v", p)
					}
				}()
				_, err := b.Predict(context.Background(), row(1))
				t.Error("no panic, and the error", err)
			}()
			if _, err := b.Predict(context.Background(), row(2)); err == nil {
				t.Error("no error after a Goexit")
			}
			must.Check(t, <-predict(context.Background(), b, 3))
		}
	})
}

// Padding is zeros, and not what the slot held before.
func TestSlot_Padding(t *testing.T) {
	b := open(t, cgotorch.CPU, plusOne, Options{BatchSizes: []int{4}})
	s := &slot{slab: b.slots[0].slab, offsets: b.slots[0].offsets}
	memory := s.slab.Bytes()
	for i := range memory {
		memory[i] = 0xFF
	}
	r := &request{entries: 1, inputs: []Array{row(1)}, copied: make(chan struct{})}
	b.gather(s, []*request{r}, form{size: 4})
	if !slices.Equal(memory[:12], row(1).Data) || slices.ContainsFunc(memory[12:48], func(v byte) bool { return v != 0 }) {
		t.Errorf("%v", memory[:48])
	}
}
