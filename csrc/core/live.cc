#include "core/live.h"

#include "cgotorch.h"

void ct_live_handles(ct_live* out) noexcept {
  const ct::Live& n = ct::live();
  *out = ct_live{n.tensors, n.streams, n.events, n.slabs, n.statuses, n.functions, n.graphs, n.decoders, n.compiled, n.groups, n.slab_bytes, n.pinned_bytes};
}
