// Package prefetcher copies batches to a device ahead of their use.
//
// A goroutine takes decoded batches from a loader and copies them on a stream of its own while the
// consumer's stream computes. It copies them as uint8, a quarter of float32, and flips and
// normalises them on the device, into memory of fixed address. The consumer's stream waits for a
// batch on the device; the host does not wait. Package weights does the same for weights.
//
//	ahead, err := prefetcher.New(loader, device, prefetcher.Options{})
//	defer ahead.Close()
//	for batch, err := range ahead.Epoch(ctx) {
//		if err != nil { return err }
//		err = train.Do(func(x *cgotorch.Exec) error {
//			images, labels := batch.Use(x)
//			…
//		})
//	}
//
// # Augmentations
//
// Package decode crops and flips. TrivialAugmentWide, ColorJitter, RandomErasing, MixUp and CutMix
// are done here, on the device, before the consumer sees the batch: see [Options]. They are
// torchvision's, to the bit, with random numbers of our own, which Note [Random choices] describes.
// The first two read each pixel once or twice more, and need the memory of one batch of uint8
// pixels on the device. The other three happen in the pass that normalises. Erasing with noise is
// not there.
//
// Note [Life of a slot]
//
// A slot of a [Prefetcher] is device memory for one batch. It is allocated once, never moves, and
// goes round:
//
//	free -> copying -> lent -> draining -> free
//
//	copying   The copy stream waits for every event of the last use. It copies, augments, flips,
//	          normalises and mixes, and records ready.
//	lent      The body of the consumer's loop runs. Batch.Use makes an Exec's stream wait for
//	          ready. Each Do that used the batch records an event on that stream when it ends,
//	          however it ends. The end of the body records on each of these streams once more.
//	draining  The body and all those Dos have ended. The copy stream waits for their events, on
//	          the device, before it writes again.
//
// The host buffer of a batch has a shorter life. It goes back to the loader when the event behind
// the copy is done. So the slots and the loader's buffers together bound how far the host runs
// ahead of the device. With augmentations the page-locked memory of their parameters bounds it too:
// there is one for each slot.
//
// The source hands its memory to the Prefetcher's Pinner, so that copies do not wait. Parts of a
// batch in other memory go through the slot's staging. The staging is page-locked memory, which the
// host fills after the last copy from it is done.
package prefetcher
