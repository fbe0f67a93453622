package imageloader

import "sync/atomic"

// HostBatch is a batch of images in the loader's memory. It is the consumer's until Release, from
// whatever goroutine.
//
// A program that makes batches itself, as a Source of package prefetcher, fills in the exported
// fields. A nil Flip flips no image. Only from page-locked memory does a device copy while the host
// goes on, see [Pinner]. Such a copy may read the memory until Release. OnRelease says when the
// memory can be filled again.
type HostBatch struct {
	N                       int // images in this batch; the last of an epoch may have fewer
	Height, Width, Channels int

	// Images is uint8 [N, Height, Width, Channels], RGB or grey, not flipped. Labels are indices into
	// Loader.Classes. Flip says which images are to be flipped left to right. All lie in page-locked
	// memory after [Loader.Pin], and are nil after Release.
	Images []byte
	Labels []int64
	Flip   []bool

	Names []string // of the members

	// Keys are random numbers, one for each image, for random choices after decoding. They depend on
	// the seed, the epoch and the image alone.
	Keys []uint64

	Epoch, Index int // number of the epoch, and of the batch in it, from 0

	// State is the place right after this batch: a loader restored to it continues with the following
	// batch. After the last batch nothing of its epoch is left. A loader restored to that place has an
	// epoch without batches first: its [State.NextEpoch] is the start of the next. A source of a
	// program's own may leave State zero, or set the values that it needs to go on.
	State State

	// OnRelease, where it is not nil, is called once, by the first Release, after the batch has
	// forgotten its memory. It runs on the goroutine that calls Release, and must not wait for the
	// device or for another batch. The maker of the batch sets it, or a goroutine that hands the batch
	// on, before any other goroutine has the batch. OnRelease of a loader's batch takes nothing from
	// the loader.
	OnRelease func()

	ring     *ring
	buffer   *buffer
	skipped  []*Error // images left out before the last of this batch
	released atomic.Bool
}

// Release gives the memory back to the loader, which fills it again. No reader may use the memory
// any more, a device copy included. Release never waits. It may be called twice, and after the
// loader's Close. For a batch that is not from a loader it forgets the memory and calls OnRelease.
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
