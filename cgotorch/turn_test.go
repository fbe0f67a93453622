package cgotorch_test

import (
	"errors"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// impatient lets calls look for deadlocks soon, until the test ends.
func impatient(t *testing.T) {
	t.Helper()
	SetPatience(100 * time.Millisecond)
	t.Cleanup(func() { SetPatience(0) })
}

// wantDeadlock fails the test if err is not the error of a call that would wait for ever. The error
// has to name both places in this file.
func wantDeadlock(t *testing.T, err error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrMisuse) {
		t.Fatalf("the call gives %v, want ErrMisuse", err)
	}
	if !strings.Contains(e.Caller, "turn_test.go:") || !strings.Contains(e.Message, "turn_test.go:") {
		t.Errorf("the error does not name both places: %v", err)
	}
	if n := len(err.Error()); n > 600 {
		t.Errorf("the error has %d characters: %v", n, err)
	}
}

// A Do waits for a goroutine that it has started, and that goroutine waits for the Do's stream.
func TestStream_Do_WaitsForItsOwnGoroutine(t *testing.T) {
	impatient(t)
	for name, waits := range map[string]func(call func() error) error{
		"channel": func(call func() error) error {
			done := make(chan error)
			go func() { done <- call() }()
			return <-done
		},
		"WaitGroup": func(call func() error) (err error) {
			var group sync.WaitGroup
			group.Add(1)
			go func() {
				defer group.Done()
				err = call()
			}()
			group.Wait()
			return err
		},
		"select": func(call func() error) error {
			done := make(chan error, 1)
			go func() { done <- call() }()
			select {
			case err := <-done:
				return err
			case <-time.After(time.Minute):
				return errors.New("waited for a minute")
			}
		},
		"grandchild": func(call func() error) error {
			done := make(chan error)
			go func() {
				inner := make(chan error)
				go func() { inner <- call() }()
				done <- <-inner
			}()
			return <-done
		},
	} {
		t.Run(name, func(t *testing.T) {
			torchtest.CheckLeaks(t)
			s := torchtest.NewStream(t, CPU)
			for op, call := range map[string]func() error{
				"Do":     func() error { return s.Do(func(x *Exec) error { return nil }) },
				"Record": func() error { _, err := s.Record(); return err },
			} {
				var inner error
				if err := s.Do(func(x *Exec) error { inner = waits(call); return nil }); err != nil {
					t.Errorf("%s: the outer Do gives %v", op, err)
				}
				wantDeadlock(t, inner)
			}
		})
	}
}

// Two Dos wait for each other across two streams, themselves or by a goroutine that each starts.
// One of the two calls has to fail.
func TestStream_Do_CircleOfTwo(t *testing.T) {
	for name, call := range map[string]func(other *Stream) error{
		"by a goroutine": func(other *Stream) error {
			done := make(chan error)
			go func() { done <- other.Do(func(x *Exec) error { return nil }) }()
			return <-done
		},
		"themselves": func(other *Stream) error { return other.Synchronize() },
	} {
		t.Run(name, func(t *testing.T) { circleOfTwo(t, call) })
	}
}

func circleOfTwo(t *testing.T, call func(other *Stream) error) {
	impatient(t)
	torchtest.CheckLeaks(t)
	a, b := torchtest.NewStream(t, CPU), torchtest.NewStream(t, CPU)
	var both sync.WaitGroup
	both.Add(2)
	across := func(own, other *Stream) (inner error) {
		err := own.Do(func(x *Exec) error {
			both.Done()
			both.Wait()
			inner = call(other)
			return nil
		})
		return errors.Join(err, inner)
	}
	second := make(chan error)
	go func() { second <- across(b, a) }()
	first := across(a, b)
	if err := <-second; (err == nil) == (first == nil) && err == nil {
		t.Error("both calls across succeeded")
	} else if err != nil {
		wantDeadlock(t, err)
	}
	if first != nil {
		wantDeadlock(t, first)
	}
}

// A Do that has started the calling goroutine is only slow while another one that it started works.
func TestStream_Do_SlowBesideItsOwn(t *testing.T) {
	impatient(t)
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	called := make(chan error, 1)
	torchtest.DoOn(t, s, func(*Exec) {
		go func() { called <- s.Synchronize() }()
		slept := make(chan struct{})
		go func() { time.Sleep(700 * time.Millisecond); close(slept) }()
		<-slept
	})
	if err := <-called; err != nil {
		t.Error(err)
	}
}

// A Do that is slow never makes a call fail, whatever it waits for: time, other goroutines that
// work, or a channel that somebody else serves.
func TestStream_Do_SlowIsNoDeadlock(t *testing.T) {
	impatient(t)
	torchtest.CheckLeaks(t)
	const slow = 700 * time.Millisecond
	for name, wait := range map[string]func(){
		"sleep": func() { time.Sleep(slow) },
		"timer": func() { <-time.After(slow) },
		"works": func() {
			for end := time.Now().Add(slow); time.Now().Before(end); {
			}
		},
		"workers": func() {
			var group sync.WaitGroup
			for range 3 {
				group.Add(1)
				go func() {
					defer group.Done()
					time.Sleep(slow)
				}()
			}
			group.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := torchtest.NewStream(t, CPU)
			began, ended := make(chan bool), make(chan error, 3)
			go func() {
				ended <- s.Do(func(x *Exec) error { close(began); wait(); return nil })
			}()
			<-began
			for range 2 {
				go func() { ended <- s.Do(func(x *Exec) error { return nil }) }()
			}
			for range 3 {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Waiting calls get a stream in their order.
func TestStream_Do_InOrder(t *testing.T) {
	s := torchtest.NewStream(t, CPU)
	var order []int
	var group sync.WaitGroup
	torchtest.DoOn(t, s, func(x *Exec) {
		for i := range 8 {
			group.Add(1)
			go func() {
				defer group.Done()

				if err := s.Do(func(x *Exec) error { order = append(order, i); return nil }); err != nil {
					t.Error(err)
				}
			}()
			time.Sleep(5 * time.Millisecond)
		}
	})
	group.Wait()
	if got := fmt.Sprint(order); got != "[0 1 2 3 4 5 6 7]" {
		t.Error("the Dos ran in the order ", got)
	}
}

// A Do waits for a lock that the goroutine holds that waits for the Do. No call fails, because Go
// does not tell who holds a lock. The log names both places, once.
func TestStream_Do_WaitsForALock(t *testing.T) {
	impatient(t)
	ForgetLocks()
	torchtest.CheckLeaks(t)
	told := make(lines, 8)
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(told, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	s := torchtest.NewStream(t, CPU)
	var lock sync.Mutex
	lock.Lock()
	inDo, ended, waited := make(chan bool), make(chan error), make(chan error)
	go func() {
		ended <- s.Do(func(x *Exec) error { close(inDo); lock.Lock(); defer lock.Unlock(); return nil })
	}()
	<-inDo
	go func() { waited <- s.Do(func(x *Exec) error { return nil }) }()
	got := ""
	select {
	case got = <-told:
	case <-time.After(20 * time.Second):
	}
	lock.Unlock()
	must.Do(t, errors.Join(<-waited, <-ended))
	if strings.Count(got, "waits for a lock") != 1 || strings.Count(got, "turn_test.go:") != 2 || !strings.Contains(got, "sync.Mutex.Lock") || len(told) > 0 {
		t.Errorf("the log is %q and %d more lines, want one line with two places", got, len(told))
	}
}

// lines is a writer whose writes can be received.
type lines chan string

func (l lines) Write(text []byte) (int, error) {
	l <- string(text)
	return len(text), nil
}

// A process has 1024 threads of streams at most. Close frees one.
func TestStream_Do_TooManyStreams(t *testing.T) {
	torchtest.CheckLeaks(t)
	var open []*Stream
	defer func() {
		for _, s := range open {
			s.Close()
		}
	}()
	one := func() error {
		s := Must(NewStream(CPU, StreamOptions{}))
		open = append(open, s)
		return s.Do(func(x *Exec) error { return nil })
	}
	var err error
	for range 1025 {
		if err = one(); err != nil {
			break
		}
	}
	wantError(t, err, ErrMisuse, "Stream.Do", "1024 streams have a thread each", "turn_test.go:")
	must.Do(t, open[0].Close())
	if err := one(); err != nil {
		t.Error("after a Close:", err)
	}
}
