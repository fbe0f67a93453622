package cgotorch

import "github.com/streamtorch/streamtorch/cgotorch/internal/ct"

// LiveHandles is process-wide: it counts the handles that have been made and not freed, by kind.
// "slab bytes" and "pinned bytes" are the sizes of all slabs and of the page-locked ones.
//
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
		"slab bytes": int(live.SlabBytes), "pinned bytes": int(live.PinnedBytes),
	}
}
