// Package weights keeps the weights of a model in page-locked host memory and copies them to a
// device before the program uses them.
//
// A [Store] holds more weights than the device has room for. A unit is a part of the weights that
// is copied as a whole, such as a layer or an expert. A [Cache] has a few slots on the device. A
// slot is memory of fixed address that holds one unit at a time. A module is a Go value whose
// tensors lie in a slot, such as an *nn.Linear.
//
//	blocks := regexp.MustCompile(`^block\.\d+`)
//	files := []string{"model.safetensors"}
//	store, err := weights.OpenStore(files, weights.StoreOptions{Units: blocks})
//	o := weights.CacheOptions{Policy: weights.NextLayer}
//	layers, err := weights.NewCache(store, device, build, o)
//	for _, name := range store.Units() {
//		layer := layers.Use(x, name) // x's stream waits for the copy; the next copy has begun
//		hidden = layer.Module.Forward(x, hidden)
//		layer.Release(x)
//	}
//
// [Table] is for a mixture of experts. There only the device finds out which experts come next: it
// decides itself which are in slots, and reads the others over the bus. Its kernels need weights of
// 16 or 4 bits, and on CUDA compute capability 9.0. For other weights, and on 8.0, [Table.Fetch]
// brings experts. Package text decodes with it.
//
// [Offload] keeps the state of an optimizer in host memory and steps the optimizer unit by unit.
// examples/switch is a model whose experts lie in a [Table].
//
// # The one rule
//
// Work is enqueued only by a call that names its stream. A Cache was given its copy stream when
// it was made, so a call on the Cache names that stream too. [Cache.Prefetch] enqueues on the
// copy stream and on no other. [Cache.Use] and [Use.Release] enqueue on the stream of the Exec
// that they take, and may begin copies on the copy stream.
//
// Prefetch may return a moment before its copy is enqueued. Copies are always enqueued in the
// order of the calls. [Cache.Use] waits until the copy of its unit is enqueued. [Cache.Flush] and
// [Cache.Close] wait until all copies are enqueued. cgotorch's Device.Synchronize does not wait
// until copies are enqueued. A program that measures time therefore calls Flush before
// Device.Synchronize.
//
// Note [Life of a slot]
//
//	empty -> copying -> ready -> in use -> released -> copying another …
//
//	copying   The copy stream waits for the events of all uses of the slot's last unit. If a copy
//	          of the new unit to the store still runs, the copy stream waits for it too. The copy
//	          stream then copies the unit in one piece and records the event ready. The host
//	          waits for none of these. So a slot gets its next unit as soon as the last use is
//	          enqueued, even if the device will run that use much later.
//	in use    A use begins with Use, where a stream waits for ready. It ends with Release or
//	          with the Do. The host counts the uses. A slot in use is not filled.
//	released  Each stream that used the slot has an event, recorded after its last use. A changed
//	          unit is copied to the store on a stream that does only this. That stream first
//	          waits for the event. The next change of the unit and the next copy into the slot
//	          wait until the unit is in the store.
//
// Note [The enqueuer] says which goroutine enqueues copies. A prefetched unit stays in its slot
// until it is used, unless a Use needs the slot. If no slot is free, a prefetch waits in a queue.
// The release that frees a slot then begins the copy of the first prefetch in the queue.
package weights
