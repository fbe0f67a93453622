package imageloader

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/streamtorch/streamtorch/internal/arena"
)

// peak returns the most bytes by which the heap and the arenas together grow while f runs.
// Garbage is collected soon, so that it hardly counts.
func peak(f func()) int { return peakFrom(arena.Total(), f) }

// peakFrom returns what `peak` returns. But it compares with a state in which the arenas had
// `mapped` bytes.
func peakFrom(mapped int, f func()) int {
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	runtime.GC()
	runtime.GC() // a sync.Pool drops its memory at the second collection
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	heap := func() int {
		metrics.Read(sample)
		return int(sample[0].Value.Uint64())
	}
	before, most := heap()+mapped, 0
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Add(1)
	go func() {
		defer watching.Done()
		for {
			most = max(most, heap()+arena.Total()-before)
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	f()
	close(stop)
	watching.Wait()
	return most
}
