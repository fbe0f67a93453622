// prompt_attention: the attention of some tokens of one sequence over a cache in pages. It follows
// rope_into_pages, which has written their keys and values.
//
//   query     [rows, heads, HEAD] in the dtype of the cache
//   position  [rows] int64, the positions of the tokens, each one more than the one before; those
//             behind them are below 0, and their rows are padded
//   last      [1] int64, the last of the positions
//   memory    [2, pages, key_heads, 16, HEAD], the cache: pages of 16 tokens
//   table     [2, blocks] int64: the pages of keys, and those of values, which count from `pages`;
//             nothing behind the last token is read
//   before    [1] int64, the position before the first of the table
//   sinks     [heads], scores that take weight and have no value
//   window    how many keys a token sees, its own included; 0: all
//
// A token sees the keys up to its own. The result is [rows, heads * HEAD] in the dtype of the
// cache, and zeros for padded rows. Sums are in float32. The weights of values are rounded to the
// dtype of the cache. A position that the table has not reads other memory: the device does not
// check it. The kernels: prompt_attention_cuda.h. On the CPU: token_attention_cpu.h.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>

#include "core/device.h"
#include "kernels/heads.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/prompt_attention_cuda.h"
#include "kernels/token_attention_cpu.h"
#include "kernels/token_instructions_cuda.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::prompt_attention";
constexpr int64_t kMostHead = 256, kMostGroup = 64;
constexpr int64_t kLeastKeys = 256;  // of a split, as in the CUDA text
constexpr int64_t kMostSplits = 32;  // merge_splits has a lane for each

struct Inputs {
  const at::Tensor& query;
  const at::Tensor& position;
  const at::Tensor& last;
  const at::Tensor& memory;
  const at::Tensor& table;
  const at::Tensor& before;
  Optional sinks;
  int64_t window;
  double scale;

  int64_t rows() const { return position.numel(); }
  int64_t heads() const { return query.size(1); }
  int64_t key_heads() const { return memory.size(2); }
  int64_t head() const { return memory.size(4); }

  void check() const {
    check_pages(kOperator, memory);
    check_row_numbers(kOperator, position, "position", rows(), memory.device());
    check_row_numbers(kOperator, last, "last", 1, memory.device());
    check_row_numbers(kOperator, before, "before", 1, memory.device());
    TORCH_CHECK(query.dim() == 3 && query.size(0) == rows() && heads() > 0 && heads() % key_heads() == 0 && query.size(2) == head() &&
                    query.scalar_type() == memory.scalar_type() && query.device() == memory.device() && query.is_contiguous(),
                kOperator, ": query is ", query.scalar_type(), " ", query.sizes(), " on ", query.device(), ", want [", rows(), ", a multiple of ", key_heads(), ", ",
                head(), "] of ", memory.scalar_type(), " on ", memory.device(), " without gaps");
    TORCH_CHECK(!needs_gradient({query, memory, sinks}), kOperator, ": it has no gradient: call it in NoGrad");
    check_table(kOperator, table, memory.device());
    check_elements(kOperator, sinks, "sinks", heads(), memory.scalar_type(), memory.device());
    TORCH_CHECK(window >= 0 && scale > 0, kOperator, ": window is ", window, " and scale is ", scale, ", want a window of 0 or more, and a scale above 0");
  }
};

at::Tensor on_cpu(const Inputs& of) {
  const at::ScalarType dtype = of.memory.scalar_type(), wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  TORCH_CHECK(is_floating(dtype) || dtype == at::kDouble, kOperator, ": memory is ", dtype, ", want float32, bfloat16, float16 or float64");
  const at::Tensor query = of.query.to(wide), sinks = is_defined(of.sinks) ? of.sinks->to(wide) : at::Tensor(), none;
  CpuAttention a{of.memory, query, none, none, sinks, of.scale, 0, {}};
  const int64_t before = *of.before.const_data_ptr<int64_t>(), last = *of.last.const_data_ptr<int64_t>();
  int64_t next = 0;
  for (int64_t r = 0; r < of.rows(); ++r) {
    const int64_t position = of.position.const_data_ptr<int64_t>()[r];
    TORCH_CHECK(r == 0 || (next < 0 ? position < 0 : position == next || position < 0), kOperator, ": position ", r, " is ", position, " behind ", next - 1,
                ", want one more, or numbers below 0 to the end");
    next = position < 0 ? -1 : position + 1;
    TORCH_CHECK(position <= last, kOperator, ": position ", r, " is ", position, ", and last is ", last);
    a.rows.push_back(position < 0 ? kPadded : seen_by(kOperator, of.table, position - before - 1, of.window, 2 * of.memory.size(1)));
  }
  return attend_on_cpu(a);
}

// As the struct PromptAttention of the CUDA text.
struct PromptAttention {
  const void* query;
  const void* position;
  const void* last;
  const void* before;
  const void* table;
  const void* memory;
  const void* sinks;
  void* out;
  void* sums;
  void* states;
  long long values;
  int rows;
  int key_heads;
  int window;
  int tiles;
  int splits;
  float scale;
};

at::Tensor by_kernel(const Inputs& of) {
  const at::ScalarType dtype = of.memory.scalar_type();
  const CudaChip chip = cuda().chip(of.memory.device().index());
  const int64_t rows = of.rows(), head = of.head(), key_heads = of.key_heads(), heads = of.heads(), group = heads / key_heads;
  TORCH_CHECK((dtype == at::kBFloat16 || dtype == at::kHalf) && head % 16 == 0 && head <= kMostHead && group <= kMostGroup && chip.capability >= 80, kOperator,
              ": it has ", group, " query heads a key head, of ", head, " elements, and a cache of ", dtype, "; the kernel takes up to ", kMostGroup,
              ", a multiple of 16 elements up to ", kMostHead, ", and bfloat16 and float16, on compute capability 8.0 or more");
  TORCH_CHECK(is_aligned(of.query) && is_aligned(of.memory), kOperator, ": query or memory is not aligned to 16 bytes");
  TORCH_CHECK(of.table.size(1) * kPage < INT32_MAX && of.memory.size(1) < INT32_MAX / 2 && of.query.numel() < INT32_MAX / kMostSplits, kOperator, ": the table ",
              of.table.sizes(), ", the cache ", of.memory.sizes(), " or query ", of.query.sizes(), " is too large");
  const int64_t queries = head <= 128 ? 128 : 64, keys = head <= 128 ? 64 : 32, row = (head + 63) / 64 * 64;  // as in the CUDA text
  const int64_t tokens = queries / group, tiles = (rows + tokens - 1) / tokens;
  const int64_t window = std::min<int64_t>(of.window, INT32_MAX);
  const int64_t most = std::min(of.table.size(1) * kPage, window > 0 ? window + tokens : INT64_MAX);  // keys that a tile sees
  // Two blocks have room on a multiprocessor.
  const int64_t splits = std::clamp<int64_t>(std::min(2 * chip.multiprocessors / (tiles * key_heads), (most + kLeastKeys - 1) / kLeastKeys), 1, kMostSplits);
  const auto wide = of.memory.options().dtype(at::kFloat);
  at::Tensor out = at::empty({rows, heads * head}, of.memory.options()), sums, states;
  if (splits > 1) sums = at::empty({splits, rows, heads, head}, wide), states = at::empty({splits, rows, heads, 2}, wide);

  const CudaProgram& program = variant_of(std::tuple(dtype, head, group, is_defined(of.sinks)), [&] {
    Variant made{"attention of prompts by groups of " + std::to_string(group) + " heads of " + std::to_string(head) + " " + float_name(dtype),
                   "\n" + define("DTYPE", float_name(dtype)) + define("MMA", dtype == at::kHalf ? "\"f16\"" : "\"bf16\"") + define("HEAD", head) +
                       define("GROUP", group) + define("SINKS", is_defined(of.sinks)),
                   std::string(kTokenInstructionsText) + kPromptAttentionText, /*fused_multiply_add=*/true};
    made.most_shared_memory = true;
    return made;
  });
  PromptAttention a{of.query.const_data_ptr(), of.position.const_data_ptr(), of.last.const_data_ptr(), of.before.const_data_ptr(), of.table.const_data_ptr(),
                    of.memory.const_data_ptr(), read(of.sinks), out.mutable_data_ptr(), splits > 1 ? sums.mutable_data_ptr() : nullptr,
                    splits > 1 ? states.mutable_data_ptr() : nullptr, of.table.stride(0), static_cast<int>(rows), static_cast<int>(key_heads),
                    static_cast<int>(window), static_cast<int>(tiles), static_cast<int>(splits),
                    static_cast<float>(of.scale * 1.4426950408889634)};
  void* arguments[] = {&a};
  const c10::Stream stream = images::stream_of(of.memory);
  cuda().launch(program, "prompt_attention", stream, static_cast<unsigned>(tiles * splits * key_heads), 128, arguments, static_cast<int>((queries + 4 * keys) * row * 2));
  if (splits > 1) cuda().launch(program, "merge_splits", stream, static_cast<unsigned>((rows * heads + 3) / 4), 128, arguments);
  return out;
}

at::Tensor prompt_attention(const at::Tensor& query, const at::Tensor& position, const at::Tensor& last, const at::Tensor& memory, const at::Tensor& table,
                            const at::Tensor& before, Optional sinks, int64_t window, double scale) {
  const Inputs of{query, position, last, memory, table, before, sinks, window, scale};
  of.check();
  return memory.is_cuda() ? by_kernel(of) : on_cpu(of);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def(
      "prompt_attention(Tensor query, Tensor position, Tensor last, Tensor memory, Tensor table, Tensor before, Tensor? sinks, int window, float scale) -> Tensor");
}

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("prompt_attention", TORCH_FN(prompt_attention)); }

}  // namespace
}  // namespace ct
