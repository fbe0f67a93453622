// What the launches of token_linear_cuda.h and of its forms share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/codes4.h"

namespace ct {

enum Epilogue : int { kPlain, kFloat, kAdd, kSilu, kGelu, kClamped };  // token_linear_cuda.h has the same numbers

// As the struct Linear of the CUDA text.
struct Linear {
  const void* input = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  const void* norm = nullptr;
  const void* late = nullptr;
  const void* late_norm = nullptr;
  void* sum = nullptr;
  const void* residual = nullptr;
  const void* scale = nullptr;
  void* out = nullptr;
  const void* picks = nullptr;
  const void* shares = nullptr;
  float eps = 0;
  float limit = 0;
  float alpha = 0;
  int rows = 0;
  int stages = 0;
  int window = 0;
};

// How a row is cut: into boxes for the ring, or else into pieces of 1024 columns.
struct Cut {
  int boxes = 0, width = 0;  // boxes of so many columns
  int padded;                // columns of the product's input in shared memory

  // The width is one of three, with the fewest columns behind the last. A warp multiplies 256
  // columns at a time, and with codes eight warps 1024 together, so part of a wider step is idle.
  // What is behind the last column is not read.
  Cut(int64_t columns, bool coded, bool ring) : padded(static_cast<int>((columns + 1023) / 1024 * 1024)) {
    if (!ring) return;
    for (const int of : {1024, 768, 512}) {
      const int count = static_cast<int>((columns + of - 1) / of);
      if (boxes != 0 && (coded || count * of >= padded)) continue;
      boxes = count, width = of, padded = count * of;
    }
  }
  // Codes of 4 bits are cut into segments.
  explicit Cut(const Segments& s) : boxes(static_cast<int>(s.count)), width(static_cast<int>(s.columns)), padded(static_cast<int>(s.count * s.columns)) {}

  // How many boxes `sizes` and the limits of a ring count as one.
  int boxes_together() const { return width == 512 ? 2 : 1; }
};

// What token_codes4 gets besides Linear: as the struct Boxes of the CUDA text.
struct Boxes4 {
  const void* all;
  const void* slots;
};

// The stages that token_codes4 has on their way, unless `sizes` says otherwise: enough bytes for a
// multiprocessor's part of the memory's rate.
constexpr int window4(int stage_bytes) { return std::max(2, (32 << 10) / stage_bytes); }

// The number of warps of token_codes4 that multiply this many lines of 128 columns. At most 12
// multiply, so that two blocks have room on a multiprocessor.
constexpr int warps4(int lines) {
  const int turns = (lines + 11) / 12;
  return std::max(8, (lines + turns - 1) / turns);
}

// The text of token_codes4 keeps the sums of 8 turns, of each warp and row.
constexpr int bytes_of_sums4(int warps, int in_group) { return 2 * 8 * warps * 2 * in_group * 4; }

}  // namespace ct
