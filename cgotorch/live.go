package cgotorch

// #include "cgotorch.h"
import "C"

// LiveHandles is process-wide: it counts the handles that have been made and not freed, by kind: tensor, stream, event, slab,
// status, graph (and pools of them), function (of [Exec.Recompute], in a graph of autograd). Tests compare it before and after to find leaks.
func LiveHandles() map[string]int {
	var live C.ct_live
	C.ct_live_handles(&live)
	return map[string]int{
		"tensor": int(live.tensors), "stream": int(live.streams), "event": int(live.events),
		"slab": int(live.slabs), "status": int(live.statuses), "function": int(live.functions), "graph": int(live.graphs),
	}
}

// HostMemory is process-wide: it returns the bytes of all slabs, and those of them that are page-locked.
func HostMemory() (slabs, pinned int64) {
	var live C.ct_live
	C.ct_live_handles(&live)
	return int64(live.slab_bytes), int64(live.pinned_bytes)
}
