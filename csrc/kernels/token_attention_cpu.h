// The attention of token_attention.cc on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace ct {

// The keys that a row sees: numbers `oldest` to `newest` of its table. A padded row has oldest -1.
struct SeenKeys {
  int64_t oldest, newest;
  const int64_t* pages;  // of keys, by blocks of 16 numbers
  int64_t values;        // pages[values] is the first page of values
};

struct CpuAttention {
  const at::Tensor& memory;  // [2, pages, key_heads, 16, HEAD], the cache
  const at::Tensor& query;   // [rows, heads, HEAD] in the wide dtype, as key, value and sinks
  const at::Tensor& key;     // [rows, key_heads, HEAD], new ones, and so is value
  const at::Tensor& value;
  const at::Tensor& sinks;   // [heads], or undefined
  double scale;              // of the scores
  double cap;                // scores become cap * tanh(score / cap); 0 for none
  std::vector<SeenKeys> rows;
};

// Writes the new keys and values into the cache. Returns the attention of the rows, [rows, heads *
// HEAD] in the dtype of the cache. A row has the same bits in any batch. Tensors have no gaps.
at::Tensor attend_on_cpu(const CpuAttention& a);

}  // namespace ct
