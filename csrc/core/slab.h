// Page-aligned host memory, our own or the caller's. LibTorch's host allocator rounds to powers of
// two and does not protect memory that it did not allocate.
#pragma once

#include <cstdint>

#include "cgotorch.h"

struct ct_slab {
  explicit ct_slab(int64_t bytes);
  // The first bytes of a file, to be read.
  ct_slab(int file, int64_t bytes);
  // Memory of the caller's, which the slab neither zeroes nor frees.
  ct_slab(void* data, int64_t bytes);
  ~ct_slab();
  const int64_t bytes;
  const bool read_only;
  const bool owned;
  void* const data;
  bool pinned = false;
};
