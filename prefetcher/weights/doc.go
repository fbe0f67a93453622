// Package weights has the weights of units on a device when they are used, copied ahead from host memory.
//
// A [Store] holds the weights of more units than the device has room for, in page-locked memory; [Cache] has them on the device when they
// are used, in a few slots of fixed address.
//
//	store, err := weights.OpenStore([]string{"model.safetensors"}, weights.StoreOptions{Units: regexp.MustCompile(`^block\.\d+`)})
//	layers, err := weights.NewCache(store, device, build, weights.CacheOptions{Policy: weights.NextLayer})
//	for _, name := range store.Units() {
//		layer := layers.Use(x, name) // x's stream waits for the copy, the host does not; the next layer's copy has begun
//		hidden = layer.Module.Forward(x, hidden)
//		layer.Release(x)
//	}
//
// [Experts] does so for a mixture of experts, where the device chooses: [Routes] brings choices to the host. [Offload] has an optimizer's state in
// host memory, which goes to the device and back part by part. examples/switch is a model that works so.
//
// Note [Life of a slot]
//
//	empty -> copying -> ready -> in use -> released -> copying another …
//
//	copying   on the copy stream: wait for the events of all uses of the unit before, and for its own copy to the store, if that is under
//	          way; copy, in one piece; record ready. Nothing of that waits for the host, so a slot is given to its next unit as soon as the
//	          program has enqueued the last use, however far the device is behind
//	in use    from Use, by which a stream waits for ready, to Release, or the end of the Do: the host's count of it keeps the slot
//	released  an event on the using stream, the last one of each stream; where the unit was changed, behind that its copy to the store, on a third
//	          stream, for which the next change and the next copy wait
//
// Who enqueues is said in Note [Who enqueues a prefetch]. A prefetched unit is kept for its use, unless a Use
// needs the slot. What is asked for while no slot can be had waits in a queue, and is begun by the Release that makes room.
package weights
