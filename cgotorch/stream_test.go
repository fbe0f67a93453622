package cgotorch_test

import (
	"errors"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/together"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestDefaultStream_IsOne(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		if DefaultStream(d) != DefaultStream(d) || DefaultStream(d).Device() != d {
			t.Error("two default streams of one device")
		}
	})
}

func TestDefaultStream_UsableAfterClose(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := DefaultStream(d)
		for range 3 {
			torchtest.DoOn(t, s, func(x *Exec) { torchtest.Equal(t, x, x.Ones(Float32, 2), []float32{1, 1}) })
			must.Do(t, s.Close())
		}
		if e, err := s.Record(); err != nil {
			t.Error(err)
		} else {
			e.Close()
		}
	})
}

// On a stream of a missing device, the first call that needs the device fails with the reason.
func TestStream_OfNoDevice(t *testing.T) {
	torchtest.CheckLeaks(t)
	reasons := map[Device]string{CUDA(99): "cuda:99 is not a device number", CUDA(-1): "cuda:-1 is not a device number"}
	n, err := CUDACount()
	if n > 0 {
		reasons[CUDA(n)] = "numbered from 0"
	} else {
		var e *Error
		if !errors.As(err, &e) || e.Message == "" || !errors.Is(err, ErrNoDevice) {
			t.Fatalf("CUDACount gives %v, want the reason", err)
		}
		reasons[CUDA(0)] = e.Message
	}
	for d, reason := range reasons {
		s := DefaultStream(d)
		wantError(t, s.Do(func(*Exec) error { t.Error("it ran"); return nil }), ErrNoDevice, "Stream.Do", reason)
		_, err := s.Record()
		wantError(t, err, ErrNoDevice, "Stream.Record", reason)
		wantError(t, s.Synchronize(), ErrNoDevice, "Stream.Synchronize", reason)
		_, err = NewStream(d, StreamOptions{})
		wantError(t, err, ErrNoDevice, "NewStream", reason)
		must.Do(t, s.Close())
	}
}

func TestStream_AfterClose(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		e := record(t, s)
		defer e.Close()
		for range 2 {
			must.Do(t, s.Close())
		}
		_, err := s.Record()
		wantError(t, err, ErrClosed, "Stream.Record", "the stream is closed", "stream_test.go")
		_, err = s.Query()
		wantError(t, err, ErrClosed, "Stream.Query")
		wantError(t, s.Wait(e), ErrClosed, "Stream.Wait")
		wantError(t, s.Synchronize(), ErrClosed, "Stream.Synchronize")
		wantError(t, s.Do(func(*Exec) error { t.Error("it ran"); return nil }), ErrClosed, "Stream.Do", "the stream is closed")
		wantError(t, torchtest.NewStream(t, d).Do(func(x *Exec) error { x.On(s); return nil }), ErrClosed, "Exec.On", "the stream is closed")
	})
}

func TestStream_CloseWaitsForItsDo(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	began, closed := make(chan bool), make(chan bool)
	go func() {
		<-began
		s.Close()
		close(closed)
	}()
	torchtest.DoOn(t, s, func(x *Exec) {
		close(began)
		for range 1000 {
			x.Ones(Float32, 10)
			select {
			case <-closed:
				t.Error("the stream was closed under its Do")
			default:
			}
		}
	})
	<-closed
}

// A stream that Exec.On uses cannot be closed until the Do ends.
func TestStream_CloseUnderOn(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s, other := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
		torchtest.DoOn(t, s, func(x *Exec) {
			y, again := x.On(other), x.On(other)
			wantError(t, other.Close(), ErrMisuse, "Stream.Close", "a Do of another stream uses this one")
			together.Run(1, func(int) { wantError(t, other.Close(), ErrMisuse) })
			a := y.Ones(Float32, 2)
			torchtest.Equal(t, again, again.Add(a, a), []float32{2, 2})
			if y.Stream() != other || y.On(s).Stream() != s || x.Stream() != s {
				t.Error("Stream is not that of On")
			}
			x.AtEnd(func() { torchtest.Equal(t, y, y.Ones(Float32, 1), []float32{1}) })
		})
		if err := other.Close(); err != nil {
			t.Errorf("after the Do: %v", err)
		}
	})
}

// Two Dos run at the same time, and each enqueues on the stream of the other Do. They must not
// wait for each other.
func TestExec_On_OfRunningStreams(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		streams := []*Stream{torchtest.NewStream(t, d), torchtest.NewStream(t, d)}
		within(t, func() {
			var both sync.WaitGroup
			both.Add(2)
			together.Run(2, func(i int) {
				err := streams[i].Do(func(x *Exec) error {
					both.Done()
					both.Wait()
					y := x.On(streams[1-i])
					e := x.Record()
					y.Wait(e)
					e.Close()
					torchtest.Equal(t, y, y.Ones(Float32, 1), []float32{1})
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		})
	})
}

func TestExec_On_KeepsModesAndScope(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		other := torchtest.NewStream(t, d)
		torchtest.Do(t, d, func(x *Exec) {
			y := x.NoGrad().Autocast(BFloat16).On(other)
			if y.GradEnabled() || y.Device() != d {
				t.Error("On changed the modes or the device")
			}
			a := y.Ones(Float32, 2, 2)
			if got := y.MM(a, a).DType(); got != BFloat16 {
				t.Errorf("autocast was lost: %v", got)
			}
			back := y.On(other).WithGrad().NoAutocast()
			if got := back.MM(a, a).DType(); got != Float32 {
				t.Errorf("NoAutocast gives %v", got)
			}
		})
	})
}

func TestStream_EventsOrder(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		a, b := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
		var kept *Tensor
		torchtest.DoOn(t, a, func(x *Exec) { kept = x.Keep(x.Zeros(Float32, 1<<20)) })
		defer kept.Close()
		for range 20 {
			together.Run(1, func(int) { a.Do(func(x *Exec) error { x.AddScalarInPlace(kept, 1); return nil }) })
			pass(t, a, b)
			b.Do(func(x *Exec) error { x.MulScalarInPlace(kept, 2); return nil })
			pass(t, b, a)
		}
		a.Do(func(x *Exec) error {
			if got, want := x.Item(x.Max(kept)), float64(2*(1<<20)-2); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
			return nil
		})
	})
}

// pass makes the stream b wait for all work enqueued so far on the stream a.
func pass(t *testing.T, a, b *Stream) {
	t.Helper()
	e := record(t, a)
	must.Do(t, b.Wait(e))
	e.Close() // the wait stays valid
}

// busy enqueues about half a second of work.
func busy(x *Exec) {
	a := x.Ones(Float32, 8192, 8192)
	b := a
	for range 25 {
		c := x.MM(a, b)
		if b != a {
			b.Close()
		}
		b = c
	}
}

// warm runs the first matrix product of each stream, because the first product allocates memory and
// loads libraries.
func warm(t *testing.T, streams ...*Stream) {
	for _, s := range streams {
		torchtest.DoOn(t, s, func(x *Exec) {
			a := x.Ones(Float32, 8192, 8192)
			x.Item(x.Sum(x.MM(a, a)))
		})
	}
}

// isBusy requires that work before the event still runs. If the event is done, isBusy fails the
// test with the text `what`.
func isBusy(t *testing.T, e *Event, what string) {
	t.Helper()
	done, err := e.Query()
	if err != nil {
		t.Error(err)
	} else if done {
		t.Error(what)
	}
}

func TestStream_RunsBesideAnother(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	streams := map[string]*Stream{"own": torchtest.NewStream(t, d), "another": torchtest.NewStream(t, d), "default": DefaultStream(d)}
	for _, s := range streams {
		warm(t, s)
	}
	for _, names := range [][2]string{{"own", "another"}, {"own", "default"}, {"default", "own"}} {
		long, short := streams[names[0]], streams[names[1]]
		torchtest.DoOn(t, long, func(x *Exec) { busy(x) })
		e := record(t, long)
		isBusy(t, e, "enqueueing waited for the device")
		torchtest.DoOn(t, short, func(x *Exec) { torchtest.Equal(t, x, x.Ones(Float32, 2), []float32{1, 1}) })
		isBusy(t, e, names[1]+" stream waited for "+names[0]+" stream")
		if done, err := short.Query(); !done || err != nil {
			t.Errorf("Query of the idle stream: %v, %v", done, err)
		}
		if done, err := long.Query(); done || err != nil {
			t.Errorf("Query of the busy stream: %v, %v", done, err)
		}
		must.Do(t, long.Synchronize())
		if done, err := e.Query(); !done || err != nil {
			t.Errorf("Query of the event behind Synchronize: %v, %v", done, err)
		}
		e.Close()
	}
}

func TestStream_WaitIsOnTheDevice(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	a, b := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
	warm(t, a, b)
	// CUDA loads a kernel on its first use, and may then wait for the device. So these kernels run
	// once before the test.
	torchtest.DoOn(t, b, func(x *Exec) {
		y := x.Zeros(Float32, 1)
		x.FillInPlace(y, 5.0)
		torchtest.Equal(t, x, x.AddScalar(y, 1), []float32{6})
	})
	var kept *Tensor
	torchtest.DoOn(t, a, func(x *Exec) {
		kept = x.Keep(x.Zeros(Float32, 1))
		busy(x)
		x.FillInPlace(kept, 5.0)
	})
	defer kept.Close()
	e := record(t, a)
	defer e.Close()
	must.Do(t, b.Wait(e))
	isBusy(t, e, "Wait waited on the host")
	torchtest.DoOn(t, b, func(x *Exec) {
		y := x.AddScalar(kept, 1)
		isBusy(t, e, "an operator behind Wait waited on the host")
		torchtest.Equal(t, x, y, []float32{6})
	})
}

// A tensor is freed while another stream still reads it. Its memory must not be handed out before
// the read is done. The host does not wait.
func TestStream_FreedMemoryOutlivesItsUse(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	a, b := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
	warm(t, a, b)
	const n = 1 << 24
	var shared, sum *Tensor
	torchtest.DoOn(t, a, func(x *Exec) { shared = x.Keep(x.Ones(Float32, n)) })
	pass(t, a, b)
	torchtest.DoOn(t, b, func(x *Exec) {
		busy(x)
		sum = x.Keep(x.Sum(shared))
	})
	defer sum.Close()
	shared.Close()
	overwrite(t, a, n)
	torchtest.DoOn(t, b, func(x *Exec) { torchtest.Equal(t, x, sum, []float32{n}) })
}

// overwrite allocates and fills memory on the stream. This memory could be the memory of a freed
// tensor of n elements.
func overwrite(t *testing.T, s *Stream, n int64) {
	torchtest.DoOn(t, s, func(x *Exec) {
		for range 8 {
			x.Full(Float32, -1.0, n)
		}
	})
}

// Backward makes a gradient on the stream b, and the stream a of the parameter reads it. The
// gradient is freed while the stream a still reads it. Its memory must not be handed out on the
// stream b before the read is done.
func TestStream_FreedGradientOutlivesItsUse(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	a, b := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
	warm(t, a, b)
	const n = 1 << 24
	var p, sum *Tensor
	torchtest.DoOn(t, a, func(x *Exec) error { p = x.Keep(x.Ones(Float32, n)); return p.SetRequiresGrad(true) })
	defer p.Close()
	pass(t, a, b)
	torchtest.DoOn(t, b, func(x *Exec) { x.Backward(x.Sum(x.MulScalar(p, 3.0))) })
	pass(t, b, a)
	torchtest.DoOn(t, a, func(x *Exec) {
		busy(x)
		sum = x.Keep(x.NoGrad().Sum(p.Grad()))
	})
	defer sum.Close()
	must.Do(t, p.SetGrad(nil))
	overwrite(t, b, n)
	torchtest.DoOn(t, a, func(x *Exec) { torchtest.Equal(t, x, sum, []float32{3 * n}) })
}

// A gradient is closed while another stream still reads it. It was returned by Gradients, or was
// given to Gradients. Its memory is not handed out before the read is done.
func TestStream_FreedGradientsOutliveTheirUse(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	a, b := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
	warm(t, a, b)
	const n = 1 << 24
	var p, seed, sum *Tensor
	torchtest.DoOn(t, a, func(x *Exec) error {
		p, seed = x.Keep(x.Ones(Float32, n)), x.Keep(x.Ones(Float32, n))
		return p.SetRequiresGrad(true)
	})
	defer p.Close()
	pass(t, a, b)
	torchtest.DoOn(t, b, func(x *Exec) {
		y := x.MulScalar(p, 3.0)
		busy(x)
		sum = x.Keep(x.NoGrad().Sum(x.Gradients([]*Tensor{y}, []*Tensor{p}, GradientOptions{Grads: []*Tensor{seed}})[0]))
	})
	seed.Close()
	overwrite(t, a, n)
	if err := b.Do(func(x *Exec) error { torchtest.Equal(t, x, sum, []float32{3 * n}); return nil }); err != nil {
		t.Errorf("a gradient that was given: %v", err)
	}
	sum.Close()

	pass(t, b, a)
	torchtest.DoOn(t, a, func(x *Exec) {
		made := x.Record()
		defer made.Close()
		side := x.On(b)
		side.Wait(made)
		y := side.Sum(side.MulScalar(p, 3.0))
		done := side.Record()
		defer done.Close()
		x.Wait(done)
		g := x.Gradients([]*Tensor{y}, []*Tensor{p}, GradientOptions{})[0] // made on b, because the forward ran there
		busy(x)
		sum = x.Keep(x.NoGrad().Sum(g))
	})
	defer sum.Close()
	overwrite(t, b, n)
	if err := a.Do(func(x *Exec) error { torchtest.Equal(t, x, sum, []float32{3 * n}); return nil }); err != nil {
		t.Errorf("a gradient that was returned: %v", err)
	}
}

// Close keeps the CUDA stream, and the next stream of the same priority gets it.
func TestStream_CloseGivesItToTheNext(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	native := Must(s.Native())
	s.Close()
	next := torchtest.NewStream(t, d)
	if got, err := next.Native(); got != native || err != nil {
		t.Errorf("the next stream is %#x, %v; want %#x", got, err, native)
	}
}

// Stream.Synchronize and Device.Synchronize wait for the work of a stream. Query tells without a
// wait whether the work is done.
func TestStream_HostWaits(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	warm(t, s)
	for name, wait := range map[string]func() error{
		"Stream.Synchronize": s.Synchronize,
		"Device.Synchronize": d.Synchronize,
	} {
		torchtest.DoOn(t, s, func(x *Exec) { torchtest.Sleep(x, 100*time.Millisecond) })
		e := record(t, s)
		if done, err := s.Query(); done || err != nil {
			t.Errorf("Stream.Query under work gives %v, %v", done, err)
		}
		isBusy(t, e, "Event.Query under work gives true")
		must.Do(t, wait())
		if done, err := e.Query(); !done || err != nil {
			t.Errorf("behind %s the event is done: %v, %v", name, done, err)
		}
		e.Close()
	}
}

// Close of a stream runs at the same time as On in another Do. Either the stream stays open for
// that Do, or it is closed before On.
func TestStream_CloseBesideOn(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s, other := torchtest.NewStream(t, d), DefaultStream(d) // a default stream can be used again after Close
		done := make(chan bool)
		go func() {
			defer close(done)
			for range 20000 {
				err := s.Do(func(x *Exec) error {
					x.On(other).Record().Close()
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		}()
		for {
			select {
			case <-done:
				return
			default:
				if err := other.Close(); err != nil && !errors.Is(err, ErrMisuse) {
					t.Error(err)
				}
			}
		}
	})
}

func TestStream_TryRecord(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		e, err := s.TryRecord()
		if e == nil || err != nil {
			t.Fatalf("on an idle stream: %v, %v", e, err)
		}
		e.Close()
		within(t, func() {
			s.Do(func(x *Exec) error {
				if e, err := s.TryRecord(); e != nil || err != nil {
					t.Errorf("inside its own Do: %v, %v", e, err)
				}
				together.Run(1, func(int) {
					e, err := s.TryRecord()
					if e == nil || err != nil {
						t.Errorf("beside its Do: %v, %v", e, err)
					}
					e.Close()
				})
				return nil
			})
		})
		s.Close()
		_, err = s.TryRecord()
		wantError(t, err, ErrClosed, "Stream.TryRecord")
	})
}

func TestExternalStream(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	own := torchtest.NewStream(t, d)
	native, err := own.Native()
	if err != nil || native == 0 {
		t.Fatalf("Native is %v, %v", native, err)
	}
	same := Must(ExternalStream(d, native))
	defer same.Close()
	if again, err := same.Native(); again != native || err != nil {
		t.Errorf("Native is %v, %v, want %v", again, err, native)
	}
	// Work of both Streams runs in the order in which it was enqueued.
	var a *Tensor
	torchtest.DoOn(t, own, func(x *Exec) {
		torchtest.Sleep(x, 50*time.Millisecond)
		a = x.Keep(x.Full(Float32, 7, 4))
	})
	defer a.Close()
	torchtest.DoOn(t, same, func(x *Exec) { torchtest.Equal(t, x, a, []float32{7, 7, 7, 7}) })

	for _, zero := range []uintptr{0, 1} { // 1 is cudaStreamLegacy
		s := Must(ExternalStream(d, zero))
		if native, err := s.Native(); native != 0 || err != nil {
			t.Errorf("the default stream's Native is %v, %v", native, err)
		}
		torchtest.DoOn(t, s, func(x *Exec) { torchtest.Equal(t, x, x.Ones(Float32, 1), []float32{1}) })
		s.Close()
	}
}

func TestExternalStream_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	_, err := ExternalStream(CPU, 0)
	wantError(t, err, ErrInvalidArgument, "ExternalStream", "the CPU has no streams")
	if n, _ := CUDACount(); n == 0 {
		_, err := ExternalStream(CUDA(0), 0)
		wantError(t, err, ErrNoDevice, "ExternalStream")
		return
	}
	_, err = ExternalStream(CUDA(0), 2)
	wantError(t, err, ErrInvalidArgument, "ExternalStream", "cudaStreamPerThread")
}

// A nil Stream and a zero Stream give an error in each method, and no crash.
func TestStream_Nil(t *testing.T) {
	torchtest.CheckLeaks(t)
	e := record(t, DefaultStream(CPU))
	defer e.Close()
	for name, s := range map[string]*Stream{"nil": nil, "zero": {}} {
		for method, call := range map[string]func() error{
			"Stream.Do":          func() error { return s.Do(func(x *Exec) error { return nil }) },
			"Stream.Record":      func() error { _, err := s.Record(); return err },
			"Stream.TryRecord":   func() error { _, err := s.TryRecord(); return err },
			"Stream.Wait":        func() error { return s.Wait(e) },
			"Stream.Query":       func() error { _, err := s.Query(); return err },
			"Stream.Synchronize": func() error { return s.Synchronize() },
			"Stream.Native":      func() error { _, err := s.Native(); return err },
			"Exec.On": func() error {
				return DefaultStream(CPU).Do(func(x *Exec) error { x.On(s); return nil })
			},
		} {
			t.Run(name+"/"+method, func(t *testing.T) {
				wantError(t, call(), ErrInvalidArgument, method, "NewStream")
			})
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: Close: %v", name, err)
		}
	}
}

// A nil Event is done. A zero Event gives an error in each method, and no crash.
func TestEvent_NeverRecorded(t *testing.T) {
	torchtest.CheckLeaks(t)
	slab := must.Get(NewHostSlab(CPU, 1))(t)
	defer slab.Close()
	fails := func(done bool, err error) error {
		if done != (err == nil) {
			t.Errorf("done: %v, %v", done, err)
		}
		return err
	}
	for name, e := range map[string]*Event{"nil": nil, "zero": {}} {
		for method, call := range map[string]func() error{
			"Stream.Wait":       func() error { return DefaultStream(CPU).Wait(e) },
			"Exec.Wait":         func() error { return DefaultStream(CPU).Do(func(x *Exec) error { x.Wait(e); return nil }) },
			"Event.Query":       func() error { done, err := e.Query(); return fails(done, err) },
			"Event.Poll":        func() error { done, err := e.Poll(); return fails(done, err) },
			"HostSlab.Await":    func() error { return slab.Await(e) },
			"Event.Synchronize": func() error { return e.Synchronize() },
			"Event.Elapsed":     func() error { _, err := e.Elapsed(e); return err },
		} {
			err := call()
			if refused := errors.Is(err, ErrInvalidArgument) || errors.Is(err, ErrClosed); refused != (e != nil || method == "Event.Elapsed") || !refused && err != nil {
				t.Errorf("%s: %s: got %v", name, method, err)
			}
		}
		<-e.Done()
		if err := e.Close(); err != nil {
			t.Errorf("%s: Close: %v", name, err)
		}
	}
}

// Outside captures an Exec enqueues on the program's streams. In warm-up runs and captures on
// CUDA, streams of the graph replace them.
func TestExec_Stream(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s, other := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
		check := func(x *Exec, standIn bool) {
			for y, of := range map[*Exec]*Stream{x: s, x.On(other): other, x.On(other).NoGrad(): other} {
				if (y.Stream() != of) != standIn {
					t.Errorf("%v for %v; stand-in: %v", y.Stream(), of, standIn)
				}
				if again := x.On(y.Stream()); again.Stream() != y.Stream() {
					t.Errorf("On(%v) enqueues on %v", y.Stream(), again.Stream())
				}
			}
		}
		torchtest.DoOn(t, s, func(x *Exec) { check(x, false) })
		captured(t, s, 1, func(x *Exec) {
			if !x.Capturing() {
				check(x, d.IsCUDA())
			}
			if y := Uncaptured(x); x.Capturing() && y.Stream() != s {
				t.Errorf("uncaptured work is enqueued on %v", y.Stream())
			}
			x.Zeros(Float32, 1)
		})
	})
}
