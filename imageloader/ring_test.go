package imageloader

import (
	"context"
	"testing"
	"unsafe"

	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/ring"
)

func TestRing_Buffers(t *testing.T) {
	checkLeaks(t)
	for _, test := range []struct{ buffers, batch, each int }{{1, 1, 1}, {4, 3, 7}, {2, 128, 3072}, {3, 64, 64}} {
		r := must.Get(newBuffers(test.buffers, test.batch, test.each))(t)
		var taken []*buffer
		for i := range test.buffers {
			b := must.Get(take(r, context.Background()))(t)
			if len(b.Parts.images) != test.batch*test.each || len(b.Parts.labels) != test.batch || len(b.Parts.flips) != test.batch {
				t.Errorf("%+v: got %d bytes, %d labels, %d flips", test, len(b.Parts.images), len(b.Parts.labels), len(b.Parts.flips))
			}
			if uintptr(unsafe.Pointer(&b.Parts.images[0]))%uintptr(ring.PageBytes) != 0 || uintptr(unsafe.Pointer(&b.Parts.labels[0]))%alignBytes != 0 {
				t.Errorf("%+v: buffer %d is not aligned", test, i)
			}
			for j := range b.Parts.images {
				b.Parts.images[j] = byte(i + 1)
			}
			for j := range b.Parts.labels {
				b.Parts.labels[j], b.Parts.flips[j] = int64(i), byte(i+1)
			}
			taken = append(taken, b)
		}
		for i, b := range taken { // no two buffers share memory
			if b.Parts.images[0] != byte(i+1) || b.Parts.images[len(b.Parts.images)-1] != byte(i+1) || b.Parts.labels[0] != int64(i) ||
				b.Parts.labels[test.batch-1] != int64(i) || b.Parts.flips[0] != byte(i+1) || b.Parts.flips[test.batch-1] != byte(i+1) {
				t.Errorf("%+v: buffer %d was overwritten", test, i)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := take(r, ctx); err != context.Canceled {
			t.Errorf("a taken ring: got error %v", err)
		}
		for _, b := range taken {
			r.Give(b)
		}
		if got := len(r.Free); got != test.buffers {
			t.Errorf("%+v: %d buffers are free", test, got)
		}
		if !r.Mapped() {
			t.Errorf("%+v: an open ring has lost its memory", test)
		}
		must.Check(t, r.Close())
	}
}

// Before a buffer is filled, HostWrites of the Pinner gets all memory of the buffer. The Pinner
// can then find a copy that still reads the memory.
func TestRing_Take_TellsThePinner(t *testing.T) {
	checkLeaks(t)
	r := must.Get(newBuffers(2, 2, 3))(t)
	defer r.Close()
	var p recorder
	must.Do(t, r.Pin(&p))
	for range 3 {
		b := must.Get(take(r, context.Background()))(t)
		if len(p.written) != 1 {
			t.Fatalf("%d writes were told, want one for each filling", len(p.written))
		}
		written := p.written[0]
		p.written = nil
		inside := func(first, last unsafe.Pointer) bool {
			begin := uintptr(unsafe.Pointer(&written[0]))
			return uintptr(first) >= begin && uintptr(last) < begin+uintptr(len(written))
		}
		if !inside(unsafe.Pointer(&b.Parts.images[0]), unsafe.Pointer(&b.Parts.images[5])) || !inside(unsafe.Pointer(&b.Parts.labels[0]), unsafe.Pointer(&b.Parts.labels[1])) ||
			!inside(unsafe.Pointer(&b.Parts.flips[0]), unsafe.Pointer(&b.Parts.flips[1])) {
			t.Error("a part of the buffer is about to be filled and was not told")
		}
		if p.pinned[&written[0]] != len(written) {
			t.Error("what was told is no memory that was handed to Pin")
		}
		r.Give(b)
	}
}

// take waits for a free buffer.
func take(r *buffers, ctx context.Context) (*buffer, error) {
	select {
	case b := <-r.Free:
		r.Taking(b)
		return b, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
