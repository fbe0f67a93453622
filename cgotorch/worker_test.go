package cgotorch_test

import (
	"errors"
	"fmt"
	. "github.com/streamtorch/streamtorch/cgotorch"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/streamtorch/streamtorch/internal/together"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// here returns the file and line of its caller, with `lines` added to the line.
func here(lines int) string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", file, line+lines)
}

func TestDo_FailingOperatorUnwinds(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		var deferred, reached bool
		var where string
		err := s.Do(func(x *Exec) error {
			defer func() { deferred = true }()
			a := x.Ones(Float32, 2, 3)
			where = here(1)
			x.MM(a, a)
			reached = true
			return nil
		})
		if !deferred || reached {
			t.Errorf("deferred functions ran: %v, what follows the operator ran: %v; want true and false", deferred, reached)
		}
		wantError(t, err, ErrInvalidArgument, "mat1 and mat2 shapes cannot be multiplied")
		var e *Error
		if !errors.As(err, &e) {
			return
		}
		shapes := "float32[2 3], float32[2 3]"
		if d.IsCUDA() {
			shapes = "float32[2 3]@cuda:0, float32[2 3]@cuda:0"
		}
		if e.Op != "aten::mm" || e.Shapes != shapes || e.Caller != where || e.Kind != ErrInvalidArgument {
			t.Errorf("got %q %q %q %v, want aten::mm, %s, %s and %v", e.Op, e.Shapes, e.Caller, e.Kind, shapes, where, ErrInvalidArgument)
		}
		if want := "cgotorch: aten::mm(" + shapes + ") at " + where + ": "; !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %q, want it to begin with %q", err, want)
		}
		if err := s.Do(func(x *Exec) error { x.Ones(Float32, 1); return nil }); err != nil {
			t.Errorf("the stream is of no use after a failure: %v", err)
		}
	})
}

func TestDo_RecoveredFailureIsStillReturned(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		var kept *Tensor
		var second any
		err := s.Do(func(x *Exec) error {
			kept = x.Keep(x.Zeros(Float32, 1))
			first := panicOf(func() { x.MM(kept, kept) })
			if text := fmt.Sprint(first); !strings.Contains(text, "aten::mm") {
				t.Errorf("the panic reads %q, want the failure's text", text)
			}
			second = panicOf(func() { x.FillInPlace(kept, 7.0) })
			return io.EOF
		})
		wantError(t, err, ErrInvalidArgument, "aten::mm")
		if second == nil {
			t.Error("an operator after the failure did not fail")
		}
		torchtest.DoOn(t, s, func(x *Exec) { torchtest.Equal(t, x, kept, []float32{0}) })
		kept.Close()
	})
}

func TestDo_PanicIsRaisedAgain(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	for _, value := range []any{"a text", 42, io.ErrClosedPipe} {
		got := panicOf(func() {
			s.Do(func(x *Exec) error {
				x.Zeros(Float32, 10)
				raise(value)
				return nil
			})
		})
		p, ok := got.(*Panic)
		if !ok {
			t.Fatalf("Do panicked with %T %v, want a *Panic", got, got)
		}
		if p.Value != value {
			t.Errorf("value %v, want %v", p.Value, value)
		}
		if !strings.Contains(string(p.Stack), "cgotorch_test.raise") {
			t.Errorf("the stack does not show where the panic was raised:\n%s", p.Stack)
		}
		if !strings.Contains(p.Error(), fmt.Sprint(value)) || !strings.Contains(p.Error(), "cgotorch_test.raise") {
			t.Errorf("the text lacks the value or the stack: %s", p.Error())
		}
	}
	if got := panicOf(func() { s.Do(func(x *Exec) error { raise(io.ErrClosedPipe); return nil }) }); !errors.Is(got.(error), io.ErrClosedPipe) {
		t.Error("a panic with an error does not wrap it")
	}
	var null map[string]int
	if _, ok := panicOf(func() { s.Do(func(x *Exec) error { null["a"] = 1; return nil }) }).(*Panic); !ok {
		t.Error("an error of Go's runtime is no *Panic")
	}
	if err := s.Do(func(x *Exec) error { return nil }); err != nil {
		t.Errorf("the stream is of no use after a panic: %v", err)
	}
}

//go:noinline
func raise(value any) { panic(value) }

func TestDo_GoexitEndsTheCaller(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	var deferred, reached atomic.Bool
	together.Run(1, func(int) {
		defer deferred.Store(true)
		s.Do(func(x *Exec) error {
			x.Zeros(Float32, 10)
			runtime.Goexit()
			return nil
		})
		reached.Store(true)
	})
	if !deferred.Load() || reached.Load() {
		t.Errorf("deferred %v, reached %v; want true and false", deferred.Load(), reached.Load())
	}
	passed := t.Run("SkipNow", func(t *testing.T) {
		s.Do(func(x *Exec) error {
			t.SkipNow()
			return nil
		})
		t.Error("SkipNow inside a Do does not end the test")
	})
	if !passed {
		t.Error("the test that skips failed")
	}
	if err := s.Do(func(x *Exec) error { x.Zeros(Float32, 1); return nil }); err != nil {
		t.Errorf("the stream is of no use after Goexit: %v", err)
	}
}

// The worker of a stream has ended when Close returns.
func TestStream_Close_ItsWorkerHasEnded(t *testing.T) {
	torchtest.CheckLeaks(t)
	for range 200 {
		s := torchtest.NewStream(t, CPU)
		s.Do(func(x *Exec) error { return nil })
		if !HasWorker(s) {
			t.Fatal("a stream that has run a Do has no worker")
		}
		s.Close()
		if HasWorker(s) {
			t.Fatal("the worker outlives Close")
		}
	}
}

// execUses returns uses of an Exec. These uses are wrong outside its Do and on another goroutine.
func execUses(x *Exec, s *Stream, t *Tensor, e *Event) map[string]func() {
	return map[string]func(){
		"operator":   func() { x.Add(t, t) },
		"factory":    func() { x.Zeros(Float32, 1) },
		"Call":       func() { x.Call("aten::neg", t) },
		"Call bad":   func() { x.Call("aten::neg", struct{}{}) },
		"FromSlice":  func() { FromSlice(x, []float32{1}) },
		"ToSlice":    func() { ToSlice[float32](x, t) },
		"ToBytes":    func() { ToBytes(x, t) },
		"CopyFrom":   func() { CopyFrom(x, t, []float32{1}) },
		"Item":       func() { x.Item(t) },
		"Backward":   func() { x.Backward(t) },
		"Gradients":  func() { x.Gradients([]*Tensor{t}, []*Tensor{t}, GradientOptions{}) },
		"Record":     func() { x.Record() },
		"Wait":       func() { x.Wait(e) },
		"On":         func() { x.On(s) },
		"AtEnd":      func() { x.AtEnd(func() {}) },
		"Keep":       func() { x.Keep(t) },
		"Lend":       func() { x.Lend(t, "") },
		"Alias":      func() { x.Alias(t) },
		"Tidy":       func() { x.Tidy(func() *Tensor { return nil }) },
		"Fail":       func() { x.Fail("test", io.EOF) },
		"nil tensor": func() { x.Item(nil) },
		"derived":    func() { x.NoGrad().Autocast(BFloat16).Add(t, t) },
	}
}

func TestExec_AfterItsDoPanics(t *testing.T) {
	torchtest.CheckLeaks(t)
	s, other := torchtest.NewStream(t, CPU), torchtest.NewStream(t, CPU)
	var x *Exec
	var kept *Tensor
	var e *Event
	torchtest.DoOn(t, s, func(y *Exec) { x, kept, e = y, y.Keep(y.Ones(Float32, 1)), y.Record() })
	for name, use := range execUses(x, other, kept, e) {
		err, _ := panicOf(use).(error)
		t.Run(name, func(t *testing.T) { wantError(t, err, ErrMisuse, "Do", "worker_test.go") })
	}
	kept.Close()
	e.Close()
	s.Close()
	if x.Device() != CPU || !x.GradEnabled() || x.NoGrad().GradEnabled() {
		t.Error("what an Exec says of itself changed with its Do")
	}
}

func TestExec_OnAnotherGoroutinePanics(t *testing.T) {
	torchtest.CheckLeaks(t)
	s, other := torchtest.NewStream(t, CPU), torchtest.NewStream(t, CPU)
	torchtest.DoOn(t, s, func(x *Exec) {
		kept := x.Keep(x.Ones(Float32, 1))
		defer kept.Close()
		e := x.Record()
		defer e.Close()
		for name, use := range execUses(x, other, kept, e) {
			var err error
			together.Run(1, func(int) { err, _ = panicOf(use).(error) })
			t.Run(name, func(t *testing.T) { wantError(t, err, ErrMisuse, "another goroutine") })
		}
		torchtest.Equal(t, x, x.Add(kept, kept), []float32{2})
	})
}

func TestDo_InsideADo(t *testing.T) {
	torchtest.CheckLeaks(t)
	s, other := torchtest.NewStream(t, CPU), torchtest.NewStream(t, CPU)
	within(t, func() {
		err := s.Do(func(x *Exec) error {
			for _, inner := range []*Stream{s, other, DefaultStream(CPU)} {
				err := inner.Do(func(*Exec) error { t.Error("a Do ran inside a Do"); return nil })
				wantError(t, err, ErrMisuse, "Stream.Do", "use Exec.On", "worker_test.go")
			}
			x.Zeros(Float32, 1)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestDo_StreamsOwnMethodsInside(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	e := record(t, s)
	defer e.Close()
	within(t, func() {
		s.Do(func(x *Exec) error {
			_, err := s.Record()
			wantError(t, err, ErrMisuse, "Stream.Record", "inside a Do of this stream")
			wantError(t, s.Wait(e), ErrMisuse, "Stream.Wait")
			_, err = s.Query()
			wantError(t, err, ErrMisuse, "Stream.Query")
			wantError(t, s.Synchronize(), ErrMisuse, "Stream.Synchronize")
			wantError(t, s.Close(), ErrMisuse, "Stream.Close")
			return nil
		})
	})
}

func TestDo_ExcludesOthers(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	var inside atomic.Int32
	count := 0 // the race detector checks the accesses to count
	together.Run(16, func(int) {
		for range 50 {
			s.Do(func(x *Exec) error {
				if inside.Add(1) != 1 {
					t.Error("two Dos of one stream run at once")
				}
				count++
				runtime.Gosched()
				inside.Add(-1)
				return nil
			})
		}
	})
	if count != 16*50 {
		t.Errorf("%d Dos ran, want %d", count, 16*50)
	}
}

func TestDo_RunsOnOneThread(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	threads := map[uint64]bool{}
	for range 100 {
		together.Run(1, func(int) {
			s.Do(func(x *Exec) error { threads[Thread(x)] = true; return nil })
		})
	}
	if len(threads) != 1 {
		t.Errorf("Dos of one stream ran on %d threads", len(threads))
	}
}

func TestFail(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	var where string
	err := s.Do(func(x *Exec) error {
		where = here(1)
		x.Fail("reader.Next", io.ErrUnexpectedEOF)
		t.Error("Fail returned")
		return nil
	})
	torchtest.WantError(t, err, io.ErrUnexpectedEOF, "cgotorch: reader.Next at "+where+": unexpected EOF")
	mine := &Error{Op: "mine", Kind: ErrUnsupported, Message: "not today"}
	if err := s.Do(func(x *Exec) error { x.Fail("other", mine); return nil }); err != mine {
		t.Errorf("got %v, want the *Error itself", err)
	}
	for _, none := range []error{nil, (*Error)(nil)} {
		err := s.Do(func(x *Exec) error { x.Fail("nothing", none); return nil })
		var e *Error
		if !errors.As(err, &e) || e == nil || e.Op != "nothing" {
			t.Errorf("Fail(%v) gives %v", none, err)
		}
	}
}

func TestAtEnd(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	ends := map[string]func(x *Exec) error{
		"return":  func(x *Exec) error { return nil },
		"error":   func(x *Exec) error { return io.EOF },
		"failure": func(x *Exec) error { x.Call("aten::nothing"); return nil },
		"panic":   func(x *Exec) error { panic("it") },
		"Goexit":  func(x *Exec) error { runtime.Goexit(); return nil },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			var ran []string
			together.Run(1, func(int) {
				panicOf(func() {
					s.Do(func(x *Exec) error {
						a := x.Ones(Float32, 1)
						x.AtEnd(func() {
							ran = append(ran, fmt.Sprint("first ", x.Item(a)))
							x.AtEnd(func() { ran = append(ran, "last") })
						})
						x.AtEnd(func() { x.Call("aten::nothing"); ran = append(ran, "behind a failure") })
						x.AtEnd(func() { ran = append(ran, "third") })
						return end(x)
					})
				})
			})
			if got := strings.Join(ran, ", "); got != "first 1, third, last" {
				t.Errorf("ran %q", got)
			}
		})
	}
}

func TestAtEnd_FailureIsPassedOver(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	err := s.Do(func(x *Exec) error {
		x.AtEnd(func() { x.Call("aten::nothing") })
		return nil
	})
	if err != nil {
		t.Errorf("got %v, want what the function returned", err)
	}
	err = s.Do(func(x *Exec) error {
		x.AtEnd(func() { x.Call("aten::nothing") })
		x.MM(x.Ones(Float32, 1), x.Ones(Float32, 1))
		return nil
	})
	wantError(t, err, ErrInvalidArgument, "aten::mm")
}

func TestAtEnd_PanicLeavesNothingUndone(t *testing.T) {
	torchtest.CheckLeaks(t)
	s := torchtest.NewStream(t, CPU)
	for name, raise := range map[string]func(){"panic": func() { panic("first") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			second := false
			var got any
			together.Run(1, func(int) {
				got = panicOf(func() {
					s.Do(func(x *Exec) error {
						x.Ones(Float32, 100)
						x.AtEnd(raise)
						x.AtEnd(func() { second = true })
						return nil
					})
				})
			})
			if p, ok := got.(*Panic); name == "panic" && (!ok || p.Value != "first") {
				t.Errorf("got %v, want the panic", got)
			}
			if !second {
				t.Error("the function behind the panic did not run")
			}
			if n := liveTensors(); n != 0 {
				t.Errorf("%d tensors are left", n)
			}
		})
	}
	torchtest.DoOn(t, s, func(x *Exec) {})
}

// Many goroutines make streams at the same time. The thread on which a goroutine has just run can
// become the thread of another stream's worker. The goroutine's Do must still succeed. It must
// not be taken for a Do inside a Do.
func TestDo_BesideStreamsThatComeAndGo(t *testing.T) {
	torchtest.CheckLeaks(t)
	var all sync.WaitGroup
	for range 32 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 100 {
				s, err := NewStream(CPU, StreamOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				if err := s.Do(func(*Exec) error { return nil }); err != nil {
					t.Error(err)
				}
				s.Close()
			}
		}()
	}
	all.Wait()
}
