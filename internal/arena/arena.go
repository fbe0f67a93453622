// Package arena has memory for large buffers outside Go's heap. Memory that is given back serves
// the next buffer, or goes back to the system at once. It waits for no garbage collection, and does
// not let the heap grow to twice its live data.
package arena

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Arena gives out memory. It is safe for concurrent use, and must be closed. A nil Arena gives out
// memory of Go's heap.
type Arena struct {
	small [classes]sync.Pool // pieces of Go's heap
	out   atomic.Int64       // pieces given out

	mu     sync.Mutex
	most   int
	mapped int               // bytes from the system, given out and idle
	sizes  map[*byte]int     // of the pieces of mapped
	idle   [classes][][]byte // pieces to be given out again
	closed bool
}

const (
	smallest = 1 << 10
	mappable = 16 << 10 // Below it a piece is of Go's heap: a process has few mappings, 65,530 by default.
	steps    = 8        // sizes between a power of two and the next
	classes  = 64 * steps
)

// New returns an arena that keeps up to most bytes from the system for reuse. More than that can be
// taken.
func New(most int) *Arena { return &Arena{most: most, sizes: map[*byte]int{}} }

// Take returns a piece of that many bytes, with any content. Its capacity is up to an eighth
// larger, at least 1 KiB, and all of it may be used.
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

// evict removes up to that many bytes of idle pieces and returns them for unmapping.
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

// grow returns a new piece, or nil where the system has no memory.
func (a *Arena) grow(size int) []byte {
	if a.closed {
		return nil
	}
	piece, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	a.mapped += size
	total.Add(int64(size))
	a.sizes[&piece[0]] = size
	return piece
}

// forget removes a piece before its unmapping, and returns its size. It returns 0 for a piece of
// Go's heap.
func (a *Arena) forget(piece []byte) int {
	size := a.sizes[&piece[0]]
	delete(a.sizes, &piece[0])
	a.mapped -= size
	total.Add(-int64(size))
	return size
}

// Give takes a piece back: the result of Take, or a part of it from its beginning. Nothing may use
// it any more.
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
	case a.sizes[&piece[0]] == 0: // of Go's heap
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

// Mapped returns the bytes that are from the system now.
func (a *Arena) Mapped() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mapped
}

var total atomic.Int64

// Total returns the bytes that all arenas of the process have from the system now.
func Total() int { return int(total.Load()) }

// Close gives all memory back to the system, also pieces that were not given back. Nothing may use
// any of it. Take and Give may still be called. Closing twice is legal.
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

// sizeClass returns the number and the size of the smallest class that holds bytes.
func sizeClass(bytes int) (class, size int) {
	n := uint(max(bytes, smallest) - 1)
	shift := bits.Len(n) - bits.Len(uint(steps)) // n is 1xxx in units of 1 << shift
	step := int(n>>shift) - steps + 1
	return steps*shift + step - 1, (step + steps) << shift
}

// unmap gives pieces back to the system. To unmap a place inside a mapping makes one more mapping,
// and a process has a limit of these. unmap then frees the memory alone.
func unmap(pieces [][]byte) {
	for _, piece := range pieces {
		if syscall.Munmap(piece) != nil {
			_ = syscall.Madvise(piece, syscall.MADV_DONTNEED) // fails only for memory that is no mapping
		}
	}
}
