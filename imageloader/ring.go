package imageloader

import (
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Note [Life of a buffer]
//
// A ring's buffers are parts of one slab that is allocated once. A buffer is free, then being filled by the epoch, then a
// batch's until its Release, then free again: an epoch that runs ahead of its consumer waits for that. Closing the ring frees
// the slab, but never under a batch: while batches are unreleased, which may mean that a copy still reads them, the last
// Release frees it.

// ring is the memory of a loader's batches.
type ring struct {
	slab   *cgotorch.HostSlab
	layout layout
	free   chan *buffer

	mu     sync.Mutex
	taken  int
	closed bool
}

// buffer is the memory of one batch.
type buffer struct {
	images []byte
	labels []int64
	flips  []byte
}

// layout is where the parts of a buffer lie: images, labels, flips, each aligned.
type layout struct {
	batch  int // images per buffer
	each   int // bytes per image
	labels int // offset
	flips  int // offset
	stride int // bytes per buffer
}

const (
	pageBytes    = 4096
	alignBytes   = 64                       // alignment of labels and flips
	maxRingBytes = int64(math.MaxInt64 / 4) // far above any memory, below overflow
)

func newLayout(batch, each int) layout {
	l := layout{batch: batch, each: each}
	l.labels = roundUp(batch*each, alignBytes)
	l.flips = roundUp(l.labels+8*batch, alignBytes)
	l.stride = roundUp(l.flips+batch, pageBytes)
	return l
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// newRing allocates the buffers for batches of up to batch images of each bytes.
func newRing(buffers, batch, each int) (*ring, error) {
	if float64(buffers)*float64(batch)*float64(each+16) > float64(maxRingBytes) {
		return nil, fmt.Errorf("imageloader: %d buffers of %d images of %d bytes exceed any memory; lower Options.BatchSize: %w",
			buffers, batch, each, ErrInvalidOptions)
	}
	l := newLayout(batch, each)
	slab, err := cgotorch.NewHostSlab(buffers * l.stride)
	if err != nil {
		return nil, fmt.Errorf("imageloader: %d buffers of %d images need %d MiB; lower Options.BatchSize or Options.Buffers: %w",
			buffers, batch, buffers*l.stride>>20, err)
	}
	r := &ring{slab: slab, layout: l, free: make(chan *buffer, buffers)}
	for memory := slab.Bytes(); len(memory) >= l.stride; memory = memory[l.stride:] {
		r.free <- l.buffer(memory)
	}
	return r, nil
}

// buffer lays a buffer over memory, which is aligned to a page.
func (l layout) buffer(memory []byte) *buffer {
	return &buffer{
		images: memory[: l.batch*l.each : l.batch*l.each],
		labels: unsafe.Slice((*int64)(unsafe.Pointer(&memory[l.labels])), l.batch),
		flips:  memory[l.flips : l.flips+l.batch : l.flips+l.batch],
	}
}

// taking counts a buffer that was received from free. The ring must not be closed between the two.
func (r *ring) taking(b *buffer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken++                         //edge:buffer-taken-counts TestLoader_Close_UnreleasedBatches
	cgotorch.CheckHostWrite(b.images) //edge:fill-is-a-write-of-images TestRing_Take_UnderACopy checked
	cgotorch.CheckHostWrite(b.labels) //edge:fill-is-a-write-of-labels TestRing_Take_UnderACopy checked
	cgotorch.CheckHostWrite(b.flips)  //edge:fill-is-a-write-of-flips TestRing_Take_UnderACopy checked
}

// give takes a buffer back.
func (r *ring) give(b *buffer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken-- //edge:buffer-given-counts TestRing_Buffers
	//edge:buffer-is-free-again TestRing_Buffers
	r.free <- b      // has room for all
	if r.taken > 0 { //edge:slab-outlives-batches TestLoader_Close_UnreleasedBatches
		return
	}
	if !r.closed { //edge:slab-outlives-epochs TestRing_Buffers
		return
	}
	r.slab.Close() //edge:last-release-frees-slab TestLoader_Close_UnreleasedBatches
}

// close frees the slab now or, with buffers taken, when the last comes back.
func (r *ring) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.taken > 0 { //edge:close-leaves-slab-to-batches TestLoader_Close_UnreleasedBatches
		return nil
	}
	return r.slab.Close() //edge:close-frees-slab TestRing_Buffers
}
