package cgotorch

import "github.com/streamtorch/streamtorch/cgotorch/internal/ct"

// LiveHandles is process-wide: it counts the handles that have been made and not freed, by kind.
// The kinds are tensor, stream, event, slab, status, graph, function, jpeg decoder, compiled model
// and group. Stores and reducers of gradients count as groups. A pool of graphs counts as a graph.
// A JPEG decoder counts until the last pool that uses it is closed. A handle of kind function is a
// function given to [Exec.Recompute] that an autograd graph still holds. A test finds leaks by
// comparing the counts before and after its work.
func LiveHandles() map[string]int {
	var live ct.Live
	ct.LiveHandles(&live)
	return map[string]int{
		"tensor": int(live.Tensors), "stream": int(live.Streams), "event": int(live.Events),
		"slab": int(live.Slabs), "status": int(live.Statuses), "function": int(live.Functions), "graph": int(live.Graphs),
		"jpeg decoder": int(live.Decoders), "compiled model": int(live.Compiled), "group": int(live.Groups),
	}
}

// HostMemory is process-wide: it returns the total size of all slabs and the total size of the
// page-locked slabs, in bytes.
func HostMemory() (slabs, pinned int64) {
	var live ct.Live
	ct.LiveHandles(&live)
	return live.SlabBytes, live.PinnedBytes
}
