// Package arena has memory for large buffers outside Go's heap. A buffer that is given back
// serves the next caller, or its memory goes back to the system at once. So no memory waits for a
// garbage collection, and the heap does not grow to twice its live data.
package arena

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Arena gives out memory. It is safe for concurrent use. It must be closed. A nil Arena gives out
// memory of Go's heap.
type Arena struct {
	small [classes]sync.Pool // idle pieces of Go's heap
	out   atomic.Int64       // number of pieces that are given out

	mu     sync.Mutex
	most   int
	mapped int               // bytes of all mapped pieces, given out or idle
	sizes  map[*byte]int     // size of each mapped piece, by its first byte
	idle   [classes][][]byte // mapped pieces that can be given out again
	closed bool
}

const (
	smallest = 1 << 10
	mappable = 16 << 10 // Smaller pieces are of Go's heap, because a process has only 65,530 mappings by default.
	steps    = 8        // size classes from one power of two to the next
	classes  = 64 * steps
)

// New returns an arena that keeps up to `most` bytes from the system for reuse. Callers can take
// more than `most` bytes.
func New(most int) *Arena { return &Arena{most: most, sizes: map[*byte]int{}} }

// Take returns a piece of length `bytes`, with any content. The capacity of the piece is at most
// 9/8 of `bytes`. For a small piece it may be 1 KiB. The caller may use the whole capacity.
func (a *Arena) Take(bytes int) []byte {
	if a == nil {
		return make([]byte, bytes)
	}
	a.out.Add(1)
	class, size := sizeClass(bytes)
	if size < mappable {
		if kept, ok := a.small[class].Get().(*[]byte); ok {
			return (*kept)[:bytes]
		}
		return make([]byte, bytes, size)
	}
	piece, evicted := a.take(class, size)
	unmap(evicted)
	return piece[:bytes]
}

func (a *Arena) take(class, size int) (piece []byte, evicted [][]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if piece = a.reuse(class); piece != nil {
		return piece, nil
	}
	evicted = a.evict(a.mapped + size - a.most)
	if piece = a.grow(size); piece == nil {
		piece = make([]byte, size)
	}
	return piece, evicted
}

// reuse returns an idle piece, or nil.
func (a *Arena) reuse(class int) []byte {
	idle := a.idle[class]
	if len(idle) == 0 {
		return nil
	}
	piece := idle[len(idle)-1]
	a.idle[class] = idle[:len(idle)-1]
	return piece
}

// evict removes idle pieces until the removed pieces have `bytes` bytes or more, or until no idle
// piece is left. It returns the removed pieces. The caller unmaps them.
func (a *Arena) evict(bytes int) (evicted [][]byte) {
	for class := classes - 1; class >= 0 && bytes > 0; class-- {
		for bytes > 0 && len(a.idle[class]) > 0 {
			piece := a.reuse(class)
			bytes -= a.forget(piece)
			evicted = append(evicted, piece)
		}
	}
	return evicted
}

// grow maps a new piece. It returns nil when the arena is closed or the system has no memory.
func (a *Arena) grow(size int) []byte {
	if a.closed {
		return nil
	}
	piece, err := mapMemory(size)
	if err != nil {
		return nil
	}
	a.mapped += size
	total.Add(int64(size))
	a.sizes[&piece[0]] = size
	return piece
}

// forget removes a piece from the arena's counts before the piece is unmapped. It returns the
// size of the piece, or 0 for a piece of Go's heap.
func (a *Arena) forget(piece []byte) int {
	size := a.sizes[&piece[0]]
	delete(a.sizes, &piece[0])
	a.mapped -= size
	total.Add(-int64(size))
	return size
}

// Give takes a piece back. The piece is a result of Take, or the first part of a result of Take.
// Nothing may use the memory afterwards.
func (a *Arena) Give(piece []byte) {
	if a == nil || cap(piece) == 0 {
		return
	}
	a.out.Add(-1)
	piece = piece[:cap(piece)]
	class, size := sizeClass(len(piece))
	if size < mappable {
		a.small[class].Put(&piece)
		return
	}
	unmap(a.give(class, piece))
}

func (a *Arena) give(class int, piece []byte) (evicted [][]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.sizes[&piece[0]] == 0: // The piece is of Go's heap.
	case a.mapped > a.most:
		a.forget(piece)
		evicted = append(evicted, piece)
	default:
		a.idle[class] = append(a.idle[class], piece)
	}
	return evicted
}

// Out returns the number of pieces that were taken and not given back.
func (a *Arena) Out() int { return int(a.out.Load()) }

// Mapped returns the number of bytes that the arena has from the system now.
func (a *Arena) Mapped() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mapped
}

var total atomic.Int64

// Total returns the number of bytes that all arenas of the process have from the system now.
func Total() int { return int(total.Load()) }

// Close gives all memory back to the system, also pieces that were not given back. Nothing may
// use a piece afterwards. Take and Give may still be called. Closing twice is legal.
func (a *Arena) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	total.Add(-int64(a.mapped))
	a.closed, a.mapped = true, 0
	for first, size := range a.sizes {
		unmap([][]byte{unsafe.Slice(first, size)})
	}
	clear(a.sizes)
	clear(a.idle[:])
}

// sizeClass returns the number and the size of the smallest class that has room for `bytes`
// bytes.
func sizeClass(bytes int) (class, size int) {
	n := uint(max(bytes, smallest) - 1)
	shift := bits.Len(n) - bits.Len(uint(steps)) // n>>shift has four bits, the first of which is 1
	step := int(n>>shift) - steps + 1
	return steps*shift + step - 1, (step + steps) << shift
}

// unmap gives pieces back to the system. Unmapping the middle of a mapping makes one more
// mapping, and the number of mappings is limited. If unmapping fails, unmap frees the memory and
// keeps the mapping.
func unmap(pieces [][]byte) {
	for _, piece := range pieces {
		if unmapMemory(piece) != nil {
			discard(piece)
		}
	}
}
