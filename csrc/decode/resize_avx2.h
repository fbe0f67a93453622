// The two passes of the resize, with AVX2: eight sums at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "decode/resize.h"

namespace decode {

// Both functions write the same pixels as the portable passes in decode/resize.cc. They need a
// processor with AVX2.
constexpr int kLeastWidthAvx2 = 6;  // the least width of the rows that across_rgb_avx2 reads

void across_rgb_avx2(const Pass& pass, const Axis& x, size_t rows);
void down_avx2(const Pass& pass, const Axis& y, size_t row);

}  // namespace decode
