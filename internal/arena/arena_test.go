package arena

import (
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"github.com/streamtorch/streamtorch/internal/leaktest"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/together"
)

func TestSizeClass(t *testing.T) {
	last, lastSize := -1, 0
	for n := 0; n < 1<<20; n += 37 {
		class, size := sizeClass(n)
		if size < n || size > max(smallest, n+n/steps) {
			t.Fatalf("%d bytes: got size %d", n, size)
		}
		if again, same := sizeClass(size); again != class || same != size {
			t.Fatalf("size %d of class %d is of class %d, size %d", size, class, again, same)
		}
		if (class == last) != (size == lastSize) || class < last {
			t.Fatalf("%d bytes: class %d of size %d after class %d of size %d", n, class, size, last, lastSize)
		}
		last, lastSize = class, size
	}
	if class, _ := sizeClass(1 << 40); class >= classes {
		t.Errorf("class %d", class)
	}
}

func TestArena_Reuses(t *testing.T) {
	for _, size := range []int{5000, 300_000} {
		a := New(1 << 20)
		defer a.Close()
		reused := false
		for range 100 { // a sync.Pool may drop a piece, so one try is not enough
			one := a.Take(size)
			a.Give(one)
			two := a.Take(size - 100)
			reused = reused || &one[0] == &two[0]
			a.Give(two)
		}
		if !reused {
			t.Errorf("%d bytes that were given back are not taken again", size)
		}
		if a.Out() != 0 {
			t.Errorf("%d pieces are out", a.Out())
		}
	}
}

// The arena keeps no more than `most` bytes, whatever sizes are taken and given back.
func TestArena_Bounded(t *testing.T) {
	const most = 4 << 20
	a := New(most)
	defer a.Close()
	random := rand.New(rand.NewPCG(1, 2))
	var pieces [][]byte
	for range 500 {
		piece := a.Take(random.IntN(400_000))
		for i := range piece {
			piece[i] = 1
		}
		if pieces = append(pieces, piece); len(pieces) > 8 { // at most 8 pieces of 450,000 bytes
			i := random.IntN(len(pieces))
			a.Give(pieces[i])
			pieces[i] = pieces[len(pieces)-1]
			pieces = pieces[:len(pieces)-1]
		}
		if a.Mapped() > most+512<<10 {
			t.Fatalf("%d bytes are mapped", a.Mapped())
		}
	}
	for range 20 {
		pieces = append(pieces, a.Take(1<<20))
	}
	if a.Mapped() < 20<<20 {
		t.Errorf("20 MiB are taken, and %d bytes are mapped", a.Mapped())
	}
	for _, piece := range pieces {
		a.Give(piece)
	}
	if a.Mapped() > most || a.Out() != 0 {
		t.Errorf("%d bytes are kept, %d pieces out", a.Mapped(), a.Out())
	}
}

func TestArena_Close(t *testing.T) {
	a := New(128 << 20)
	kept, lost := a.Take(40<<20), a.Take(40<<20)
	fill(kept, 1)
	fill(lost, 1)
	a.Give(kept)
	before := leaktest.Used(t).Resident
	a.Close()
	a.Close()
	if got := leaktest.Used(t).Resident; got > before-75<<20 {
		t.Errorf("%d MiB resident before Close, %d after", before>>20, got>>20)
	}
	piece := a.Take(1 << 20) // of Go's heap, because the arena is closed
	fill(piece, 1)
	a.Give(piece)
	if a.Mapped() != 0 || Total() != 0 {
		t.Errorf("%d bytes are mapped, %d by all", a.Mapped(), Total())
	}
}

// fill sets every byte of a piece to value.
func fill(piece []byte, value byte) {
	for i := range piece {
		piece[i] = value
	}
}

// Two goroutines never have the same piece at a time.
func TestArena_Concurrent(t *testing.T) {
	a := New(1 << 20)
	defer a.Close()
	together.Run(8, func(g int) {
		random := rand.New(rand.NewPCG(uint64(g), 3))
		for range 300 {
			piece := a.Take(random.IntN(200_000) + 1)
			fill(piece, byte(g))
			for i, b := range piece {
				if b != byte(g) {
					t.Errorf("byte %d is %d's and %d's", i, g, b)
					return
				}
			}
			a.Give(piece)
		}
	})
	if a.Out() != 0 {
		t.Errorf("%d pieces are out", a.Out())
	}
}

func TestMapPages(t *testing.T) {
	before := Pages()
	memory := must.Get(MapPages(10_000))(t)
	if len(memory) != 10_000 || uintptr(unsafe.Pointer(&memory[0]))%uintptr(os.Getpagesize()) != 0 || Pages() != before+10_000 {
		t.Errorf("got %d bytes at %p, and %d in all", len(memory), &memory[0], Pages()-before)
	}
	for i := range memory {
		if memory[i] != 0 {
			t.Fatalf("byte %d is %d", i, memory[i])
		}
		memory[i] = 1
	}
	if err := UnmapPages(memory); err != nil || Pages() != before {
		t.Errorf("UnmapPages: %v, and %d bytes are left", err, Pages()-before)
	}
	if _, err := MapPages(1 << 60); err == nil || Pages() != before {
		t.Errorf("memory larger than any: %v, and %d bytes are counted", err, Pages()-before)
	}
}
