// Counts of the handles that live, so that tests can prove that none is left.
#pragma once

#include <atomic>
#include <cstdint>

namespace ct {

struct Live {
  std::atomic<int64_t> tensors{0}, streams{0}, events{0}, slabs{0}, statuses{0}, functions{0}, graphs{0}, slab_bytes{0}, pinned_bytes{0};
};

// Without a guard or a call: two of these are in each operator's way.
inline constinit Live counts;
inline Live& live() noexcept { return counts; }

}  // namespace ct
