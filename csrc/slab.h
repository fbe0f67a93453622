// Page-aligned host memory of our own. LibTorch's host allocator rounds to powers of two and does not protect memory that it
// did not allocate.
#pragma once

#include <cstdint>

#include "cgotorch.h"

struct ct_slab {
  explicit ct_slab(int64_t bytes);
  ~ct_slab();
  const int64_t bytes;
  void* data = nullptr;
  bool pinned = false;
};
