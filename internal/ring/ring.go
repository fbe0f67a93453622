// Package ring holds the buffers of a loader's batches, outside Go's heap, so that they can be
// page-locked.
package ring

import (
	"errors"
	"os"
	"runtime"
	"sync"

	"github.com/streamtorch/streamtorch/internal/arena"
)

// Note [Life of a buffer]
//
// A ring's buffers are parts of one piece of memory, which is allocated once. A buffer is first
// free. Then the epoch fills the buffer. Then a batch has the buffer until its Release. Then the
// buffer is free again. An epoch that is faster than its consumer waits for a free buffer.
//
// Closing the ring frees the memory, unless a batch still has a buffer. A copy may still read the
// memory of this batch, so only the last Release frees the memory.

// PageBytes is the size of a page, at least 4,096. Each buffer begins at a page.
var PageBytes = max(4096, os.Getpagesize())

// ErrClosed is the error of Pin after Close.
var ErrClosed = errors.New("closed")

// Pinner page-locks memory: see the Pinner of package imageloader.
type Pinner interface {
	Pin(memory []byte) error
	Unpin(memory []byte)
	HostWrites(memory []byte)
}

// Ring is the memory of a loader's batches, as buffers of type B.
type Ring[B any] struct {
	// Free has the free buffers. Who receives one calls Taking.
	Free  chan *Buffer[B]
	pages *pages

	mu     sync.Mutex
	taken  int
	lost   int // buffers of batches that nobody can release any more
	closed bool
}

// Buffer is the memory of one batch, and what the loader has made of it.
type Buffer[B any] struct {
	Memory []byte // from the first byte of a page
	Parts  B
}

// pages is the memory of all buffers of a ring. The ring's mu guards it.
type pages struct {
	memory []byte // nil after it is freed
	stride int    // bytes of a buffer
	pinner Pinner // the Pinner that has page-locked each buffer, or nil
}

// Stride returns the bytes that a buffer of `bytes` bytes takes.
func Stride(bytes int) int { return (max(bytes, 1) + PageBytes - 1) / PageBytes * PageBytes }

// New allocates `buffers` buffers, each of Stride(bytes) bytes. The function `parts` cuts the
// memory of a buffer.
func New[B any](buffers, bytes int, parts func(memory []byte) B) (*Ring[B], error) {
	stride := Stride(bytes)
	memory, err := arena.MapPages(buffers * stride)
	if err != nil {
		return nil, err
	}
	r := &Ring[B]{Free: make(chan *Buffer[B], buffers), pages: &pages{memory: memory, stride: stride}}
	for memory := range r.pages.buffers {
		r.Free <- &Buffer[B]{memory, parts(memory)}
	}
	runtime.AddCleanup(r, func(p *pages) { _ = p.unmap() }, r.pages) // for a loader that nobody closes
	return r, nil
}

// buffers yields the memory of each buffer.
func (p *pages) buffers(yield func(memory []byte) bool) {
	for at := 0; at < len(p.memory) && yield(p.memory[at:at+p.stride:at+p.stride]); at += p.stride {
	}
}

// unpin takes the memory back from the Pinner, if the ring has one.
func (p *pages) unpin() {
	if p.pinner == nil {
		return
	}
	for memory := range p.buffers {
		p.pinner.Unpin(memory) //edge:buffer-unpinned imageloader.TestLoader_Pin
	}
	p.pinner = nil
}

// unmap gives the memory back to the system. A second call does nothing.
func (p *pages) unmap() error {
	if p.memory == nil {
		return nil
	}
	p.unpin()
	memory := p.memory
	p.memory = nil
	return arena.UnmapPages(memory)
}

// Pin gives each buffer to p, and takes it from an earlier Pinner. If Pin fails, no Pinner has the
// buffers. After Close it fails with [ErrClosed].
func (r *Ring[B]) Pin(p Pinner) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	r.pages.unpin()
	var pinned [][]byte
	for memory := range r.pages.buffers {
		if err := p.Pin(memory); err != nil {
			for _, memory := range pinned {
				p.Unpin(memory) //edge:failed-pin-unpins imageloader.TestLoader_Pin
			}
			return err
		}
		pinned = append(pinned, memory)
	}
	r.pages.pinner = p
	return nil
}

// Taking counts a buffer that was received from Free. The ring must not be closed between the
// receive and this call.
func (r *Ring[B]) Taking(b *Buffer[B]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken++ //edge:buffer-taken-counts imageloader.TestLoader_Close_UnreleasedBatches
	if r.pages.pinner != nil {
		r.pages.pinner.HostWrites(b.Memory) //edge:fill-is-told imageloader.TestRing_Take_TellsThePinner
	}
}

// Taken returns the number of buffers that are not free.
func (r *Ring[B]) Taken() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken
}

// Lose counts the buffer of a batch that the garbage collector has freed before its Release. The
// program may still read the slices of that batch, so the buffer is not filled again.
func (r *Ring[B]) Lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost++
}

// AllLost reports whether no buffer can become free again.
func (r *Ring[B]) AllLost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost == cap(r.Free)
}

// ForgetLost makes Close free the memory of lost buffers too. Nobody may read them any more.
func (r *Ring[B]) ForgetLost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken -= r.lost
}

// Give makes a taken buffer free again. If the ring is closed and no other buffer is taken, Give
// frees the memory.
func (r *Ring[B]) Give(b *Buffer[B]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken-- //edge:buffer-given-counts imageloader.TestRing_Buffers
	//edge:buffer-is-free-again imageloader.TestRing_Buffers
	r.Free <- b      // does not wait, because the channel has room for all buffers
	if r.taken > 0 { //edge:slab-outlives-batches imageloader.TestLoader_Close_UnreleasedBatches
		return
	}
	if !r.closed { //edge:slab-outlives-epochs imageloader.TestRing_Buffers
		return
	}
	_ = r.pages.unmap() //edge:last-release-frees-slab imageloader.TestLoader_Close_UnreleasedBatches
}

// Mapped reports whether the ring has its memory.
func (r *Ring[B]) Mapped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pages.memory != nil
}

// Close frees the memory. If some buffers are taken, Give frees the memory when the last of them
// comes back.
func (r *Ring[B]) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.taken > 0 { //edge:close-leaves-slab-to-batches imageloader.TestLoader_Close_UnreleasedBatches
		return nil
	}
	return r.pages.unmap() //edge:close-frees-slab imageloader.TestRing_Buffers
}
