package cgotorch_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	. "github.com/streamtorch/streamtorch/cgotorch"

	"github.com/streamtorch/streamtorch/internal/leaktest"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestEvent_Done(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		s := torchtest.NewStream(t, d)
		var first, second *Event
		torchtest.Do(t, d, func(x *Exec) {
			y := x.On(s)
			torchtest.Sleep(y, 50*time.Millisecond)
			first = y.Record()
			torchtest.Sleep(y, 50*time.Millisecond)
			second = y.Record()
		})
		later, sooner := second.Done(), first.Done() // Done is first called for the event that was recorded second
		if d.IsCUDA() && (isClosed(sooner) || isClosed(later)) {
			t.Error("done before its work")
		}
		if first.Done() != sooner {
			t.Error("another channel at the second call")
		}
		<-sooner
		if done, err := first.Query(); !done || err != nil {
			t.Errorf("told that it is done, and Query gives %v, %v", done, err)
		}
		if d.IsCUDA() && isClosed(later) {
			t.Error("the later one was done with the sooner")
		}
		second.Close() // the channel can still be used
		first.Close()
		<-later
		if !isClosed(first.Done()) || !isClosed(second.Done()) {
			t.Error("a closed event is not done")
		}
	})
}

// Ten thousand goroutines wait for events, and no goroutine holds an OS thread.
func TestEvent_DoneForManyGoroutines(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		const streams, goroutines = 8, 10_000
		var events []*Event
		for range streams {
			s := torchtest.NewStream(t, d)
			torchtest.DoOn(t, s, func(x *Exec) {
				if d.IsCUDA() {
					torchtest.Sleep(x, 300*time.Millisecond) // the device sleeps until all goroutines wait
				}
				for range 10 {
					torchtest.Sleep(x, time.Millisecond)
					events = append(events, x.Record())
				}
			})
		}
		before := leaktest.Used(t).Threads
		var waiting, all sync.WaitGroup
		for i := range goroutines {
			waiting.Add(1)
			all.Add(1)
			go func() {
				defer all.Done()
				done := events[i%len(events)].Done()
				waiting.Done()
				<-done
			}()
		}
		waiting.Wait()
		if grown := leaktest.Used(t).Threads - before; grown > runtime.GOMAXPROCS(0)+8 {
			t.Errorf("%d threads more for %d goroutines", grown, goroutines)
		}
		all.Wait()
		for i, e := range events {
			if ok, err := e.Query(); !ok || err != nil {
				t.Errorf("event %d is not done: %v, %v", i, ok, err)
			}
			e.Close()
		}
	})
}
