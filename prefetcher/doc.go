// Package prefetcher copies batches to a device before the program uses them.
//
// A goroutine takes decoded batches from a loader. It copies each batch on a copy stream while
// the consumer's stream computes. It copies the pixels as uint8, which takes a quarter of the
// bytes of float32. The copy stream then flips and normalises the images, into device memory of
// fixed address. The consumer's stream waits for a batch on the device. The host does not wait
// for the copy. Package weights copies the weights of a model in a similar way.
//
//	ahead, err := prefetcher.New(loader, device, prefetcher.Options{})
//	defer ahead.Close()
//	step := func(x *cgotorch.Exec, batch *prefetcher.Batch) error {
//		images, labels := batch.Use(x)
//		…
//	}
//	n, err := cgotorch.DoEach(train, ahead.Epoch(ctx), step) // one Do for each batch
//
// [New] is for images. [NewTensors] copies batches of any other tensors in the same way, without
// augmentations. Its batches come from package data.
//
// A program that loops over an Epoch itself puts the Do inside the loop, one Do for each batch. A
// batch's memory comes back when its Do ends, so a loop inside a Do ends with an error after
// Depth+1 batches.
//
// # Augmentations
//
// The loader crops each image and chooses the images to flip. This package flips them. It also
// does Pad, TrivialAugmentWide, AutoAugment, RandAugment, AugMix, ColorJitter, GaussianBlur,
// RandomErasing, MixUp and CutMix, all on the device, before the consumer sees the batch. Each has
// a field in [Options]. With the same choices the results equal torchvision's to the bit. Only
// GaussianBlur may round a level to its neighbour. The random numbers are not torchvision's: Note
// [Random choices] describes them.
//
// Pad, GaussianBlur, ColorJitter and the policies read each pixel one or more times. A policy is
// TrivialAugmentWide, AutoAugment, RandAugment or AugMix. These augmentations need device memory
// for one more batch of uint8 pixels. Pad needs one more again, and AugMix 2*Width more.
// RandomErasing, MixUp and CutMix are part of the pass that normalises. RandomErasing cannot fill
// its box with noise.
//
// Note [Life of a slot]
//
// A slot of a [Prefetcher] or of [Tensors] is device memory for one batch. A slot is allocated
// once and never moves. It goes through these states, again and again:
//
//	free -> copying -> lent -> draining -> free
//
//	copying   The copy stream waits for every event of the last use. It copies, augments, flips,
//	          normalises and mixes. Then it records the event ready.
//	lent      The body of the consumer's loop runs. Batch.Use makes an Exec's stream wait for
//	          ready. Each Do that used the batch records an event on that stream when the Do ends,
//	          also when the Do fails. The end of the body records on each of these streams again.
//	draining  The body and all those Dos have ended. The copy stream waits for their events, on
//	          the device, before it writes the slot again.
//
// The host buffer of a batch has a shorter life. It goes back to the loader when the copy from it
// is done. So the slots and the loader's buffers together bound how far the host runs ahead of
// the device. Augmentations add one more bound. The random choices for a batch need a piece of
// page-locked memory, and there are as many pieces as slots.
//
// The source page-locks its memory through the Prefetcher's Pinner, so that copies do not wait. A
// part of a batch may lie in memory that is not page-locked. The host first copies this part into
// the slot's staging, which is page-locked memory. The host fills the staging only when the last
// copy from the staging is done.
package prefetcher
