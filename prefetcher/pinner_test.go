package prefetcher

import (
	"context"
	"errors"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/imageloader"
	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// The stream checker learns that the loader is about to fill a buffer again. If a copy still
// reads a part of the buffer, the checker reports a race.
func TestPinner_RefilledUnderACopy(t *testing.T) {
	for name, read := range map[string]func(x *cgotorch.Exec, b *imageloader.HostBatch){
		"images": func(x *cgotorch.Exec, b *imageloader.HostBatch) {
			cgotorch.CopyFrom(x, x.Empty(cgotorch.Uint8, int64(len(b.Images))), b.Images)
		},
		"labels": func(x *cgotorch.Exec, b *imageloader.HostBatch) {
			cgotorch.CopyFrom(x, x.Empty(cgotorch.Int64, int64(b.N)), b.Labels)
		},
		"flips": func(x *cgotorch.Exec, b *imageloader.HostBatch) {
			cgotorch.CopyFrom(x, x.Empty(cgotorch.Bool, int64(b.N)), b.Flip)
		},
	} {
		for _, waits := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				torchtest.CheckLeaks(t)
				races := 0
				stop := must.Get(cgotorch.CheckStreams(func(*cgotorch.StreamRace) { races++ }))(t)
				defer stop()
				stream := torchtest.NewStream(t, cgotorch.CPU)
				loader := open(t, archive(t, 4, -1), imageloader.Options{BatchSize: 2, Buffers: 1})
				p := &pinner{device: cgotorch.CPU}
				must.Do(t, loader.Pin(p))
				for batch, err := range loader.Epoch(context.Background()) {
					must.Do(t, err)
					var copied *cgotorch.Event
					err := stream.Do(func(x *cgotorch.Exec) error {
						read(x, batch)
						copied = x.Record()
						return nil
					})
					must.Check(t, err)
					if waits {
						must.Check(t, slabOf(p, batch.Images).Await(copied))
					}
					copied.Close()
					batch.Release()
				}
				must.Check(t, stream.Synchronize())
				want := 1 // the filling for the second batch races with the copy of the first
				if waits {
					want = 0
				}
				if stop(); races != want {
					t.Errorf("waiting %v: %d races, want %d", waits, races, want)
				}
			})
		}
	}
}

// The parts of a batch that lie outside the Pinner's memory go through the prefetcher's staging.
// The host does not fill the staging while a copy reads it.
func TestEpoch_Staged(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		for _, test := range []struct {
			name   string
			source Source
			staged func(batches int64) int64
		}{
			{"all", pictures{sizes: []int{1, 2, 4, 3, 4, 4, 2}, keys: make([]uint64, 20), flips: true}, func(int64) int64 { return 0 }},
			{"labels", newCounted(t, 12, nil), func(batches int64) int64 { return batches * stagingAlign }},
			{"nothing", open(t, archive(t, 12, -1), imageloader.Options{BatchSize: 2, Crop: imageloader.Crop{HorizontalFlip: 0.5}}), func(int64) int64 { return 0 }},
		} {
			p := start(t, test.source, d, Options{Depth: 1})
			stream := torchtest.NewStream(t, d)
			for batch, err := range p.Epoch(context.Background()) {
				must.Do(t, err)
				torchtest.DoOn(t, stream, func(x *cgotorch.Exec) {
					images, labels := batch.Use(x)
					x.Sum(images)
					x.Sum(labels)
				})
			}
			stats := p.Stats()
			switch want := test.staged(int64(stats.Batches)); {
			case test.name == "all" && stats.Staged < stats.Bytes:
				t.Errorf("%s: %d bytes were staged of %d", test.name, stats.Staged, stats.Bytes)
			case test.name != "all" && stats.Staged != want:
				t.Errorf("%s: %d bytes were staged, want %d", test.name, stats.Staged, want)
			}
		}
	})
}

// unpinnable is a source whose memory cannot be page-locked.
type unpinnable struct{ *counted }

var errUnpinnable = errors.New("the system locks no more memory")

func (unpinnable) Pin(imageloader.Pinner) error { return errUnpinnable }

func TestNew_CannotPin(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		if _, err := New(unpinnable{newCounted(t, 1, nil)}, d, Options{}); !errors.Is(err, errUnpinnable) {
			t.Errorf("got %v, want the source's error", err)
		}
	})
}

// A second prefetcher of a loader takes over the loader's memory. The first prefetcher then
// copies through its staging.
func TestNew_SecondOfALoader(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d cgotorch.Device) {
		torchtest.CheckStreams(t)
		loader := open(t, archive(t, 12, -1), imageloader.Options{BatchSize: 2})
		first, second := start(t, loader, d, Options{}), start(t, loader, d, Options{})
		for i, p := range []*Prefetcher{second, first} {
			at := 0
			eachBatch(t, p, torchtest.NewStream(t, d), func(x *cgotorch.Exec, b *Batch, images, labels *cgotorch.Tensor) {
				checkBatch(t, x, b, images, labels, at)
				at += b.N
			})
			if staged := p.Stats().Staged > 0; staged != (i == 1) {
				t.Errorf("prefetcher %d: memory was staged: %v", i, staged)
			}
		}
	})
}

func TestPinner_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	memory := must.Get(arena.MapPages(8192))(t)
	defer arena.UnmapPages(memory)
	p := &pinner{device: cgotorch.CPU}
	must.Do(t, p.Pin(memory[:4096]))
	for _, wrong := range [][]byte{memory, memory[:4096], memory[8:], nil} {
		if err := p.Pin(wrong); !errors.Is(err, cgotorch.ErrInvalidArgument) {
			t.Errorf("%d bytes at %p: got %v", len(wrong), wrong, err)
		}
	}
	p.Unpin(memory[:4096])
	must.Check(t, p.Pin(memory))
	p.Unpin(memory)
}

// The staging of a slot is filled again while a copy from it may still run. The stream checker
// learns of the filling and reports one race.
func TestStaging_RefilledUnderACopy(t *testing.T) {
	torchtest.CheckLeaks(t)
	races := 0
	stop := must.Get(cgotorch.CheckStreams(func(*cgotorch.StreamRace) { races++ }))(t)
	defer stop()
	stream, s := torchtest.NewStream(t, cgotorch.CPU), staging{device: cgotorch.CPU}
	host := &imageloader.HostBatch{N: 1, Images: make([]byte, 12), Labels: make([]int64, 1), Flip: []bool{true}}
	for range 2 {
		from, err := s.stage(host, &pinner{}, nil) // nil: stage does not wait for the last copy
		must.Do(t, err)
		err = stream.Do(func(x *cgotorch.Exec) error {
			cgotorch.CopyFrom(x, x.Empty(cgotorch.Bool, 1), from.flips)
			return nil
		})
		must.Check(t, err)
	}
	must.Check(t, stream.Synchronize())
	s.close(nil)
	if stop(); races != 1 {
		t.Errorf("%d races, want that of the second filling with the first copy", races)
	}
}
