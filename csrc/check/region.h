// A Region is the bytes of a block of memory that one tensor reaches. The function `overlap` says
// whether two regions share a byte.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace ct {

struct Region {
  // A region is a set of runs. Each run is `element` bytes long. A run starts at `begin`, plus, for
  // each i, steps[i] times a number from 0 to sizes[i]-1.
  int64_t begin = 0, end = 0;  // the first byte, and the byte after the last
  int64_t element = 1;
  c10::SmallVector<int64_t, 5> sizes, steps;
  bool dense = true;  // the region has every byte from begin to end

  static Region of(const at::Tensor& tensor);  // the region lies within the tensor's storage
  static Region bytes(int64_t begin, int64_t end);

  Region shifted(int64_t bytes) const;  // the same runs, so many bytes later

  bool operator==(const Region&) const;
  bool covers(const Region& other) const;  // true is always right; false may be wrong if the region is not dense
};

// Returns whether two regions share a byte. The answer is exact. If their bounds overlap and one
// region is not dense, time and memory grow with the number of elements.
bool overlap(const Region& a, const Region& b);

}  // namespace ct
