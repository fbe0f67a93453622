// rope_into_pages: what stands between the product that makes queries, keys and values, and the
// attention of some tokens of one sequence.
//
//   qkv       [rows, (heads + 2 * key_heads) * HEAD] in the dtype of the cache
//   norms     RMS norms of queries and keys, of each head or of all heads together, by the size of
//             their weights; with `offset` the weights are 1 + weight
//   cos, sin  [rows, 1, turned] float32: the first `turned` elements of queries and keys are
//             rotated; the sines of the first half are negative already
//   position  [rows] int64, the positions of the tokens; a row below 0 is passed over
//   memory    [2, pages, key_heads, 16, HEAD], the cache: pages of 16 tokens
//   table     [2, blocks] int64: the pages of keys, and those of values, which count from `pages`
//   before    [1] int64, the position before the first of the table
//
// Keys and values go into the cache. The result is the queries, [rows, heads, HEAD]; those of rows
// that are passed over are undefined. Norms and rotations are in float32. A position that the table
// has not reads other memory: the device does not check it. On the CPU, and for float64 and heads
// beyond 256, LibTorch's operators do the work. On CUDA they pass over no row.
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
#include "kernels/token_instructions_cuda.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::rope_into_pages";
constexpr int64_t kMostHead = 256;

// The text is compiled for one set of these macros:
//
//   DTYPE  of qkv, the cache and the queries
//   HEAD   elements of a head, up to 256
//   NORM   0: no norm of queries and keys, 1: one of each head, 2: one of all heads together
//
// A block has one token. A warp takes one head after another.
constexpr char kSource[] = R"cuda(
using Raw = DTYPE::Raw;

struct Rope {
  const Raw* qkv;
  const float* query_norm;
  const float* key_norm;
  const float* cosines;
  const float* sines;
  const long long* position;
  const long long* before;
  const long long* table;
  Raw* memory;
  Raw* queries;
  long long values;  // the distance of the rows of the table
  int heads;
  int key_heads;
  int turned;
  float eps;
  float offset;
};

constexpr int kParts = (HEAD + 31) / 32;  // elements of a lane

// Returns 1 over the root of the mean square of `count` elements, in all threads of the block.
__device__ __forceinline__ float factor_of_all(const Raw* from, int count, float eps, float* room) {
  float squares = 0;
  for (int i = threadIdx.x; i < count; i += 256) {
    const float v = DTYPE::widen(from[i]);
    squares = fmaf(v, v, squares);
  }
  squares = sum_of_warp(squares);
  __syncthreads();
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = squares;
  __syncthreads();
  squares = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += room[i];
  return rsqrtf(squares / count + eps);
}

extern "C" __global__ void __launch_bounds__(256) rope_into_pages(const Rope r) {
  __shared__ float room[8];
  const size_t row = blockIdx.x;
  const int lane = threadIdx.x % 32, all = r.heads + 2 * r.key_heads;
  const Raw* const from = r.qkv + row * all * HEAD;
  const float *const cosines = r.cosines + row * r.turned, *const sines = r.sines + row * r.turned;
  if (r.position[row] < 0) return;
  const long long place = r.position[row] - *r.before - 1;
  const int within = static_cast<int>(place % 16);
  float of_queries = 1, of_keys = 1;
  if constexpr (NORM == 2) {
    of_queries = factor_of_all(from, r.heads * HEAD, r.eps, room);
    of_keys = factor_of_all(from + static_cast<size_t>(r.heads) * HEAD, r.key_heads * HEAD, r.eps, room);
  }
  for (int head = threadIdx.x / 32; head < all; head += 8) {
    const Raw* const own = from + static_cast<size_t>(head) * HEAD;
    const bool query = head < r.heads, value = head >= r.heads + r.key_heads;
    const int key_head = query ? 0 : value ? head - r.heads - r.key_heads : head - r.heads;
    const long long page = query ? 0 : r.table[(value ? r.values : 0) + place / 16];
    Raw* const to = query ? r.queries + (row * r.heads + head) * HEAD : r.memory + ((page * r.key_heads + key_head) * 16 + within) * HEAD;
    float v[kParts];
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int at = lane + 32 * i;
      v[i] = at < HEAD ? DTYPE::widen(own[at]) : 0;
      squares = fmaf(v[i], v[i], squares);
    }
    float factor = query ? of_queries : of_keys;
    if constexpr (NORM == 1) factor = rsqrtf(sum_of_warp(squares) / HEAD + r.eps);
    const float* norm = query ? r.query_norm : r.key_norm;
    if constexpr (NORM == 2) norm += (query ? head : key_head) * HEAD;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int at = lane + 32 * i;
      if (at >= HEAD) continue;
      float made = v[i];
      if (!value) {
        if constexpr (NORM != 0) made *= factor * (norm[at] + r.offset);
        if (at < r.turned) {
          const int other = at < r.turned / 2 ? at + r.turned / 2 : at - r.turned / 2;
          float partner = DTYPE::widen(own[other]);
          if constexpr (NORM != 0) partner *= factor * (norm[other] + r.offset);
          made = fmaf(made, cosines[at], partner * sines[at]);
        }
      }
      to[at] = DTYPE::narrow(made);
    }
  }
}
)cuda";

// As the struct Rope of the CUDA text.
struct Rope {
  const void* qkv;
  const void* query_norm;
  const void* key_norm;
  const void* cosines;
  const void* sines;
  const void* position;
  const void* before;
  const void* table;
  void* memory;
  void* queries;
  long long values;
  int heads;
  int key_heads;
  int turned;
  float eps;
  float offset;
};

struct Inputs : HeadInputs {
  void check() const {
    check_memory();
    TORCH_CHECK(!needs_gradient({qkv, query_norm, key_norm, cos, sin, memory}), kOperator, ": it has no gradient: call it in NoGrad");
    TORCH_CHECK(heads > 0 && rows() > 0, kOperator, ": there are ", heads, " heads and ", rows(), " rows, want one at least");
    HeadInputs::check(qkv, "qkv", rows() * (heads + 2 * key_heads()) * head(), memory.scalar_type());
    check_norms_and_turns();
    HeadInputs::check(position, "position", rows(), at::kLong);
    HeadInputs::check(before, "before", 1, at::kLong);
    check_table(kOperator, table, memory.device());
  }
};

// Returns the least of some numbers on the CPU, without an operator that would count as a wait.
int64_t least(const at::Tensor& numbers) {
  const int64_t* const all = numbers.const_data_ptr<int64_t>();
  return *std::min_element(all, all + numbers.numel());
}

// Throws if a number on the CPU is none of `count`. It reads them without an operator that would
// count as a wait.
void check_numbers(const at::Tensor& numbers, int64_t count, const char* what) {
  if (!numbers.is_cpu() || numbers.numel() == 0) return;
  const int64_t* const all = numbers.const_data_ptr<int64_t>();
  const auto [least, most] = std::minmax_element(all, all + numbers.numel());
  TORCH_CHECK(*least >= 0 && *most < count, kOperator, ": the tokens are in ", what, " ", *least, " to ", *most, ", and there are ", count);
}

at::Tensor by_operators(const Inputs& of) {
  const int64_t rows = of.rows(), head = of.head(), key_heads = of.key_heads();
  const at::ScalarType dtype = of.memory.scalar_type();
  const at::Tensor qkv = of.qkv.view({rows, -1, head});
  const auto made = [&](int64_t from, int64_t count, Optional norm) { return of.normed_and_rotated(qkv.narrow(1, from, count).to(of.wide()), norm).to(dtype); };
  const at::Tensor positions = of.position.view({-1});
  at::Tensor places = positions.sub(of.before.view({-1})).sub(1), kept;
  if (positions.is_cpu() && least(positions) < 0) {
    kept = positions.ge(0).nonzero().view(-1);
    places = places.index_select(0, kept);
  }
  const at::Tensor blocks = places.div(kPage, "floor"), within = places.remainder(kPage);
  check_numbers(blocks, of.table.size(1), "blocks of the table");
  const at::Tensor cache = of.memory.view({-1, key_heads, kPage, head});
  const auto write = [&](int64_t kind, const at::Tensor& fresh) {
    const at::Tensor pages = of.table.select(0, kind).index_select(0, blocks);
    check_numbers(pages, cache.size(0), "pages of memory");
    cache.transpose(1, 2).index_put_({pages, within}, kept.defined() ? fresh.index_select(0, kept) : fresh);
  };
  write(0, made(of.heads, key_heads, of.key_norm));
  write(1, qkv.narrow(1, of.heads + key_heads, key_heads));
  return made(0, of.heads, of.query_norm);
}

at::Tensor rope_into_pages(const at::Tensor& qkv, Optional query_norm, Optional key_norm, double eps, bool offset, const at::Tensor& cos, const at::Tensor& sin,
                           const at::Tensor& position, const at::Tensor& memory, const at::Tensor& table, const at::Tensor& before, int64_t heads) {
  const Inputs of{{kOperator, qkv, query_norm, key_norm, eps, offset, cos, sin, position, memory, table, before, heads}};
  of.check();
  const at::ScalarType dtype = memory.scalar_type();
  if (!memory.is_cuda() || dtype == at::kDouble || of.head() > kMostHead) return by_operators(of);
  TORCH_CHECK(of.rows() < INT32_MAX && heads + 2 * of.key_heads() < INT32_MAX / kMostHead, kOperator, ": qkv is ", qkv.sizes(), ", which is too large");
  at::Tensor queries = at::empty({of.rows(), heads, of.head()}, memory.options());
  const CudaProgram& program = variant_of(std::tuple(dtype, of.head(), of.norm()), [&] {
    return Variant{"rotations of heads of " + std::to_string(of.head()) + " " + float_name(dtype),
                   "\n" + define("DTYPE", float_name(dtype)) + define("HEAD", of.head()) + define("NORM", of.norm()), std::string(kTokenInstructionsText) + kSource};
  });
  Rope r{qkv.const_data_ptr(), read(query_norm), read(key_norm), cos.const_data_ptr(), sin.const_data_ptr(), position.const_data_ptr(), before.const_data_ptr(),
         table.const_data_ptr(), memory.mutable_data_ptr(), queries.mutable_data_ptr(), table.stride(0), static_cast<int>(heads), static_cast<int>(of.key_heads()),
         static_cast<int>(of.turned()), static_cast<float>(eps), offset ? 1.f : 0.f};
  void* arguments[] = {&r};
  cuda().launch(program, "rope_into_pages", images::stream_of(memory), static_cast<unsigned>(of.rows()), 256, arguments);
  return queries;
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def(
      "rope_into_pages(Tensor qkv, Tensor? query_norm, Tensor? key_norm, float eps, bool offset, Tensor cos, Tensor sin, Tensor position, Tensor(a!) memory, "
      "Tensor table, Tensor before, int heads) -> Tensor");
}

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("rope_into_pages", TORCH_FN(rope_into_pages)); }

}  // namespace
}  // namespace ct
