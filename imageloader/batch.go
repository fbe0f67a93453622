package imageloader

import (
	"runtime"
	"sync/atomic"
)

// HostBatch is a batch of images in the loader's memory. The consumer owns the batch until
// Release. It may use the batch on any goroutine.
//
// A program may also make batches itself, as a Source of package prefetcher. It then fills in the
// exported fields. A nil Flip flips no image. If the memory is page-locked, a device can copy
// from it while the host goes on (see [Pinner]). This copy may read the memory until Release. The
// call of OnRelease tells the program that it can fill the memory again.
type HostBatch struct {
	N                       int // number of images; the last batch of an epoch may have fewer
	Height, Width, Channels int

	// Images is uint8 [N, Height, Width, Channels], RGB or grey, not flipped. Labels are indices
	// into Loader.Classes. Flip says which images the consumer should flip left to right. After
	// [Loader.Pin] all three lie in page-locked memory. After Release they are nil. A copy of one
	// of these slices must not be read then: the next images lie there or, after Loader.Close, no
	// memory.
	Images []byte
	Labels []int64
	Flip   []bool

	Names []string // names of the members

	// Keys are random numbers, one for each image, for random choices after decoding. A key depends
	// only on the seed, the epoch and the image.
	Keys []uint64

	Epoch, Index int // number of the epoch, and of the batch in its epoch, both from 0

	// State is the position right after this batch. A loader that is restored to State continues
	// with the next batch. The State of an epoch's last batch is the end of that epoch. A loader
	// that is restored to the end of an epoch first has an epoch without batches. After the loop a
	// program saves the loader or its prefetcher, or [State.NextEpoch]. A program that makes
	// batches itself may leave State zero. It may also set the values that it needs to continue.
	State State

	// OnRelease, if not nil, is called once, by the first Release, after the batch has dropped its
	// memory. It runs on the goroutine that calls Release. It must not wait for the device or for
	// another batch. The maker of the batch sets OnRelease, before it gives the batch to a
	// goroutine. A goroutine that passes the batch on may set it too, before the next goroutine
	// has the batch. A loader's batch may have an OnRelease too, and the loader still gets its
	// memory back.
	OnRelease func()

	ring     *buffers
	buffer   *buffer
	skipped  []*Error // images that were skipped after the previous batch
	released atomic.Bool
	lost     runtime.Cleanup // tells the ring of a batch that is dropped without Release
}

// Release gives the memory back to the loader, which fills it again. No reader may use the memory
// afterwards. A device copy is a reader too. Release never waits. It may be called twice, and
// after the loader's Close. If the batch is not from a loader, Release only drops the memory and
// calls OnRelease.
func (b *HostBatch) Release() {
	if b.released.Swap(true) { //edge:release-once TestHostBatch_OnRelease
		return
	}
	b.Images, b.Labels, b.Flip = nil, nil, nil
	if b.ring != nil {
		b.lost.Stop()
		b.ring.Give(b.buffer) //edge:release-gives TestLoader_Close_UnreleasedBatches
	}
	if b.OnRelease != nil {
		b.OnRelease()
	}
}
