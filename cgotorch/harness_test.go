package cgotorch_test

import (
	"errors"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/leaktest"
)

// devices returns the devices that each test of operators runs on.
func devices(t testing.TB) []Device {
	t.Helper()
	if n, _ := CUDACount(); n > 0 {
		return []Device{CPU, CUDA(0)}
	}
	return []Device{CPU}
}

func onEachDevice(t *testing.T, test func(t *testing.T, d Device)) {
	t.Helper()
	for _, d := range devices(t) {
		t.Run(d.String(), func(t *testing.T) { test(t, d) })
	}
}

// cuda returns the first CUDA device. Without a device it skips the test.
func cuda(t testing.TB) Device {
	t.Helper()
	if n, err := CUDACount(); n == 0 {
		t.Skip(err)
	}
	return CUDA(0)
}

// checkLeaks fails the test if handles or goroutines made by the test are left when the test
// ends. Before it looks, it closes the default streams.
func checkLeaks(t testing.TB) {
	t.Helper()
	leaktest.Check(t, LiveHandles, func() {
		for _, d := range devices(t) {
			if err := DefaultStream(d).Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func liveTensors() int { return LiveHandles()["tensor"] }

// eventually waits until done returns true, and reports whether done returned true in time. It is
// for effects of another goroutine or of the garbage collector.
func eventually(done func() bool) bool {
	for range 500 {
		if done() {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

func stacks() string {
	text := make([]byte, 1<<20)
	return string(text[:runtime.Stack(text, true)])
}

// newStream returns a stream that is closed when the test ends.
func newStream(t testing.TB, d Device) *Stream {
	t.Helper()
	s, err := NewStream(d, StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// onStreams calls fn in as many goroutines as the argument goroutines says, and waits for all.
// Each goroutine has a stream of its own.
func onStreams(t testing.TB, d Device, goroutines int, fn func(i int, s *Stream) error) {
	t.Helper()
	var done sync.WaitGroup
	for i := range goroutines {
		done.Add(1)
		go func() {
			defer done.Done()
			s, err := NewStream(d, StreamOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			if err := fn(i, s); err != nil {
				t.Error(err)
			}
		}()
	}
	done.Wait()
}

// record returns an event after the work enqueued so far on the stream. The caller must close the
// event.
func record(t testing.TB, s *Stream) *Event {
	t.Helper()
	e, err := s.Record()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func recordTiming(t testing.TB, s *Stream) *Event {
	t.Helper()
	e, err := s.RecordTiming()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// do runs fn on a stream of the device. It fails the test if the Do fails.
func do(t testing.TB, d Device, fn func(x *Exec)) {
	t.Helper()
	if err := tryDo(t, d, fn); err != nil {
		t.Error(err)
	}
}

func tryDo(t testing.TB, d Device, fn func(x *Exec)) error {
	t.Helper()
	return newStream(t, d).Do(func(x *Exec) error {
		fn(x)
		return nil
	})
}

// wantError fails the test unless err is an *Error of the kind `sentinel` and its text contains
// every string in `texts`.
func wantError(t testing.TB, err error, sentinel error, texts ...string) {
	t.Helper()
	var e *Error
	switch {
	case err == nil:
		t.Errorf("no error, want %v", sentinel)
		return
	case !errors.As(err, &e):
		t.Errorf("%v is a %T, want an *Error", err, err)
		return
	case !errors.Is(err, sentinel):
		t.Errorf("%v is not %v", err, sentinel)
	}
	for _, text := range append(texts, "cgotorch: ") {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q, want %q in it", err, text)
		}
	}
}

// panicOf runs fn on this goroutine and returns the value of its panic.
func panicOf(fn func()) (value any) {
	defer func() { value = recover() }()
	fn()
	return nil
}

// failureOf runs fn and returns the failure with which fn unwinds.
func failureOf(fn func()) error {
	return Failure(panicOf(fn))
}

func closeAll(ts []*Tensor) {
	for _, t := range ts {
		t.Close()
	}
}

// within fails the test if fn hangs.
func within(t testing.TB, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("hangs:\n%s", stacks())
	}
}

// together calls fn in n goroutines at the same time, and waits for all.
func together(n int, fn func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Add(1)
		go func() {
			defer all.Done()
			fn(i)
		}()
	}
	all.Wait()
}

// sleep enqueues work that keeps the stream busy for the time d.
func sleep(x *Exec, d time.Duration) { x.Call("streamtorch::sleep", d.Nanoseconds(), x.Device()) }

// equal fails the test unless got has the given shape and elements. No shape means one dimension.
func equal[T Element](t testing.TB, x *Exec, got *Tensor, want []T, shape ...int64) {
	t.Helper()
	if len(shape) == 0 && got.Dim() > 0 {
		shape = []int64{int64(len(want))}
	}
	if !slices.Equal(got.Shape(), shape) {
		t.Errorf("shape %v, want %v", got.Shape(), shape)
	}
	if values := ToSlice[T](x, got); !slices.Equal(values, want) {
		t.Errorf("got %v, want %v", values, want)
	}
}
