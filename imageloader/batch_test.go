package imageloader

import (
	"context"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/together"
)

func TestHostBatch_Release_NoLoader(t *testing.T) {
	batch := &HostBatch{N: 1, Images: []byte{1}}
	batch.Release()
	batch.Release()
	if batch.Images != nil {
		t.Error("Images is not nil")
	}
}

// Release calls the OnRelease of a program's own batch once, after the batch has dropped its
// memory. The batch keeps the State that the program has set.
func TestHostBatch_OnRelease(t *testing.T) {
	memory := make([]byte, 12)
	calls, seen := 0, []byte{1}
	batch := &HostBatch{N: 1, Height: 2, Width: 2, Channels: 3, Images: memory, Labels: []int64{0}, State: State{Epoch: 2, Batch: 7}}
	batch.OnRelease = func() { calls++; seen = batch.Images }
	together.Run(8, func(int) {
		batch.Release()
	})
	if calls != 1 {
		t.Errorf("OnRelease was called %d times, want once", calls)
	}
	if seen != nil {
		t.Error("OnRelease was called while the batch had its memory")
	}
	if got, want := batch.State, (State{Epoch: 2, Batch: 7}); got != want {
		t.Errorf("got state %v, want %v", got, want)
	}
}

// A loader's batch can have an OnRelease too. Its memory still goes back to the loader, so the
// epoch has more batches than there are buffers.
func TestHostBatch_OnRelease_OfLoader(t *testing.T) {
	l := open(t, sources(t, numbered(40))[1].path, options())
	batches, calls := 0, 0
	for batch, err := range l.Epoch(context.Background()) {
		must.Do(t, err)
		batch.OnRelease = func() { calls++ }
		batches++
		batch.Release()
	}
	if calls != batches || batches <= defaultBuffers {
		t.Errorf("%d calls of OnRelease for %d batches", calls, batches)
	}
}
