package cgotorch_test

import (
	"errors"
	"github.com/streamtorch/streamtorch/internal/must"
	"os"
	"slices"
	"testing"
	"unsafe"

	. "github.com/streamtorch/streamtorch/cgotorch"

	"github.com/streamtorch/streamtorch/internal/arena"
	"github.com/streamtorch/streamtorch/internal/leaktest"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func newSlab(t testing.TB, size int) *HostSlab {
	t.Helper()
	s := Must(NewHostSlab(CPU, size))
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestHostSlab(t *testing.T) {
	torchtest.CheckLeaks(t)
	for _, size := range []int{1, 4096, 100001} {
		before := LiveHandles()["slab bytes"]
		s := newSlab(t, size)
		data := s.Bytes()
		if len(data) != size || cap(data) != size {
			t.Errorf("%d bytes of %d, want %d", len(data), cap(data), size)
		}
		if uintptr(unsafe.Pointer(&data[0]))%uintptr(os.Getpagesize()) != 0 {
			t.Error("the memory does not begin with a page")
		}
		for i, b := range data {
			if b != 0 {
				t.Fatalf("byte %d is %d", i, b)
			}
			data[i] = byte(i)
		}
		if after := LiveHandles()["slab bytes"]; after != before+size {
			t.Errorf("the slabs grew by %d, want %d", after-before, size)
		}
		if Pinned(s) {
			t.Error("it is pinned")
		}
		for range 2 {
			must.Do(t, s.Close())
		}
		if s.Bytes() != nil || Pinned(s) {
			t.Error("a closed slab has memory")
		}
		wantError(t, s.Pin(), ErrClosed, "HostSlab.Pin", "the slab is closed")
	}
}

func TestNewHostSlab_Refused(t *testing.T) {
	torchtest.CheckLeaks(t)
	for size, want := range map[int]error{0: ErrInvalidArgument, -1: ErrInvalidArgument, 1 << 60: ErrOutOfMemory} {
		_, err := NewHostSlab(CPU, size)
		wantError(t, err, want, "NewHostSlab", "slab_test.go")
	}
}

func TestHostSlab_PinWithoutCUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	if n, _ := CUDACount(); n > 0 {
		t.Skip("CUDA is there")
	}
	s := newSlab(t, 4096)
	wantError(t, s.Pin(), ErrNoDevice, "HostSlab.Pin", "CUDA is not available")
	if Pinned(s) {
		t.Error("it is pinned")
	}
}

func TestHostSlab_CopyFrom(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		slab, err := NewHostSlab(d, 1<<20)
		if err != nil || Pinned(slab) != d.IsCUDA() {
			t.Fatalf("for %v: %v", d, err)
		}
		defer slab.Close()
		if d.IsCUDA() {
			if pinned := LiveHandles()["pinned bytes"]; pinned < 1<<20 {
				t.Errorf("%d bytes are pinned", pinned)
			}
		}
		s := torchtest.NewStream(t, d)
		data := slab.Bytes()
		for round := range 3 {
			for i := range data {
				data[i] = byte(i + round)
			}
			torchtest.DoOn(t, s, func(x *Exec) {
				into := x.Empty(Uint8, 1000)
				CopyFrom(x, into, data[5000:6000])
				torchtest.Equal(t, x, into, data[5000:6000]) // waits, so that the slab can be filled again

			})
		}
	})
}

func TestView(t *testing.T) {
	torchtest.CheckLeaks(t)
	slab := newSlab(t, 14)
	numbers := View[float32](slab)
	if len(numbers) != 3 {
		t.Fatalf("14 bytes have %d float32", len(numbers))
	}
	numbers[1] = 1
	if b := slab.Bytes(); b[6] != 0x80 || b[7] != 0x3f {
		t.Errorf("the bytes of 1 are %v", b[4:8])
	}
	slab.Close()
	if View[int64](slab) != nil {
		t.Error("a closed slab has elements")
	}
}

// Close gives the memory of a slab back to the system, so the process's address space does not
// grow.
func TestHostSlab_CloseGivesTheMemoryBack(t *testing.T) {
	torchtest.CheckLeaks(t)
	before := leaktest.Used(t).Address
	for range 64 {
		newSlab(t, 1<<30).Close()
	}
	if grown := leaktest.Used(t).Address - before; grown > 16<<30 {
		t.Errorf("64 slabs of 1 GiB, each closed before the next, take %d GiB", grown>>30)
	}
}

// Close unlocks page-locked memory before the memory goes back to the system. So the same pages
// can be locked again.
func TestHostSlab_PinAgain(t *testing.T) {
	torchtest.CheckLeaks(t)
	torchtest.CUDA(t)
	for range 4 {
		s := newSlab(t, 1<<20)
		must.Do(t, s.Pin())
		s.Close()
	}
}

// CopyFrom from pinned memory returns while earlier work of the stream still runs.
func TestHostSlab_PinnedCopyDoesNotWait(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	warm(t, s)
	slab := newSlab(t, 64<<20)
	must.Do(t, slab.Pin())
	for i := range slab.Bytes() {
		slab.Bytes()[i] = 1
	}
	var into *Tensor
	torchtest.DoOn(t, s, func(x *Exec) { into = x.Keep(x.Zeros(Uint8, 64<<20)) })
	defer into.Close()
	torchtest.DoOn(t, s, func(x *Exec) {
		busy(x)
		e := x.Record()
		defer e.Close()
		x.FillInPlace(into, 2.0)
		CopyFrom(x, into, slab.Bytes()) // overwrites the filled elements
		isBusy(t, e, "the copy waited for the work before it")
		behind := x.Record()
		defer behind.Close()
		isBusy(t, behind, "the copy is done before the work before it")
		torchtest.Equal(t, x, x.Max(into), []uint8{1})
	})
}

// FromSlice returns only when its data has been read. This also holds for pinned memory, although
// CUDA reads pinned memory after the call of the copy.
func TestHostSlab_FromSliceReadsBeforeReturn(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.CUDA(t)
	s := torchtest.NewStream(t, d)
	warm(t, s)
	slab := newSlab(t, 64<<20)
	must.Do(t, slab.Pin())
	torchtest.DoOn(t, s, func(x *Exec) {
		busy(x)
		made := FromSlice(x, slab.Bytes())
		for i := range slab.Bytes() {
			slab.Bytes()[i] = 1
		}
		torchtest.Equal(t, x, x.Max(made), []uint8{0})
	})
}

// HostSlabOver does not change the memory that it gets, and Close leaves the memory to its owner.
func TestHostSlabOver(t *testing.T) {
	torchtest.CheckLeaks(t)
	page := os.Getpagesize()
	memory := Must(arena.MapPages(3 * page))
	defer arena.UnmapPages(memory)
	memory[page] = 7
	before := LiveHandles()["slab bytes"]
	for range 2 {
		s, err := HostSlabOver(memory[page : 2*page+5])
		if err != nil {
			t.Fatal(err)
		}
		if data := s.Bytes(); len(data) != page+5 || &data[0] != &memory[page] || data[0] != 7 {
			t.Errorf("%d bytes at %p that begin with %d", len(data), data, data[0])
		}
		if after := LiveHandles()["slab bytes"]; after != before+page+5 {
			t.Errorf("the slabs grew by %d", after-before)
		}
		_, err = HostSlabOver(memory)
		wantError(t, err, ErrInvalidArgument, "HostSlabOver", "the memory is another slab's", "slab_test.go")
		if n, _ := CUDACount(); n > 0 {
			if err := s.Pin(); err != nil || !Pinned(s) {
				t.Errorf("Pin: %v", err)
			}
		}
		must.Do(t, errors.Join(s.Close(), s.Close()))
	}
	memory[page] = 8 // the memory is still mapped
	for _, wrong := range [][]byte{nil, memory[:0], memory[1:]} {
		_, err := HostSlabOver(wrong)
		wantError(t, err, ErrInvalidArgument, "HostSlabOver")
	}
}

// An event is recorded after copies to two slabs, and Await of one slab waits for the event. Uses
// of this slab are then no race. A read of the other slab must still be reported as a race.
func TestHostSlab_Await(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		torchtest.CheckLeaks(t)
		var races []*StreamRace
		stop := Must(CheckStreams(func(r *StreamRace) { races = append(races, r) }))
		defer stop()
		s, slab, other := torchtest.NewStream(t, d), newSlab(t, 32), newSlab(t, 32)
		if d.IsCUDA() {
			must.Do(t, errors.Join(slab.Pin(), other.Pin()))
		}
		var e *Event
		torchtest.DoOn(t, s, func(x *Exec) {
			CopyTo(x, x.Ones(Uint8, 32), slab.Bytes())
			CopyTo(x, x.Ones(Uint8, 32), other.Bytes())
			e = x.Record()
		})
		defer e.Close()
		must.Do(t, slab.Await(e))
		slab.Touch(false)
		slab.Touch(true)
		TellRaces()
		if len(races) != 0 {
			t.Errorf("got %v", races)
		}
		other.Touch(false)
		if stop(); len(races) != 1 || races[0].Earlier.Op != "CopyTo" {
			t.Errorf("got %v, want the read of the slab that was not awaited", races)
		}
		must.Do(t, s.Synchronize())
	})
}

// A mapped tensor is the memory of the slab, for operators and for the host, and outlives the slab.
func TestHostSlab_Mapped(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.Device()
	do := func(fn func(x *Exec)) {
		t.Helper()
		must.Do(t, DefaultStream(d).Do(func(x *Exec) error { fn(x); return nil }))
	}
	slab := Must(NewHostSlab(d, 4096))
	var kept *Tensor
	do(func(x *Exec) {
		copy(View[float32](slab), []float32{1, 2, 3, 4, 5, 6})
		m := slab.Mapped(x, 4, Float32, 2, 2)
		if m.Device() != d || !slices.Equal(ToSlice[float32](x, m), []float32{2, 3, 4, 5}) {
			t.Errorf("%v has %v", m, ToSlice[float32](x, m))
		}
		x.MulScalarInPlace(m, 10)
		x.Item(x.Sum(m)) // waits
		if got := View[float32](slab)[:6]; !slices.Equal(got, []float32{1, 20, 30, 40, 50, 6}) {
			t.Errorf("the slab has %v", got)
		}
		kept = x.Keep(m)
	})
	must.Do(t, slab.Close())
	do(func(x *Exec) {
		if got := x.Item(x.Sum(kept)); got != 140 {
			t.Errorf("behind the slab's end the sum is %v", got)
		}
	})
	must.Do(t, kept.Close())
	slab = Must(NewHostSlab(CPU, 100))
	defer slab.Close()
	for _, c := range []struct {
		text   string
		offset int
		shape  []int64
	}{{"does not lie in a slab of 100 bytes", 0, []int64{26}}, {"does not lie", -4, []int64{1}}, {"multiple of its elements", 2, []int64{1}}, {"does not lie", 104, []int64{0}}, {"does not lie", 0, []int64{-1}}, {"does not lie", 0, []int64{1 << 62, 8}}} {
		err := DefaultStream(CPU).Do(func(x *Exec) error { slab.Mapped(x, c.offset, Float32, c.shape...); return nil })
		torchtest.WantError(t, err, ErrInvalidArgument, "HostSlab.Mapped", c.text)
	}
	closed := Must(NewHostSlab(CPU, 100))
	closed.Close()
	err := DefaultStream(CPU).Do(func(x *Exec) error { closed.Mapped(x, 0, Float32, 1); return nil })
	torchtest.WantError(t, err, ErrClosed, "HostSlab.Mapped", "closed")
	err = DefaultStream(CPU).Do(func(x *Exec) error { slab.Mapped(x, 0, DType(12), 4); return nil }) // qint8
	torchtest.WantError(t, err, ErrInvalidArgument, "HostSlab.Mapped", "quantized")
	err = DefaultStream(CPU).Do(func(x *Exec) error { (*HostSlab)(nil).Mapped(x, 0, Float32, 1); return nil })
	torchtest.WantError(t, err, ErrClosed, "HostSlab.Mapped", "nil")
}

// The stream checker sees what operators read and write through mapped tensors.
func TestHostSlab_Mapped_CheckStreams(t *testing.T) {
	torchtest.CheckLeaks(t)
	d := torchtest.Device()
	for name, c := range map[string]struct {
		race bool
		work func(slab *HostSlab, a, b *Stream) error
	}{
		"the host reads what a stream writes": {true, func(slab *HostSlab, a, _ *Stream) error {
			if err := a.Do(func(x *Exec) error { x.FillInPlace(slab.Mapped(x, 0, Float32, 8), 1); return nil }); err != nil {
				return err
			}
			slab.Touch(false)
			return a.Do(func(*Exec) error { return nil })
		}},
		"the host waits": {false, func(slab *HostSlab, a, _ *Stream) error {
			var done *Event
			if err := a.Do(func(x *Exec) error { x.FillInPlace(slab.Mapped(x, 0, Float32, 8), 1); done = x.Record(); return nil }); err != nil {
				return err
			}
			defer done.Close()
			if err := slab.Await(done); err != nil {
				return err
			}
			slab.Touch(false)
			return nil
		}},
		"the host writes what a stream reads": {true, func(slab *HostSlab, a, _ *Stream) error {
			if err := a.Do(func(x *Exec) error { x.Sum(slab.Mapped(x, 64, Float32, 8)); return nil }); err != nil {
				return err
			}
			slab.Touch(true)
			return a.Do(func(*Exec) error { return nil })
		}},
		"two tensors, one memory": {true, func(slab *HostSlab, a, b *Stream) error {
			return a.Do(func(x *Exec) error {
				x.FillInPlace(slab.Mapped(x, 0, Float32, 8), 1)
				y := x.On(b)
				y.Sum(slab.Mapped(y, 28, Float32, 8))
				return nil
			})
		}},
		"two tensors beside each other": {false, func(slab *HostSlab, a, b *Stream) error {
			return a.Do(func(x *Exec) error {
				x.FillInPlace(slab.Mapped(x, 0, Float32, 8), 1)
				y := x.On(b)
				y.Sum(slab.Mapped(y, 32, Float32, 8))
				return nil
			})
		}},
		"one stream waits for the other": {false, func(slab *HostSlab, a, b *Stream) error {
			return a.Do(func(x *Exec) error {
				x.FillInPlace(slab.Mapped(x, 0, Float32, 8), 1)
				done := x.Record()
				defer done.Close()
				y := x.On(b)
				y.Wait(done)
				y.Sum(slab.Mapped(y, 28, Float32, 8))
				return nil
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var races []*StreamRace
			stop := Must(CheckStreams(func(r *StreamRace) { races = append(races, r) }))
			slab := Must(NewHostSlab(d, 4096))
			a, b := twoStreams(t, d)
			err := c.work(slab, a, b)
			must.Do(t, d.Synchronize())
			slab.Close()
			stop()
			if err != nil {
				t.Error(err)
			}
			if (len(races) > 0) != c.race {
				t.Errorf("found %v, want a race: %v", races, c.race)
			}
		})
	}
}
