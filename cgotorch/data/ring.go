package data

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/streamtorch/streamtorch/internal/arena"
)

// Note [Life of a batch's buffer]
//
// A ring's buffers are allocated once, outside Go's heap, so that they can be page-locked. A
// buffer is free, then a batch is made in it, then the consumer has it until Release. Closing the
// ring frees the memory. If a batch still has a buffer, the last Release frees the memory.

// ring is the memory of a loader's batches.
type ring struct {
	free  chan *buffer
	pages *pages

	mu     sync.Mutex
	taken  int
	lost   int // buffers of batches that nobody can release any more
	closed bool
}

// pages is the memory of all buffers. The ring's mu guards it.
type pages struct {
	memory  []byte // nil after it is freed
	buffers []*buffer
	pinner  Pinner // has page-locked each buffer, or nil
}

// buffer is the memory of one batch.
type buffer struct{ memory []byte }

const pageBytes = 4096

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// newRing allocates `buffers` buffers of `bytes` bytes.
func newRing(buffers, bytes int) (*ring, error) {
	if bytes > math.MaxInt/8/buffers {
		return nil, fmt.Errorf("data: %d buffers of %d bytes exceed any memory; lower Options.BatchSize: %w", buffers, bytes, ErrInvalidOptions)
	}
	stride := roundUp(max(bytes, 1), pageBytes)
	memory, err := arena.MapPages(buffers * stride)
	if err != nil {
		return nil, fmt.Errorf("data: %d buffers need %d MiB; lower Options.BatchSize, Buffers or Pad.Length: %w", buffers, buffers*stride>>20, err)
	}
	r := &ring{free: make(chan *buffer, buffers), pages: &pages{memory: memory}}
	for i := range buffers {
		b := &buffer{memory[i*stride : (i+1)*stride : (i+1)*stride]}
		r.pages.buffers = append(r.pages.buffers, b)
		r.free <- b
	}
	runtime.AddCleanup(r, func(p *pages) { _ = p.unmap() }, r.pages) // for a loader that nobody closes
	return r, nil
}

func (p *pages) unpin() {
	if p.pinner == nil {
		return
	}
	for _, b := range p.buffers {
		p.pinner.Unpin(b.memory)
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

// pin gives each buffer to p, and takes it from an earlier Pinner. If pin fails, no Pinner has
// the buffers.
func (r *ring) pin(p Pinner) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("data: Pin: %w", ErrClosed)
	}
	r.pages.unpin()
	for i, b := range r.pages.buffers {
		if err := p.Pin(b.memory); err != nil {
			for _, b := range r.pages.buffers[:i] {
				p.Unpin(b.memory)
			}
			return err
		}
	}
	r.pages.pinner = p
	return nil
}

// taking counts a buffer that was received from the channel `free`.
func (r *ring) taking(b *buffer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken++
	if r.pages.pinner != nil {
		r.pages.pinner.HostWrites(b.memory)
	}
}

// lose counts the buffer of a batch that the garbage collector has freed before its Release.
func (r *ring) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost++
}

// allLost reports whether no buffer can become free again.
func (r *ring) allLost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost == cap(r.free)
}

// give makes a taken buffer free again.
func (r *ring) give(b *buffer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken--
	r.free <- b // does not wait, because the channel has room for all buffers
	if r.taken == 0 && r.closed {
		_ = r.pages.unmap()
	}
}

func (r *ring) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.taken > 0 {
		return nil // the last Release frees the memory
	}
	return r.pages.unmap()
}
