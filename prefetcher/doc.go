// Package prefetcher copies batches to a device ahead of their use.
//
// A goroutine takes decoded batches from a loader, copies them on a stream of its own as uint8, a quarter of float32, and
// flips and normalises them there, into device memory of fixed address, while the consumer's stream computes. The consumer's
// stream waits for a batch on the device; the host does not wait.
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
// Crops and flips are package decode's. TrivialAugmentWide, ColorJitter, RandomErasing, MixUp and CutMix are done here, on the device,
// before the consumer sees the batch; see [Options]. They are torchvision's, to the bit, with random numbers of our own:
// Note [Random choices] says which. Each pixel is read once or twice more for what is done to an image, and the rest happens in the
// pass that normalises; where nothing is on, nothing is done. The memory they need on the device is one batch of uint8 pixels.
// Erasing with noise is not there.
//
// Note [Life of a slot]
//
// A slot of a [Prefetcher] is device memory for one batch. It is allocated once, never moves, and goes round:
//
//	free -> copying -> lent -> draining -> free
//
//	copying   on the copy stream: wait for every event of the last use; copy; augment; flip, normalise and mix; record ready
//	lent      the body of the consumer's loop: Batch.Use makes an Exec's stream wait for ready, and each Do that used the
//	          batch records an event on that stream when it ends, however it ends; the end of the body records on each of
//	          those streams once more
//	draining  the body has ended and so have all those Dos; the copy stream waits for their events, on the device, before it
//	          writes again
//
// The host buffer a batch came in has a shorter life: it goes back to the loader when the event behind the copy is done. That
// bounds how far the host runs ahead of the device: by the slots and the loader's buffers together. So does, with augmentations, the
// page-locked memory of what was drawn for a batch, of which there is one for each slot.
package prefetcher
