// The bytes of a block of memory that one tensor reaches, and whether two such regions share a
// byte.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace ct {

struct Region {
  // Runs of element bytes, at begin plus any combination of steps: steps[i] bytes times 0 to
  // sizes[i]-1.
  int64_t begin = 0, end = 0;  // the first byte, and the byte after the last
  int64_t element = 1;
  c10::SmallVector<int64_t, 5> sizes, steps;
  bool dense = true;  // every byte from begin to end

  static Region of(const at::Tensor& tensor);  // within its storage
  static Region bytes(int64_t begin, int64_t end);

  bool operator==(const Region&) const;
  bool covers(const Region& other) const;  // false where it is not easily seen
};

// Whether two regions share a byte, exactly. Where both bounds meet and one region is not dense,
// time and memory grow with the number of elements.
bool overlap(const Region& a, const Region& b);

}  // namespace ct
