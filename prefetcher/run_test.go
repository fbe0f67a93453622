package prefetcher

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The work of an epoch never touches memory that a different stream or the host may be using.
// This also holds after the epoch. The loop body enqueues and never waits, so only the
// prefetcher's own events order its work.
func TestEpoch_HasNoRace(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		loader := open(t, archive(t, 24, -1), imageloader.Options{BatchSize: 2, Buffers: 3, HorizontalFlip: 1})
		source := gated{loader, make(chan bool, 12)}
		p := start(t, source, d, Options{Depth: 1})
		stream := torchtest.NewStream(t, d)
		source.next <- true
		for batch, err := range p.Epoch(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
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
