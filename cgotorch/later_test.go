package cgotorch

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Calls run in order, and Synchronize and Close wait for them.
func TestStream_Later(t *testing.T) {
	checkLeaks(t)
	onEachDevice(t, func(t *testing.T, d Device) {
		s := newStream(t, d)
		for _, wait := range []func() error{d.Synchronize, s.Close} {
			var mu sync.Mutex
			var ran []int
			for i := range 4 {
				if err := s.Later(func() {
					time.Sleep(5 * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					ran = append(ran, i)
				}); err != nil {
					t.Fatal(err)
				}
			}
			if err := wait(); err != nil {
				t.Error(err)
			}
			mu.Lock()
			if !slices.Equal(ran, []int{0, 1, 2, 3}) {
				t.Errorf("%v have run", ran)
			}
			mu.Unlock()
		}
		wantError(t, s.Later(func() { t.Error("run on a closed stream") }), ErrClosed, "Stream.Later", "the stream is closed")
		var none *Stream
		wantError(t, none.Later(func() {}), ErrInvalidArgument, "Stream.Later")
	})
}

// Work of one stream's calls, in order with work of others by events.
func TestStream_Later_Copies(t *testing.T) {
	checkLeaks(t)
	onEachDevice(t, func(t *testing.T, d Device) {
		s := newStream(t, d)
		slab := newSlab(t, 8)
		if d.IsCUDA() {
			if err := slab.Pin(); err != nil {
				t.Fatal(err)
			}
		}
		copy(slab.Bytes(), []byte{1, 2, 3, 4, 5, 6, 7, 8})
		var to *Tensor
		runOn(t, s, func(x *Exec) { to = x.Keep(x.Zeros(Uint8, 8)) })
		defer to.Close()
		done := make(chan *Event, 1)
		if err := s.Later(func() {
			began, ended, err := s.CopyFrom(nil, HostCopy{to, slab.Bytes()})
			if err != nil {
				t.Error(err)
			}
			began.Close()
			done <- ended
		}); err != nil {
			t.Fatal(err)
		}
		runOn(t, newStream(t, d), func(x *Exec) {
			copied := <-done
			defer copied.Close()
			x.Wait(copied)
			if got := ToBytes(x, to); !slices.Equal(got, slab.Bytes()) {
				t.Errorf("got %v", got)
			}
		})
	})
}

// A call that ends its goroutine does not hold up the others.
func TestStream_Later_Goexit(t *testing.T) {
	checkLeaks(t)
	s := newStream(t, CPU)
	ran := make(chan bool, 1)
	for _, fn := range []func(){runtime.Goexit, func() { ran <- true }} {
		if err := s.Later(fn); err != nil {
			t.Fatal(err)
		}
	}
	if err := CPU.Synchronize(); err != nil {
		t.Error(err)
	}
	select {
	case <-ran:
	default:
		t.Error("the second call has not run")
	}
}

// A wait that would wait for itself is refused; one goroutine that goes on giving calls holds nobody up.
func TestStream_Later_Synchronize(t *testing.T) {
	checkLeaks(t)
	s, other := newStream(t, CPU), newStream(t, CPU)
	var stop atomic.Bool
	var again func()
	again = func() {
		time.Sleep(time.Millisecond)
		if !stop.Load() {
			if err := other.Later(again); err != nil {
				t.Error(err)
			}
		}
	}
	if err := other.Later(again); err != nil {
		t.Fatal(err)
	}
	if err := CPU.Synchronize(); err != nil {
		t.Error(err)
	}
	stop.Store(true)
	runOn(t, s, func(x *Exec) {
		if err := s.Later(func() { s.Query() }); err != nil {
			t.Fatal(err)
		}
		wantError(t, CPU.Synchronize(), ErrMisuse, "Device.Synchronize", "calls given to Later")
	})
}
