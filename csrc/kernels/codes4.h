// Weights of 4 bits, with a scale for each 32 columns of a row, in two forms:
//
//   mxfp4  codes e2m1, and a power of two, e8m0, as gpt_oss publishes them
//   int4   codes from 0 to 15, which are 8 more than the number, and a scale in bfloat16
//
// A matrix [rows, columns] is cut into segments, all of one width: a multiple of 128 columns, so
// that a row ends within the last of them. A row of a segment has the codes of its columns, eight
// in a word; then the scales; then zeros up to a multiple of 16 bytes. A packed matrix is [segments
// * rows, bytes]: all rows of the first segment, then those of the second. So the rows of a segment
// that a kernel copies at a time lie in one piece. Columns behind the last have the code 0 and the
// scale 0.
//
// The codes 0 to 3 of a word lie in its low half, and 4 to 7 in the same way in its high half.
// Those of int4 come from the lowest bits on. Of mxfp4, two of four are moved and masked once to
// become numbers in float16, and two others twice:
//
//   bit     15 14 13 12 11 10  9  8  7  6  5  4  3  2  1  0
//   code    0s 3m 3m 3m 0m 0m 0m 2s 1s 2m 2m 2m 1m 1m 1m 3s
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace ct {

enum Form4 : int { kMxfp4 = 3, kInt4 = 4 };  // as CODES in token_linear_cuda.h

// Returns the form with this name. It throws for another name.
Form4 form4_of(const char* where, std::string_view name);

// Returns the numbers that packed matrices tell, [..., rows, columns] in a floating dtype. It
// throws for matrices of another shape.
at::Tensor numbers4(const at::Tensor& packed, int64_t columns, Form4 form, at::ScalarType dtype);

struct Segments {
  int64_t count, columns, bytes;  // of segments; of one, and of its rows

  Segments(int64_t row, Form4 form) {
    constexpr int64_t kMost = 3712;  // columns
    count = (row + kMost - 1) / kMost;
    columns = ((row + count - 1) / count + 127) / 128 * 128;
    bytes = (columns / 2 + columns / 32 * (form == kInt4 ? 2 : 1) + 15) / 16 * 16;
  }
};

}  // namespace ct
