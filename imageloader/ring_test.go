package imageloader

import (
	"context"
	"testing"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
)

func TestRing_Buffers(t *testing.T) {
	checkLeaks(t)
	for _, test := range []struct{ buffers, batch, each int }{{1, 1, 1}, {4, 3, 7}, {2, 128, 3072}, {3, 64, 64}} {
		r, err := newRing(test.buffers, test.batch, test.each)
		if err != nil {
			t.Fatal(err)
		}
		var taken []*buffer
		for i := range test.buffers {
			b, err := take(r, context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if len(b.images) != test.batch*test.each || len(b.labels) != test.batch || len(b.flips) != test.batch {
				t.Errorf("%+v: got %d bytes, %d labels, %d flips", test, len(b.images), len(b.labels), len(b.flips))
			}
			if uintptr(unsafe.Pointer(&b.images[0]))%pageBytes != 0 || uintptr(unsafe.Pointer(&b.labels[0]))%alignBytes != 0 {
				t.Errorf("%+v: buffer %d is not aligned", test, i)
			}
			for j := range b.images {
				b.images[j] = byte(i + 1)
			}
			for j := range b.labels {
				b.labels[j], b.flips[j] = int64(i), byte(i+1)
			}
			taken = append(taken, b)
		}
		for i, b := range taken { // no two share memory
			if b.images[0] != byte(i+1) || b.images[len(b.images)-1] != byte(i+1) || b.labels[0] != int64(i) ||
				b.labels[test.batch-1] != int64(i) || b.flips[0] != byte(i+1) || b.flips[test.batch-1] != byte(i+1) {
				t.Errorf("%+v: buffer %d was overwritten", test, i)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := take(r, ctx); err != context.Canceled {
			t.Errorf("a taken ring: got error %v", err)
		}
		for _, b := range taken {
			r.give(b)
		}
		if got := len(r.free); got != test.buffers {
			t.Errorf("%+v: %d buffers are free", test, got)
		}
		if r.slab.Bytes() == nil {
			t.Errorf("%+v: an open ring has lost its slab", test)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}
}

// The stream checker learns that a buffer is about to be filled: a copy that still reads any part of it is a race.
func TestRing_Take_UnderACopy(t *testing.T) {
	checkLeaks(t)
	for name, read := range map[string]func(x *cgotorch.Exec, b *buffer){
		"images": func(x *cgotorch.Exec, b *buffer) { cgotorch.CopyFrom(x, x.Empty(cgotorch.Uint8, 6), b.images) },
		"labels": func(x *cgotorch.Exec, b *buffer) { cgotorch.CopyFrom(x, x.Empty(cgotorch.Int64, 2), b.labels) },
		"flips":  func(x *cgotorch.Exec, b *buffer) { cgotorch.CopyFrom(x, x.Empty(cgotorch.Uint8, 2), b.flips) },
	} {
		t.Run(name, func(t *testing.T) {
			races := 0
			stop, err := cgotorch.CheckStreams(func(*cgotorch.StreamRace) { races++ })
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			stream, err := cgotorch.NewStream(cgotorch.CPU, cgotorch.StreamOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			r, err := newRing(1, 2, 3)
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			for range 2 {
				b, err := take(r, context.Background())
				if err != nil {
					t.Fatal(err)
				}
				if err := stream.Do(func(x *cgotorch.Exec) error { read(x, b); return nil }); err != nil {
					t.Error(err)
				}
				r.give(b)
			}
			if err := stream.Synchronize(); err != nil {
				t.Error(err)
			}
			if stop(); races != 1 {
				t.Errorf("%d races, want that of the second filling with the first copy", races)
			}
		})
	}
}

// take waits for a free buffer.
func take(r *ring, ctx context.Context) (*buffer, error) {
	select {
	case b := <-r.free:
		r.taking(b)
		return b, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
