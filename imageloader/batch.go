package imageloader

import "sync/atomic"

// HostBatch is a batch of images in the loader's memory. It is the consumer's until Release, from whatever goroutine.
//
// A program that makes batches itself, as a Source of package prefetcher, fills in the exported
// fields; a nil Flip flips none. A device copies while the host goes on only from page-locked
// memory, see [Pinner], and may read it until Release: OnRelease says that it can be filled again.
type HostBatch struct {
	N                       int // images in this batch; the last of an epoch may have fewer
	Height, Width, Channels int

	// Images is uint8 [N, Height, Width, Channels], RGB or grey, not flipped. Labels are indices into Loader.Classes, and Flip
	// says which images are to be flipped left to right. All lie in page-locked memory after [Loader.Pin], and are nil after
	// Release.
	Images []byte
	Labels []int64
	Flip   []bool

	Names []string // of the members

	// Keys are random numbers, one for each image, for choices that are made of it after decoding. They depend on the seed, the
	// epoch and the image alone.
	Keys []uint64

	Epoch, Index int // which epoch, and which batch of it, from 0

	// State is the place right after this batch: a loader restored to it continues with the following one. After the last
	// batch of an epoch nothing of that epoch is left, and a loader restored to it has an epoch without batches first; its
	// [State.NextEpoch] is the start of the next. A source of a program's own may leave it zero, or set what it needs to go
	// on from.
	State State

	// OnRelease, where it is not nil, is called once, by the first Release, on whatever goroutine calls that, and after the
	// batch has forgotten its memory. It must not wait for the device or for another batch. It is set by who makes the
	// batch, or hands it on, before anybody else has it; setting it on a loader's batch takes nothing from the loader.
	OnRelease func()

	ring     *ring
	buffer   *buffer
	skipped  []*Error // images left out before the last of this batch
	released atomic.Bool
}

// Release gives the memory back to the loader, which fills it again: nothing may read it any more, a device copy included.
// Releasing twice is legal. It never waits, and may be called after the loader's Close. For a batch that is not from a
// loader it forgets the memory and calls OnRelease.
func (b *HostBatch) Release() {
	if b.released.Swap(true) { //edge:release-once TestHostBatch_OnRelease
		return
	}
	b.Images, b.Labels, b.Flip = nil, nil, nil
	if b.ring != nil {
		b.ring.give(b.buffer) //edge:release-gives TestLoader_Close_UnreleasedBatches
	}
	if b.OnRelease != nil {
		b.OnRelease()
	}
}
