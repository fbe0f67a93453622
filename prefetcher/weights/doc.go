// Package weights keeps the weights of a model in page-locked host memory and copies them to a
// device ahead of their use.
//
// A [Store] holds more weights than the device has room for. A piece of weights that is copied as
// one, such as a layer or an expert, is a unit. A [Cache] has a few slots on the device, and a
// slot is memory of fixed address for one unit at a time. A module is always an nn.Module.
//
//	blocks := regexp.MustCompile(`^block\.\d+`)
//	files := []string{"model.safetensors"}
//	store, err := weights.OpenStore(files, weights.StoreOptions{Units: blocks})
//	o := weights.CacheOptions{Policy: weights.NextLayer}
//	layers, err := weights.NewCache(store, device, build, o)
//	for _, name := range store.Units() {
//		layer := layers.Use(x, name) // x's stream waits for the copy; the next one has begun
//		hidden = layer.Module.Forward(x, hidden)
//		layer.Release(x)
//	}
//
// [Experts] does the same for a mixture of experts, where the device finds out which units come
// next. [Offload] keeps the state of an optimizer in host memory and steps it unit by unit.
// examples/switch is a model that works with [Experts].
//
// # The one rule
//
// Work is enqueued only by a call that names its stream. A Cache was given its copy stream when it
// was made, so a call on the Cache names that stream too. [Cache.Prefetch] enqueues on the copy
// stream and on no other. [Cache.Use] and [Use.Release] enqueue on the stream of the Exec that they
// take, and may begin copies on the copy stream.
//
// A copy that Prefetch begins may be enqueued a moment after Prefetch has returned, always in the
// order of the calls. [Cache.Use] waits for that moment where it needs the unit. So do
// [Cache.Flush] and [Cache.Close] for all units. cgotorch's Device.Synchronize does not: a program
// that measures calls Flush before.
//
// Note [Life of a slot]
//
//	empty -> copying -> ready -> in use -> released -> copying another …
//
//	copying   The copy stream waits for the events of all uses of the unit before, and for the
//	          unit's own copy to the store if one is under way. It then copies, in one piece,
//	          and records ready. The host waits for none of that. So a slot gets its next unit
//	          as soon as the last use is enqueued, however far the device is behind.
//	in use    A use begins with Use, where a stream waits for ready. It ends with Release or
//	          with the Do. The host counts the uses, and a slot in use is not filled.
//	released  Each using stream has an event behind its last use. A changed unit is copied to
//	          the store behind that event, on a third stream. The next change and the next
//	          copy wait for it.
//
// Note [The enqueuer] says who enqueues. A prefetched unit stays until it is used, unless a Use
// needs its slot. A prefetch that finds no slot waits in a queue. The release that makes room
// begins its copy.
package weights
