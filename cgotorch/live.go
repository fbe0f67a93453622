package cgotorch

import "github.com/streamtorch/streamtorch/cgotorch/internal/ct"

// LiveHandles is process-wide: it counts the handles that have been made and not freed, by
// kind. The kinds are tensor, stream, event, slab, status, graph and function. Pools of graphs
// count as graphs. A function is that of an [Exec.Recompute], held by an autograd graph. Tests
// compare the counts before and after to find leaks.
func LiveHandles() map[string]int {
	var live ct.Live
	ct.LiveHandles(&live)
	return map[string]int{
		"tensor": int(live.Tensors), "stream": int(live.Streams), "event": int(live.Events),
		"slab": int(live.Slabs), "status": int(live.Statuses), "function": int(live.Functions), "graph": int(live.Graphs),
	}
}

// HostMemory is process-wide: it returns the bytes of all slabs, and the bytes of page-locked
// slabs.
func HostMemory() (slabs, pinned int64) {
	var live ct.Live
	ct.LiveHandles(&live)
	return live.SlabBytes, live.PinnedBytes
}
