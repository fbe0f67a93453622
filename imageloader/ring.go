package imageloader

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"unsafe"

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

// ring is the memory of a loader's batches.
type ring struct {
	layout layout
	free   chan *buffer
	pages  *pages

	mu     sync.Mutex
	taken  int
	lost   int // buffers of batches that nobody can release any more
	closed bool
}

// pages is the memory of all buffers of a ring. The ring's mu guards it.
type pages struct {
	memory []byte // nil after it is freed
	stride int    // bytes of a buffer
	pinner Pinner // the Pinner that has page-locked each buffer, or nil
}

// buffer is the memory of one batch.
type buffer struct {
	memory []byte // the whole buffer
	images []byte
	labels []int64
	flips  []byte
}

// layout says where the images, labels and flips of a buffer lie. All three are aligned.
type layout struct {
	batch  int // images per buffer
	each   int // bytes per image
	labels int // offset of the labels
	flips  int // offset of the flips
	stride int // bytes per buffer
}

const (
	pageBytes    = 4096
	alignBytes   = 64                       // alignment of labels and flips
	maxRingBytes = int64(math.MaxInt64 / 4) // more than any memory, and small enough not to overflow
)

func newLayout(batch, each int) layout {
	l := layout{batch: batch, each: each}
	l.labels = roundUp(batch*each, alignBytes)
	l.flips = roundUp(l.labels+8*batch, alignBytes)
	l.stride = roundUp(l.flips+batch, pageBytes)
	return l
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// newRing allocates `buffers` buffers. Each buffer is for a batch of up to `batch` images of
// `each` bytes.
func newRing(buffers, batch, each int) (*ring, error) {
	if float64(buffers)*float64(batch)*float64(each+16) > float64(maxRingBytes) {
		return nil, fmt.Errorf("imageloader: %d buffers of %d images of %d bytes exceed any memory; lower Options.BatchSize: %w",
			buffers, batch, each, ErrInvalidOptions)
	}
	l := newLayout(batch, each)
	memory, err := arena.MapPages(buffers * l.stride)
	if err != nil {
		return nil, fmt.Errorf("imageloader: %d buffers of %d images need %d MiB; lower Options.BatchSize or Options.Buffers: %w",
			buffers, batch, buffers*l.stride>>20, err)
	}
	r := &ring{layout: l, free: make(chan *buffer, buffers), pages: &pages{memory: memory, stride: l.stride}}
	for buffer := range r.pages.buffers {
		r.free <- l.buffer(buffer)
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
		p.pinner.Unpin(memory) //edge:buffer-unpinned TestLoader_Pin
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
	r.pages.unpin()
	var pinned [][]byte
	for memory := range r.pages.buffers {
		if err := p.Pin(memory); err != nil {
			for _, memory := range pinned {
				p.Unpin(memory) //edge:failed-pin-unpins TestLoader_Pin
			}
			return err
		}
		pinned = append(pinned, memory)
	}
	r.pages.pinner = p
	return nil
}

// The method `buffer` returns a buffer that lies in `memory`. The first byte of `memory` is the
// first byte of a page.
func (l layout) buffer(memory []byte) *buffer {
	return &buffer{
		memory: memory,
		images: memory[: l.batch*l.each : l.batch*l.each],
		labels: unsafe.Slice((*int64)(unsafe.Pointer(&memory[l.labels])), l.batch),
		flips:  memory[l.flips : l.flips+l.batch : l.flips+l.batch],
	}
}

// taking counts a buffer that was received from the channel `free`. The ring must not be closed
// between the receive and this call.
func (r *ring) taking(b *buffer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken++ //edge:buffer-taken-counts TestLoader_Close_UnreleasedBatches
	if r.pages.pinner != nil {
		r.pages.pinner.HostWrites(b.memory) //edge:fill-is-told TestRing_Take_TellsThePinner
	}
}

// lose counts the buffer of a batch that the garbage collector has freed before its Release. The
// program may still read the slices of that batch, so the buffer is not filled again.
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

// give makes a taken buffer free again. If the ring is closed and no other buffer is taken, give
// frees the memory.
func (r *ring) give(b *buffer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken-- //edge:buffer-given-counts TestRing_Buffers
	//edge:buffer-is-free-again TestRing_Buffers
	r.free <- b      // does not wait, because the channel `free` has room for all buffers
	if r.taken > 0 { //edge:slab-outlives-batches TestLoader_Close_UnreleasedBatches
		return
	}
	if !r.closed { //edge:slab-outlives-epochs TestRing_Buffers
		return
	}
	_ = r.pages.unmap() //edge:last-release-frees-slab TestLoader_Close_UnreleasedBatches
}

// close frees the memory. If some buffers are taken, the function `give` frees the memory when
// the last of them comes back.
func (r *ring) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.taken > 0 { //edge:close-leaves-slab-to-batches TestLoader_Close_UnreleasedBatches
		return nil
	}
	return r.pages.unmap() //edge:close-frees-slab TestRing_Buffers
}
