// Counts of the live handles. Tests prove by them that no handle is left.
#pragma once

#include <atomic>
#include <cstdint>

namespace ct {

struct Live {
  std::atomic<int64_t> tensors{0}, streams{0}, events{0}, slabs{0}, statuses{0}, functions{0}, graphs{0}, slab_bytes{0}, pinned_bytes{0};
};

// Without a guard or a call: each operator touches two of these.
inline constinit Live counts;
inline Live& live() noexcept { return counts; }

}  // namespace ct
