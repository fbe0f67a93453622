// Package prefetcher copies to a device ahead of use: batches, and the weights of modules.
//
// # Batches
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
// # Modules
//
// A [Store] holds the weights of more modules than the device has room for, in page-locked memory; [Modules] has them on the device when they
// are used, in a few slots of fixed address.
//
//	store, err := prefetcher.OpenStore([]string{"model.safetensors"}, prefetcher.StoreOptions{Modules: regexp.MustCompile(`^block\.\d+`)})
//	layers, err := prefetcher.NewModules(store, device, build, prefetcher.ModulesOptions{Policy: prefetcher.NextLayer})
//	for _, name := range store.Modules() {
//		layer := layers.Use(x, name) // x's stream waits for the copy, the host does not; the next layer's copy has begun
//		hidden = layer.Module.Forward(x, hidden)
//		layer.Release(x)
//	}
//
// [Experts] does so for a mixture of experts, where the device chooses: [Routes] brings choices to the host. [Offload] has an optimizer's state in
// host memory, which goes to the device and back part by part. examples/switch is a model that works so.
//
// Note [Life of a module's slot]
//
//	empty -> copying -> ready -> in use -> released -> copying another …
//
//	copying   on the copy stream: wait for the events of all uses of the module before, and for its own copy to the store, if that is under
//	          way; copy, in one piece; record ready. Nothing of that waits for the host, so a slot is given to its next module as soon as the
//	          program has enqueued the last use, however far the device is behind
//	in use    from Use, by which a stream waits for ready, to Release, or the end of the Do: the host's count of it keeps the slot
//	released  an event on the using stream, the last one of each stream; where the module was changed, behind that its copy to the store, on a third
//	          stream, for which the next change and the next copy wait
//
// Who enqueues is said in Note [Who enqueues a prefetch]. A prefetched module is kept for its use, unless a Use
// needs the slot. What is asked for while no slot can be had waits in a queue, and is begun by the Release that makes room.
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
// The host buffer a batch came in has a shorter life: it goes back to the loader when the event
// behind the copy is done. The source hands its memory to the Prefetcher's Pinner, so that copies
// do not wait. Parts of a batch that lie elsewhere go through the slot's staging. That is
// page-locked memory, which the host fills when the last copy from it is done. That buffers go back
// in this order bounds how far the host runs ahead of the device: by the slots and the loader's
// buffers together. So does, with augmentations, the page-locked memory of what was drawn for a
// batch, of which there is one for each slot.
package prefetcher
