// Counts of the handles that exist now. Tests use the counts to prove that no handle is left.
#pragma once

#include <atomic>
#include <cstdint>

namespace ct {

struct Live {
  std::atomic<int64_t> tensors{0}, streams{0}, events{0}, slabs{0}, statuses{0}, functions{0}, graphs{0}, decoders{0}, compiled{0}, groups{0};
  std::atomic<int64_t> slab_bytes{0}, pinned_bytes{0};
};

// Each operator changes two of these counts, so the access must be fast. The compiler initialises
// `counts`, and no function call is needed to read it.
inline constinit Live counts;
inline Live& live() noexcept { return counts; }

}  // namespace ct
