// Counts of the handles that exist now. Tests use the counts to prove that no handle is left.
#pragma once

#include <atomic>
#include <cstdint>

namespace ct {

struct Live {
  std::atomic<int64_t> tensors{0}, streams{0}, events{0}, slabs{0}, statuses{0}, functions{0}, graphs{0}, slab_bytes{0}, pinned_bytes{0};
};

// Constant-initialised, and read without a function call, because each operator changes two of
// these counts.
inline constinit Live counts;
inline Live& live() noexcept { return counts; }

}  // namespace ct
