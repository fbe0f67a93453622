// The attention of token_attention.cc and prompt_attention.cc on the CPU.
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

constexpr SeenKeys kPadded{-1, -1, nullptr, 0};

// Returns the keys that a token sees, which is number `newest` of its table, [2, blocks], with a
// window, where 0 means all. Throws if they are not in the table, or if a page is none of `pages`.
SeenKeys seen_by(const char* op, const at::Tensor& table, int64_t newest, int64_t window, int64_t pages);

struct CpuAttention {
  const at::Tensor& memory;  // [2, pages, key_heads, 16, HEAD], the cache
  const at::Tensor& query;   // [rows, heads, HEAD] in the wide dtype, as key, value and sinks
  const at::Tensor& key;     // [rows, key_heads, HEAD], new ones, or undefined, and so is value
  const at::Tensor& value;
  const at::Tensor& sinks;   // [heads], or undefined
  double scale;              // of the scores
  double cap;                // scores become cap * tanh(score / cap); 0 for none
  std::vector<SeenKeys> rows;
};

// Writes the new keys and values, if there are any, into the cache. Returns the attention of the
// rows, [rows, heads * HEAD] in the dtype of the cache. A row has the same bits in any batch.
// Tensors have no gaps.
at::Tensor attend_on_cpu(const CpuAttention& a);

}  // namespace ct
