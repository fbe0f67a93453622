package distributed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/leaktest"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// longVariable is an environment variable. When it is set, the tests of endurance have the numbers
// of repetitions that are asked of the package.
const longVariable = "STREAMTORCH_TEST_RANKS"

func repetitions(short, long int) int {
	if os.Getenv(longVariable) != "" {
		return long
	}
	return short
}

// used is [leaktest.Used] without garbage.
func used(t *testing.T) leaktest.Usage {
	t.Helper()
	runtime.GC()
	return leaktest.Used(t)
}

// settle waits until the counts are no larger than `before`, or for some seconds. Threads of
// LibTorch end a moment after their group. The threads of Go itself never end, so a few more are
// no leak.
func settle(t *testing.T, before leaktest.Usage, moreThreads, moreBytes int) {
	t.Helper()
	var after leaktest.Usage
	for range 100 {
		after = used(t)
		if after.Files <= before.Files && after.Goroutines <= before.Goroutines && after.Threads <= before.Threads+moreThreads {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("before %+v, after %+v", before, after)
	if after.Files > before.Files || after.Goroutines > before.Goroutines || after.Threads > before.Threads+moreThreads || after.Resident > before.Resident+moreBytes {
		t.Errorf("got %+v, want at most %+v with %d more threads and %d more bytes", after, before, moreThreads, moreBytes)
	}
}

// Joins and leaves leave nothing behind.
func TestJoin_Often(t *testing.T) {
	torchtest.CheckLeaks(t)
	once := func() {
		port := freePort(t)
		var all sync.WaitGroup
		for i := range 2 {
			all.Add(1)
			go func() {
				defer all.Done()
				g, err := join(context.Background(), Options{Device: "cpu"}, environment(port, i, 2))
				if err != nil {
					t.Error(err)
					return
				}
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			}()
		}
		all.Wait()
	}
	often(t, repetitions(15, 1000), 16<<20, once)
}

// The same over NCCL, where a join takes seconds.
func TestJoin_OftenCUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CUDA(t)
	// The threads of NCCL make glibc take more arenas, up to 0.8 GB in 50 joins. With
	// MALLOC_ARENA_MAX=2 memory stays.
	often(t, repetitions(2, 60), 1<<30, func() {
		onGPUs(t, Options{}, func(g *Group, s *cgotorch.Stream) error {
			return s.Do(func(x *cgotorch.Exec) error { g.Barrier(x); return nil })
		})
	})
}

// often calls `once` ten times, and then many times that leave nothing behind.
func often(t *testing.T, count int, moreBytes int, once func()) {
	for range min(10, count) {
		once()
	}
	before := used(t)
	for range count {
		if once(); t.Failed() {
			return
		}
	}
	settle(t, before, 8, moreBytes)
}

// Eight streams of each rank take turns with their all-reduces. Each sum belongs to its turn.
func TestGroup_ManyAllReduces(t *testing.T) {
	torchtest.CheckLeaks(t)
	wantErrors(t, together(t, 2, Options{}, manyAllReduces(t)), nil)
}

func TestGroup_ManyAllReducesCUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	onGPUs(t, Options{}, manyAllReduces(t))
}

// manyAllReduces returns what one rank does.
func manyAllReduces(t *testing.T) func(g *Group, _ *cgotorch.Stream) error {
	const streams = 8
	count := repetitions(1000, 100000) / streams
	var before leaktest.Usage
	return func(g *Group, _ *cgotorch.Stream) error {
		sum := float64(g.World() * (g.World() + 1) / 2)
		turns := make([]chan int, streams) // stream k gets the number of the next all-reduce, and passes it on
		for k := range turns {
			turns[k] = make(chan int, 1)
		}
		errs := make([]error, streams)
		var all sync.WaitGroup
		for k := range streams {
			all.Add(1)
			go func() {
				defer all.Done()
				defer close(turns[(k+1)%streams])
				s, err := cgotorch.NewStream(g.Device(), cgotorch.StreamOptions{Name: fmt.Sprint("stream ", k)})
				if err != nil {
					errs[k] = err
					return
				}
				defer s.Close()
				for range count {
					n, more := <-turns[k]
					if !more {
						return
					}
					if g.Rank() == 0 && n == 500 {
						before = used(t)
					}
					errs[k] = s.Do(func(x *cgotorch.Exec) error {
						v := x.Full(cgotorch.Float64, n*(g.Rank()+1), 16)
						g.AllReduce(x, v, Sum)
						if got := cgotorch.ToSlice[float64](x, v); got[0] != sum*float64(n) || got[15] != sum*float64(n) {
							return fmt.Errorf("all-reduce %d: got %v, want %v", n, got[0], sum*float64(n))
						}
						return nil
					})
					if errs[k] != nil {
						return
					}
					turns[(k+1)%streams] <- n + 1
				}
			}()
		}
		began := time.Now()
		turns[0] <- 0
		all.Wait()
		if g.Rank() == 0 {
			after := used(t)
			t.Logf("%d all-reduces of 8 streams: %v each; before %+v, after %+v", count*streams, time.Since(began)/time.Duration(count*streams), before, after)
			if after.Resident > before.Resident+16<<20 || after.Files > before.Files || after.Threads > before.Threads+8 {
				t.Errorf("got %+v, want %+v", after, before)
			}
		}
		return errors.Join(errs...)
	}
}
