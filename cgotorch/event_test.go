package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/together"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestEvent(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		start := recordTiming(t, s)
		s.Do(func(x *Exec) error { x.Ones(Float32, 1000); return nil })
		end := recordTiming(t, s)
		must.Do(t, end.Synchronize())
		if done, err := end.Query(); !done || err != nil {
			t.Errorf("Query gives %v, %v after Synchronize", done, err)
		}
		if ms, err := end.Elapsed(start); ms <= 0 || err != nil {
			t.Errorf("Elapsed gives %v, %v", ms, err)
		}
		forward, _ := end.Elapsed(start)
		if backward, err := start.Elapsed(end); backward != -forward || err != nil {
			t.Errorf("Elapsed gives %v forward, and backward %v, %v", forward, backward, err)
		}
		if ms, err := end.Elapsed(end); ms != 0 || err != nil {
			t.Errorf("Elapsed from itself gives %v, %v", ms, err)
		}
		plain := record(t, s)
		_, err := plain.Elapsed(start)
		wantError(t, err, ErrInvalidArgument, "Event.Elapsed", "not recorded for timing")
		for _, e := range []*Event{start, end, plain} {
			e.Close()
		}
	})
}

func TestEvent_OfAnExec(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		other := torchtest.NewStream(t, d)
		var outlives *Event
		torchtest.Do(t, d, func(x *Exec) {
			start := x.RecordTiming()
			y := x.On(other)
			y.Wait(start)
			outlives = y.RecordTiming()
			x.Wait(outlives)
			must.Do(t, outlives.Synchronize())
			if _, err := outlives.Elapsed(start); err != nil {
				t.Error(err)
			}
			start.Close()
		})
		if done, err := outlives.Query(); !done || err != nil {
			t.Errorf("Query after the Do gives %v, %v", done, err)
		}
		outlives.Close()
	})
}

func TestEvent_AfterClose(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	e := recordTiming(t, s)
	open := recordTiming(t, s)
	defer open.Close()
	for range 2 {
		must.Do(t, e.Close())
	}
	_, err := e.Query()
	wantError(t, err, ErrClosed, "Event.Query", "the event is closed", "event_test.go")
	wantError(t, e.Synchronize(), ErrClosed, "Event.Synchronize")
	_, err = e.Elapsed(open)
	wantError(t, err, ErrClosed, "Event.Elapsed")
	_, err = open.Elapsed(e)
	wantError(t, err, ErrClosed, "Event.Elapsed")
	wantError(t, s.Wait(e), ErrClosed, "Stream.Wait")
	wantError(t, torchtest.NewStream(t, CPU).Do(func(x *Exec) error { x.Wait(e); return nil }), ErrClosed, "Exec.Wait")
}

// Close does not free a handle while another call uses the handle.
func TestEvent_CloseWaitsForCallsUnderWay(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	e := record(t, s)
	events := LiveHandles()["event"]
	end := Must(UnderCall(e))
	closed := make(chan struct{})
	go func() {
		e.Close()
		close(closed)
	}()
	time.Sleep(20 * time.Millisecond) // Close most likely waits by then; the test also passes if Close has not begun
	if got := LiveHandles()["event"]; got != events || isClosed(closed) {
		t.Errorf("closed under a call: %d events, %d before", got, events)
	}
	end()
	<-closed
}

func TestEvent_FromManyGoroutines(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		a := recordTiming(t, s)
		b := recordTiming(t, s)
		s.Synchronize()
		within(t, func() {
			together.Run(8, func(i int) {
				for range 200 {
					if i%2 == 0 {
						a.Elapsed(b)
					} else {
						b.Elapsed(a)
					}
					a.Query()
					b.Synchronize()
				}
				a.Close()
				b.Close()
			})
		})
	})
}

// Query and Wait return at once even while another goroutine waits for the event.
func TestEvent_SynchronizeHoldsNobodyUp(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s, other := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
	warm(t, s)
	s.Do(func(x *Exec) error { busy(x); return nil })
	e := record(t, s)
	watch := record(t, s)
	defer watch.Close()
	synchronized := make(chan error)
	go func() { synchronized <- e.Synchronize() }()
	time.Sleep(20 * time.Millisecond) // the goroutine most likely waits by then
	if done, err := e.Query(); done || err != nil {
		t.Errorf("Query gives %v, %v", done, err)
	}
	must.Do(t, other.Wait(e))
	isBusy(t, watch, "Query or Wait waited for Synchronize on another goroutine")
	if err := <-synchronized; err != nil {
		t.Error(err)
	}
	e.Close()
}

// An event is closed before it is done, and its CUDA event is recorded again on an idle stream.
// The channel of the first event must stay open until the work before the first recording is
// done.
func TestEvent_Done_ClosedAndRecordedAgain(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s, idle := torchtest.NewStream(t, d), torchtest.NewStream(t, d)
	warm(t, s)
	s.Do(func(x *Exec) error { torchtest.Sleep(x, 300*time.Millisecond); return nil })
	e := record(t, s)
	watch := record(t, s)
	defer watch.Close()
	done := e.Done()
	e.Close()
	for range 8 {
		again := record(t, idle)
		defer again.Close()
	}
	time.Sleep(20 * time.Millisecond) // the events of the idle stream are done by now
	if isClosed(done) {
		t.Error("told by another recording")
	}
	<-done
	if ok, err := watch.Query(); !ok && err == nil {
		time.Sleep(time.Millisecond) // the event `watch` was recorded directly after e, so it is done soon
		if ok, err = watch.Query(); !ok || err != nil {
			t.Errorf("told before its work was done: %v, %v", ok, err)
		}
	}
}

// A CPU stream runs its work at once. So if a CPU stream waits for an event of a CUDA device, the
// host waits.
func TestStream_Wait_CPUForCUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s, cpu := torchtest.NewStream(t, d), torchtest.NewStream(t, CPU)
	slab := newSlab(t, 4)
	must.Do(t, slab.Pin())
	// The first round only warms up, because CUDA loads a kernel on its first use and may then wait
	// for the device.
	for i, length := range []time.Duration{0, 100 * time.Millisecond} {
		value := byte(3 + i)
		var e *Event
		torchtest.DoOn(t, s, func(x *Exec) {
			torchtest.Sleep(x, length)
			CopyTo(x, x.Full(Uint8, int(value), 4), slab.Bytes())
			e = x.Record()
		})
		defer e.Close()
		must.Do(t, cpu.Wait(e))
		if got := slab.Bytes()[3]; got != value {
			t.Errorf("behind the wait the host reads %d, want %d", got, value)
		}
		must.Do(t, s.Synchronize())
	}
}
