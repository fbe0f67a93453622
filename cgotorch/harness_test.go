package cgotorch_test

import (
	"errors"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func liveTensors() int { return LiveHandles()["tensor"] }

// eventually waits until the function `done` returns true. It gives up after a while, and reports
// whether `done` has returned true. It is for effects of another goroutine or of the garbage
// collector.
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

// onStreams calls fn in several goroutines, as many as the argument `goroutines` says, and waits
// for all of them. Each goroutine has a stream of its own.
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
	e := Must(s.Record())
	return e
}

func recordTiming(t testing.TB, s *Stream) *Event {
	t.Helper()
	var e *Event
	torchtest.DoOn(t, s, func(x *Exec) { e = x.RecordTiming() })
	return e
}

// wantError requires that err is an *Error of the kind `sentinel`, and that its text contains
// every string in `texts`. Otherwise wantError fails the test.
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

// within fails the test if fn does not return within a minute.
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
