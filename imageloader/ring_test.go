package imageloader

import (
	"context"
	"testing"
	"unsafe"
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
		for i, b := range taken { // no two buffers share memory
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
		if r.pages.memory == nil {
			t.Errorf("%+v: an open ring has lost its memory", test)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}
}

// Before a buffer is filled, HostWrites of the Pinner gets all memory of the buffer. The Pinner
// can then find a copy that still reads the memory.
func TestRing_Take_TellsThePinner(t *testing.T) {
	checkLeaks(t)
	r, err := newRing(2, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	var p recorder
	if err := r.pin(&p); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		b, err := take(r, context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if len(p.written) != 1 {
			t.Fatalf("%d writes were told, want one for each filling", len(p.written))
		}
		written := p.written[0]
		p.written = nil
		inside := func(first, last unsafe.Pointer) bool {
			begin := uintptr(unsafe.Pointer(&written[0]))
			return uintptr(first) >= begin && uintptr(last) < begin+uintptr(len(written))
		}
		if !inside(unsafe.Pointer(&b.images[0]), unsafe.Pointer(&b.images[5])) || !inside(unsafe.Pointer(&b.labels[0]), unsafe.Pointer(&b.labels[1])) ||
			!inside(unsafe.Pointer(&b.flips[0]), unsafe.Pointer(&b.flips[1])) {
			t.Error("a part of the buffer is about to be filled and was not told")
		}
		if p.pinned[&written[0]] != len(written) {
			t.Error("what was told is no memory that was handed to Pin")
		}
		r.give(b)
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
