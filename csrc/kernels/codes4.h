// Weights of 4 bits, with a scale for each group of columns of a row, in three forms:
//
//   mxfp4     codes e2m1, and for each 32 columns a power of two, e8m0, as gpt_oss publishes them
//   int4      codes from 0 to 15, which are 8 more than the number, and for each 32 columns a scale
//             in bfloat16
//   int4-128  the same, with a scale for each 128 columns
//
// A matrix [rows, columns] is cut into segments, all of one width: a multiple of 128 columns, so
// that a row ends within the last of them. A row of a segment has the codes of its columns, two in
// a byte, the first in the low half. Then come the scales, and zeros up to a multiple of 16 bytes.
// Where that is a multiple of 128, 16 more follow, so that rows lie in different banks of shared
// memory.
//
// A packed matrix is [segments * rows, bytes]: all rows of the first segment, then those of the
// second. So the rows of a segment that a kernel copies at a time lie in one piece. Columns behind
// the last group have the code 0 and the scale 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace ct {

enum Form4 : int { kMxfp4 = 3, kInt4 = 4, kInt4By128 = 5 };  // as CODES in token_linear_cuda.h

constexpr int64_t columns_of_scale(Form4 form) { return form == kInt4By128 ? 128 : 32; }
constexpr int64_t bytes_of_scale(Form4 form) { return form == kMxfp4 ? 1 : 2; }

// Returns the form with this name. It throws for another name.
Form4 form4_of(const char* where, std::string_view name);

// Returns the numbers that packed matrices tell, [..., rows, columns] in a floating dtype. It
// throws for matrices of another shape.
at::Tensor numbers4(const at::Tensor& packed, int64_t columns, Form4 form, at::ScalarType dtype);

struct Segments {
  int64_t count, columns, bytes;  // of segments; of one, and of its rows

  Segments(int64_t row, Form4 form) {
    constexpr int64_t kMost = 4096;  // columns
    count = (row + kMost - 1) / kMost;
    columns = ((row + count - 1) / count + 127) / 128 * 128;
    bytes = (columns / 2 + columns / columns_of_scale(form) * bytes_of_scale(form) + 15) / 16 * 16;
    if (bytes % 128 == 0) bytes += 16;
  }
};

}  // namespace ct
