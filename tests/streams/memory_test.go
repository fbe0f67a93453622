package streams

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/leaktest"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// work runs forward and backward on s. It is so large that LibTorch uses several threads.
func work(s *cgotorch.Stream) error {
	return s.Do(func(x *cgotorch.Exec) error {
		a := x.Ones(cgotorch.Float32, 1<<17)
		cgotorch.Check(a.SetRequiresGrad(true))
		x.Backward(x.Sum(x.Mul(a, a)))
		return nil
	})
}

// After a stream is closed, its threads end: its worker, and LibTorch's threads for the worker.
func TestStreams_ThreadsEndWithThem(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		const n = 32
		round := func() {
			onStreams(t, d, n, func(i int, s *cgotorch.Stream) error { return work(s) })
		}
		round() // makes the threads that are made only once: Go's for calls that block, and autograd's
		round()
		base := leaktest.Used(t).Threads
		during := 0
		for range 3 {
			onStreams(t, d, n, func(i int, s *cgotorch.Stream) error {
				if i == 0 {
					defer func() { during = max(during, leaktest.Used(t).Threads) }()
				}
				return work(s)
			})
		}
		// A few more threads of Go are no leak. A thread for each stream would be 96 threads.
		deadline := time.Now().Add(10 * time.Second)
		for leaktest.Used(t).Threads > base+n/2 && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		if got := leaktest.Used(t).Threads; got > base+n/2 {
			t.Errorf("%d threads, %d before (%d during)", got, base, during)
		}
	})
}

// The number of threads is bounded by the number of streams, however many goroutines call. Each
// stream has one worker, and LibTorch's threads for this worker.
func TestStreams_ThreadsAreBounded(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		const n, callers = 4, 500
		streams := make([]*cgotorch.Stream, n)
		for i := range streams {
			var err error
			if streams[i], err = cgotorch.NewStream(d, cgotorch.StreamOptions{}); err != nil {
				t.Fatal(err)
			}
			defer streams[i].Close()
			must.Do(t, work(streams[i]))
		}
		base := leaktest.Used(t).Threads
		var all sync.WaitGroup
		most := 0
		for i := range callers {
			all.Add(1)
			go func() {
				defer all.Done()
				for range 4 {
					must.Check(t, work(streams[i%n]))
				}
			}()
		}
		for range 50 {
			most = max(most, leaktest.Used(t).Threads)
			time.Sleep(time.Millisecond)
		}
		all.Wait()
		// All threads of LibTorch exist already. Go may start a thread for each goroutine that runs.
		if limit := base + runtime.GOMAXPROCS(0) + 4; most > limit {
			t.Errorf("%d threads with %d goroutines on %d streams, %d before, want at most %d", most, callers, n, base, limit)
		}
	})
}

// After ten thousand more Dos, LibTorch, Go and the process hold no more memory than before.
func TestStreams_MemoryIsFlat(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		s := torchtest.NewStream(t, d)
		var p *cgotorch.Tensor
		torchtest.DoOn(t, s, func(x *cgotorch.Exec) error { p = x.Keep(x.Ones(cgotorch.Float32, 64)); return p.SetRequiresGrad(true) })
		defer p.Close()
		step := func(i int) {
			err := s.Do(func(x *cgotorch.Exec) error {
				if i%100 == 0 {
					x.MM(p, p) // this call fails
				}
				if i%100 == 1 {
					if e := x.Record(); e != nil {
						e.Close()
					}
				}
				x.Backward(x.Sum(x.Mul(p, x.ReLU6(p))))
				return p.SetGrad(nil)
			})
			if (err != nil) != (i%100 == 0) {
				t.Fatal(err)
			}
		}
		measure := func() (torch, resident int64, heap uint64) {
			runtime.GC()
			m := must.Get(d.Memory())(t)
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			return m.Allocated, int64(leaktest.Used(t).Resident), stats.HeapAlloc
		}
		for i := range 1000 {
			step(i)
		}
		torch, resident, heap := measure()
		for i := range 10000 {
			step(i)
		}
		torchAfter, residentAfter, heapAfter := measure()
		if torchAfter != torch {
			t.Errorf("LibTorch holds %d bytes more", torchAfter-torch)
		}
		if grown := int64(heapAfter) - int64(heap); grown > 1<<20 {
			t.Errorf("Go's heap holds %d bytes more", grown)
		}
		if grown := residentAfter - resident; grown > 16<<20 {
			t.Errorf("%d bytes more are resident", grown)
		}
	})
}
