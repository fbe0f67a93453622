// Weights of 4 bits in the form mxfp4: codes e2m1, and a power of two as the scale of each 32
// columns, as gpt_oss publishes them.
//
// A row of a matrix is cut into segments, all of one width: a multiple of 128 columns, so that the
// row ends within the last of them. A segment has the codes of its columns, eight in a word; then
// the scale of each 32 columns, a byte e8m0; then zeros up to a multiple of 16 bytes. So a segment
// is what a kernel copies at a time. Columns behind the last have the code 0 and the scale 0.
//
// The codes 0 to 3 of a word lie in its low half, and 4 to 7 in the same way in its high half. Two
// of four are moved and masked once to become numbers in float16, and two others twice:
//
//   bit     15 14 13 12 11 10  9  8  7  6  5  4  3  2  1  0
//   code    0s 3m 3m 3m 0m 0m 0m 2s 1s 2m 2m 2m 1m 1m 1m 3s
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ct {

// Returns the numbers that packed rows tell, [..., columns] in a floating dtype. It throws for rows
// of another length.
at::Tensor mxfp4_numbers(const at::Tensor& packed, int64_t columns, at::ScalarType dtype);

struct Segments {
  int64_t count, columns, bytes;  // of segments; of one

  explicit Segments(int64_t row) {
    constexpr int64_t kMost = 3712;  // columns, so that a segment has at most 2048 bytes
    count = (row + kMost - 1) / kMost;
    columns = ((row + count - 1) / count + 127) / 128 * 128;
    bytes = (columns / 2 + columns / 32 + 15) / 16 * 16;
  }
  int64_t row_bytes() const { return count * bytes; }
};

}  // namespace ct
