package prefetcher

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The work of an epoch never touches memory that a different stream or the host may be using.
// This also holds after the epoch. The loop body enqueues and never waits, so only the
// prefetcher's own events order its work.
func TestEpoch_HasNoRace(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		loader := open(t, archive(t, 24, -1), imageloader.Options{BatchSize: 2, Buffers: 3, Crop: imageloader.Crop{HorizontalFlip: 1}})
		source := gated{loader, make(chan bool, 12)}
		p := start(t, source, d, Options{Depth: 1})
		stream := torchtest.NewStream(t, d)
		source.next <- true
		for batch, err := range p.Epoch(context.Background()) {
			must.Do(t, err)
			torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
				images, labels := batch.Use(x)
				x.Sum(images)
				x.Sum(labels)
			})
			source.next <- true
		}
	})
}

// When the loop has been left, the source has every batch back, however the epoch ended. No copy
// reads a batch that came back.
func TestEpoch_ReleasesEachBatch(t *testing.T) {
	for _, test := range []struct {
		name    string
		batches int
		spoil   func(*imageloader.HostBatch)
		leaveAt int // index of the batch in whose body the loop is left, or -1
		err     string
	}{
		{"at its end", 6, nil, -1, ""},
		{"left early", 100, nil, 1, ""},
		{"a batch that does not fit", 6, func(b *imageloader.HostBatch) { b.N = 3 }, -1, "has shape [3 8 8 3]"},
		{"a copy that fails behind another", 6, func(b *imageloader.HostBatch) { b.Labels = b.Labels[:1] }, -1, "copying batch 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
				torchtest.CheckStreams(t)
				source := newCounted(t, test.batches, test.spoil)
				p := start(t, source, d, Options{})
				var failed error
				for batch, err := range p.Epoch(context.Background()) {
					if err != nil {
						failed = err
					} else if batch.Index == test.leaveAt {
						break
					}
				}
				if made, released := source.made.Load(), source.released.Load(); made == 0 || made != released {
					t.Errorf("%d batches of %d came back", released, made)
				}
				if test.err == "" && failed != nil || test.err != "" && (failed == nil || !strings.Contains(failed.Error(), test.err)) {
					t.Errorf("the epoch ended with %v, want %q", failed, test.err)
				}
			})
		})
	}
}

// The context ends while a batch waits for a slot. The epoch then ends with the context's cause,
// and every batch comes back.
func TestEpoch_CancelledWithoutASlot(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		source := newCounted(t, 100, nil)
		p := start(t, source, d, Options{Depth: 1})
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		why := errors.New("enough")
		var last error
		for batch, err := range p.Epoch(ctx) {
			if last = err; err == nil && batch.Index == 0 {
				for source.made.Load() < 3 { // the third has no slot while this body runs
					runtime.Gosched()
				}
				cancel(why)
			}
		}
		if !errors.Is(last, why) {
			t.Errorf("the epoch ended with %v, want %v", last, why)
		}
		if made, released := source.made.Load(), source.released.Load(); made != released {
			t.Errorf("%d batches of %d came back", released, made)
		}
	})
}

// A loop inside one Do holds every slot until the Do ends. The batch after that would never come,
// so the loop ends with an error. An epoch of at most Depth+1 batches ends well.
func TestEpoch_InsideADo(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		for _, n := range []int{2, 3, 100} {
			p := start(t, newCounted(t, n, nil), d, Options{Depth: 2})
			stream := torchtest.NewStream(t, d)
			batches := 0
			var last error
			began := time.Now()
			err := stream.Do(func(x *cgotorch.Exec) error {
				for batch, err := range p.Epoch(context.Background()) {
					if last = err; err == nil {
						images, _ := batch.Use(x)
						x.Sum(images)
						batches++
					}
				}
				return nil
			})
			must.Check(t, err)
			if n <= 3 {
				if last != nil || batches != n {
					t.Errorf("an epoch of %d batches gives %d and %v", n, batches, last)
				}
				continue
			}
			if batches != 3 || !errors.Is(last, cgotorch.ErrMisuse) || time.Since(began) > 10*time.Second {
				t.Errorf("an epoch inside a Do gives %d batches and %v after %v", batches, last, time.Since(began))
			}
		}
	})
}

// A Do on another goroutine that holds all slots ends some time. The loop waits for it.
func TestEpoch_InsideADo_OtherGoroutines(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		p := start(t, newCounted(t, 7, nil), d, Options{Depth: 1})
		stream := torchtest.NewStream(t, d)
		var group sync.WaitGroup
		batches := 0
		if err := stream.Do(func(x *cgotorch.Exec) error { // the loop is inside a Do that uses no batch
			for batch, err := range p.Epoch(context.Background()) {
				if err != nil {
					return err
				}
				other := torchtest.NewStream(t, d)
				used := make(chan error)
				group.Add(1)
				go func() {
					defer group.Done()

					err := other.Do(func(x *cgotorch.Exec) error {
						images, _ := batch.Use(x)
						used <- nil
						time.Sleep(30 * time.Millisecond)
						x.Sum(images)
						return nil
					})
					must.Check(t, err)
				}()
				if err := <-used; err != nil {
					return err
				}
				batches++
			}
			return nil
		}); err != nil || batches != 7 {
			t.Errorf("%d batches, and %v", batches, err)
		}
		group.Wait()
	})
}
