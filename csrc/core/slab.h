// Slabs: page-aligned host memory, which the library or the caller allocates. LibTorch's host
// allocator is not used for slabs, for two reasons. It rounds sizes up to powers of two. It
// leaves memory unused until copies are done, but only memory that it has allocated itself.
#pragma once

#include <atomic>
#include <cstdint>

#include "cgotorch.h"

struct ct_slab {
  explicit ct_slab(int64_t bytes);
  // Maps the first `bytes` bytes of a file, only for reading.
  ct_slab(int file, int64_t bytes);
  // Uses memory that the caller owns. The slab neither zeroes nor frees it.
  ct_slab(void* data, int64_t bytes);
  ~ct_slab();
  const int64_t bytes;
  const bool read_only;
  const bool owned;
  void* const data;
  bool pinned = false;
  std::atomic<int64_t> users{1};  // the handle, and each tensor over the memory: the last one deletes the slab
};
