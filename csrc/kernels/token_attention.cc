// token_attention: the attention of one token over a cache in pages. It is what a decoder computes
// for one token between the product that makes queries, keys and values, and the one that follows.
// Rows are tokens of different sequences.
//
//   qkv       [rows, (heads + 2 * key_heads) * HEAD] float32, or in the dtype of the cache:
//             queries, keys and values
//   norms     RMS norms of queries and keys, of each head or of all heads together, by the size of
//             their weights; with `offset` the weights are 1 + weight
//   cos, sin  [rows, 1, turned] float32: the first `turned` elements of queries and keys are
//             rotated; the sines of the first half are negative already
//   position  [rows] int64, the positions of the tokens
//   memory    [2, pages, key_heads, 16, HEAD], the cache: pages of 16 tokens
//   table     [rows, 2, blocks] int64: the pages of keys, and those of values, which count from
//             `pages`; for one row also [2, blocks]; nothing behind a row's own blocks is read
//   before    [rows] int64, the positions before the first of the table
//   sinks     [heads], scores that take weight and have no value
//   window    how many keys the token sees, its own included; 0: all
//   cap       not 0: scores go through cap * tanh(score / cap)
//   arrived   [rows * 8 * key_heads or more] int32, zeros before and after
//
// The new key and value are rounded to the dtype of the cache and go into it. The token sees them
// like that. The result is [rows, heads * HEAD] in the dtype of the cache. Of several rows, those
// whose position is below 0 are padded: they write no key and no value, and their results are
// zeros. The kernel: token_attention_cuda.h. On the CPU: token_attention_cpu.h.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "core/device.h"
#include "kernels/edges.h"
#include "kernels/heads.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/token_attention_cpu.h"
#include "kernels/token_attention_cuda.h"
#include "kernels/token_heads_cuda.h"
#include "kernels/token_instructions_cuda.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::token_attention";
constexpr int64_t kMostHead = 256, kMostGroup = 8;
constexpr int kLeastWarps = 4;  // of a block

struct Inputs : HeadInputs {
  Optional sinks;
  int64_t window;
  double scale;
  double cap;
  const at::Tensor& arrived;

  int64_t blocks() const { return table.size(-1); }

  void check() const {
    check_memory();
    TORCH_CHECK(heads > 0 && heads <= qkv.numel() && heads % key_heads() == 0 && qkv.numel() == rows() * (heads + 2 * key_heads()) * head(), kOperator,
                ": qkv is ", qkv.sizes(), ", want for each of ", rows(), " rows ", heads, " queries, and keys and values of ", key_heads(), " heads of ",
                head());
    TORCH_CHECK(!needs_gradient({qkv, query_norm, key_norm, cos, sin, memory, sinks}), kOperator, ": it has no gradient: call it in NoGrad");
    check_row_numbers(kOperator, position, "position", rows(), memory.device());
    check_row_numbers(kOperator, before, "before", rows(), memory.device());
    HeadInputs::check(qkv, "qkv", qkv.numel(), qkv.scalar_type() == memory.scalar_type() ? memory.scalar_type() : wide());
    check_norms_and_turns();
    const bool of_rows = table.dim() == 3 && table.size(0) == rows();
    TORCH_CHECK((of_rows || (table.dim() == 2 && rows() == 1)) && table.size(-2) == 2 && blocks() > 0 && table.stride(-1) == 1 &&
                    table.scalar_type() == at::kLong && table.device() == memory.device(),
                kOperator, ": table is ", table.scalar_type(), " ", table.sizes(), " on ", table.device(), ", want [", rows(), ", 2, blocks] of ", at::kLong,
                " on ", memory.device(), ", without gaps in a row of pages");
    if (is_defined(sinks)) HeadInputs::check(*sinks, "sinks", heads, memory.scalar_type());
    TORCH_CHECK(window >= 0 && cap >= 0, kOperator, ": window is ", window, " and cap is ", cap, ", want none below 0");
    HeadInputs::check(arrived, "arrived", std::max(arrived.numel(), rows() * 8 * key_heads()), at::kInt);
  }
};

at::Tensor on_cpu(const Inputs& of) {
  const at::ScalarType dtype = of.memory.scalar_type(), wide = of.wide();
  TORCH_CHECK(is_floating(dtype) || dtype == at::kDouble, kOperator, ": memory is ", dtype, ", want float32, bfloat16, float16 or float64");
  const int64_t key_heads = of.key_heads();
  const at::Tensor qkv = of.qkv.view({of.rows(), -1, of.head()}).to(wide);
  const at::Tensor query = of.normed_and_rotated(qkv.narrow(1, 0, of.heads), of.query_norm);
  const at::Tensor key = of.normed_and_rotated(qkv.narrow(1, of.heads, key_heads), of.key_norm);
  const at::Tensor value = qkv.narrow(1, of.heads + key_heads, key_heads).contiguous();
  const at::Tensor sinks = is_defined(of.sinks) ? of.sinks->to(wide) : at::Tensor();
  CpuAttention a{of.memory, query, key, value, sinks, of.scale, of.cap, {}};
  for (int64_t r = 0; r < of.rows(); ++r) {
    const int64_t position = of.position.const_data_ptr<int64_t>()[r];
    const at::Tensor own = of.table.dim() == 3 ? of.table.select(0, r) : of.table;
    a.rows.push_back(of.rows() > 1 && position < 0 ? kPadded : seen_by(kOperator, own, position - of.before.const_data_ptr<int64_t>()[r] - 1, of.window, 2 * of.memory.size(1)));
  }
  return attend_on_cpu(a);
}

// As the struct TokenAttention of the CUDA text.
struct TokenAttention {
  const void* qkv;
  const void* query_norm;
  const void* key_norm;
  const void* cosines;
  const void* sines;
  const void* position;
  const void* before;
  const void* table;
  void* memory;
  const void* sinks;
  void* out;
  void* partial;
  void* arrived;
  long long values;
  int key_heads;
  int turned;
  int window;
  int splits;
  int share;
  float eps;
  float offset;
  float scale;
  float cap;
  long long next;
};

// How the kernel is laid out on a device.
struct Layout {
  int cluster;        // blocks of a cluster
  int warps;          // of a block
  int stages;         // of a warp's ring
  int stage_bytes;
  int64_t splits;     // clusters of a key head
  int64_t share;      // tiles for which a key head gets one cluster more
};

// Returns how many tiles one cluster of a key head takes before another one is added. Each block
// then has 256 keys of 128 elements, or 1024 where another cluster finds no idle multiprocessor.
// Another cluster costs a merge through memory.
int64_t share_of(const CudaChip& chip, int cluster, int64_t head, int64_t key_heads) {
  const bool idle = cluster == 1 || 2 * cluster * key_heads <= chip.multiprocessors;
  return std::max<int64_t>(cluster * (idle ? 16 : 64) * 128 / head, 1);
}

// Returns the number of blocks of a cluster. With more than one block on each multiprocessor, large
// clusters run one after another: some wait until a whole cluster has room.
int cluster_of(const CudaChip& chip, int64_t head, int64_t key_heads, int64_t tiles) {
  if (chip.capability < 90) return 1;
  const int most = key_heads < 32 ? 8 : key_heads < 64 ? 4 : 2;
  int cluster = 2;
  while (cluster < most && kLeastWarps * cluster < tiles) cluster *= 2;
  const int64_t share = share_of(chip, cluster, head, key_heads), splits = (tiles + share - 1) / share;
  return key_heads * splits * cluster <= chip.multiprocessors ? cluster : 2;
}

// Returns the bytes of the keys or values of one tile.
int stage_bytes_of(int64_t head) { return static_cast<int>((head + 63) / 64 * 64 * kPage * 2); }

// Returns how many stages each warp can have, with so many blocks on a multiprocessor.
int room_for(const CudaChip& chip, const Layout& of, int64_t head, int64_t group, int blocks) {
  // In static shared memory, at most.
  const int64_t fixed = 4 * group * ((head + 63) / 64 * 64) + 4 * head + 4 * group * head + 8 * (of.warps + of.cluster) * group + 512;
  const int64_t bytes = (chip.shared_memory + 1024) / blocks - 1024 - fixed;  // CUDA keeps 1024 bytes of each block
  return static_cast<int>(std::max<int64_t>(bytes / (of.warps * of.stage_bytes), 0));
}

// Returns how the kernel is laid out for a table with so many tiles.
Layout layout_of(const CudaChip& chip, int64_t head, int64_t group, int64_t key_heads, int64_t tiles) {
  Layout made{cluster_of(chip, head, key_heads, tiles), kLeastWarps, 0, stage_bytes_of(head), 0, 0};
  if (head <= 64 && made.warps * made.cluster < tiles) made.warps *= 2;  // with larger heads, two such blocks have no room beside each other
  made.share = share_of(chip, made.cluster, head, key_heads);
  const auto room = [&](int blocks) { return room_for(chip, made, head, group, blocks); };
  // Two blocks beside each other hide each other's waits.
  const int beside = room(2) >= 3 ? 2 : 1;
  made.splits = std::clamp<int64_t>((tiles + made.share - 1) / made.share, 1, std::max<int64_t>(beside * chip.multiprocessors / (made.cluster * key_heads), 1));
  // A block with a small ring begins beside those of the product before. With many tiles a warp,
  // the memory's speed counts for more.
  const bool few = tiles <= 6 * made.warps * made.cluster * made.splits;
  made.stages = std::min(room(beside), few ? 2 : 4);
  return made;
}

// Returns how the kernel is laid out for several rows. The sums of a row depend on `share`, which
// the number of rows alone decides. Each block makes its queries anew, and splits merge through
// memory: many rows have 1,024 keys of 128 elements in a block. With fewer rows, fewer keys leave
// no multiprocessor idle.
Layout layout_of_rows(const CudaChip& chip, int64_t head, int64_t group, int64_t tiles, int64_t units) {
  Layout made{1, kLeastWarps, 0, stage_bytes_of(head), 0, 0};
  made.share = std::max<int64_t>((units <= chip.multiprocessors ? 16 : units <= 3 * chip.multiprocessors ? 32 : 64) * 128 / head, 1);
  for (int beside = head <= 128 ? 3 : 2; beside > 0 && made.stages < 2; --beside) made.stages = std::min(room_for(chip, made, head, group, beside), 4);
  made.splits = (tiles + made.share - 1) / made.share;
  return made;
}

const CudaProgram& program_of(const Inputs& of, const Layout& layout, Edge edge) {
  const at::ScalarType dtype = of.memory.scalar_type();
  const int64_t group = of.heads / of.key_heads();
  const at::ScalarType from = of.qkv.scalar_type();
  const auto in_twos = [](const at::Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 8 == 0; };
  const bool aligned = in_twos(of.cos) && in_twos(of.sin) && (!is_defined(of.query_norm) || (in_twos(*of.query_norm) && in_twos(*of.key_norm)));
  const int neighbours = of.head() > 64 && of.turned() % 4 == 0 && aligned ? 2 : 1;  // a head of 64 has two elements for each lane
  const std::tuple key(dtype, from, of.rows() > 1, of.head(), neighbours, group, layout.stages, layout.cluster, layout.warps, static_cast<int>(of.norm()), of.cap > 0,
                       is_defined(of.sinks), static_cast<int>(edge));
  return variant_of(key, [&] {
    Variant made{"attention of a token by groups of " + std::to_string(group) + " heads of " + std::to_string(of.head()) + " " + float_name(dtype),
                 "\n" + define("DTYPE", float_name(dtype)) + define("MMA", dtype == at::kHalf ? "\"f16\"" : "\"bf16\"") + define("QKV", float_name(from)) +
                     define("ROWS", of.rows() > 1) + define("HEAD", of.head()) + define("GROUP", group) + define("STAGES", layout.stages) +
                     define("CLUSTER", layout.cluster) + define("WARPS", layout.warps) + define("NEIGHBOURS", neighbours) + define("NORM", of.norm()) +
                     define("CAP", of.cap > 0) + define("SINKS", is_defined(of.sinks)) + define("EDGE", edge) + kEdgesText,
                 std::string(kTokenInstructionsText) + kTokenHeadsText + kTokenAttentionText, /*fused_multiply_add=*/true};
    made.most_shared_memory = true;
    return made;
  });
}

at::Tensor by_kernel(const Inputs& of, Edge edge) {
  const at::ScalarType dtype = of.memory.scalar_type();
  const c10::DeviceIndex device = of.memory.device().index();
  const CudaChip chip = cuda().chip(device);
  const int64_t head = of.head(), key_heads = of.key_heads(), group = of.heads / key_heads, blocks = of.blocks(), rows = of.rows();
  TORCH_CHECK((dtype == at::kBFloat16 || dtype == at::kHalf) && head % 16 == 0 && head <= kMostHead && group <= kMostGroup && chip.capability >= 80, kOperator,
              ": it has ", group, " query heads a key head, of ", head, " elements, and a cache of ", dtype, "; the kernel takes up to ", kMostGroup,
              ", a multiple of 16 elements up to ", kMostHead, ", and bfloat16 and float16, on compute capability 8.0");
  TORCH_CHECK(is_aligned(of.qkv) && is_aligned(of.memory), kOperator, ": qkv or memory is not aligned to 16 bytes");
  TORCH_CHECK(blocks * kPage < INT32_MAX && of.memory.size(1) < INT32_MAX / 2 && of.qkv.numel() < INT32_MAX, kOperator, ": the table ", of.table.sizes(),
              ", the cache ", of.memory.sizes(), " or qkv ", of.qkv.sizes(), " is too large");
  const int64_t window = std::min<int64_t>(of.window, INT32_MAX);
  const int64_t tiles = window > 0 ? std::min(blocks, (window + 14) / kPage + 1) : blocks;  // that have visible keys, at most
  const Layout layout = rows > 1 ? layout_of_rows(chip, head, group, tiles, rows * key_heads) : layout_of(chip, head, group, key_heads, tiles);
  TORCH_CHECK(layout.stages > 0, kOperator, ": heads of ", head, " elements leave no room in shared memory");

  const int64_t splits = layout.splits;
  const int64_t launched = key_heads * splits * layout.cluster;
  at::Tensor out = at::empty({rows, of.heads * head}, of.memory.options()), partial;
  if (splits > 1) partial = at::empty({rows * launched * (group * head / layout.cluster + 2 * group)}, of.cos.options());

  const double log2e = 1.4426950408889634;
  TokenAttention a{of.qkv.const_data_ptr(), read(of.query_norm), read(of.key_norm), of.cos.const_data_ptr(), of.sin.const_data_ptr(),
                   of.position.const_data_ptr(), of.before.const_data_ptr(), of.table.const_data_ptr(), of.memory.mutable_data_ptr(), read(of.sinks),
                   out.mutable_data_ptr(), splits > 1 ? partial.mutable_data_ptr() : nullptr, of.arrived.mutable_data_ptr(), of.table.stride(-2),
                   static_cast<int>(key_heads), static_cast<int>(of.turned()), static_cast<int>(window),
                   static_cast<int>(splits), static_cast<int>(layout.share), static_cast<float>(of.eps), of.offset ? 1.f : 0.f,
                   static_cast<float>(of.cap > 0 ? of.scale / of.cap : of.scale * log2e), static_cast<float>(of.cap * log2e),
                   rows > 1 ? of.table.stride(0) : 0};
  void* arguments[] = {&a};
  cuda().launch(program_of(of, layout, edge), "token_attention", images::stream_of(of.memory), static_cast<unsigned>(launched), 32 * layout.warps, arguments,
                static_cast<int>(layout.warps * layout.stages * layout.stage_bytes), start_of(edge), static_cast<unsigned>(layout.cluster),
                static_cast<unsigned>(rows));
  return out;
}

at::Tensor token_attention(const at::Tensor& qkv, Optional query_norm, Optional key_norm, double eps, bool offset, const at::Tensor& cos, const at::Tensor& sin,
                           const at::Tensor& position, const at::Tensor& memory, const at::Tensor& table, const at::Tensor& before, Optional sinks,
                           int64_t heads, int64_t window, double scale, double cap, const at::Tensor& arrived, c10::string_view edge) {
  const Inputs of{{kOperator, qkv, query_norm, key_norm, eps, offset, cos, sin, position, memory, table, before, heads}, sinks, window, scale, cap, arrived};
  of.check();
  const Edge checked = edge_of(kOperator, {edge.data(), edge.size()}, memory.device());
  if (memory.is_cuda()) return by_kernel(of, checked);
  return on_cpu(of);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def(
      "token_attention(Tensor qkv, Tensor? query_norm, Tensor? key_norm, float eps, bool offset, Tensor cos, Tensor sin, Tensor position, "
      "Tensor(a!) memory, Tensor table, Tensor before, Tensor? sinks, int heads, int window, float scale, float cap, Tensor(b!) arrived, str edge) -> Tensor");
  declare_early_reads(kOperator, {{"query_norm"}, {"key_norm"}, {"position"}, {"memory", "table"}, {"table"}, {"before"}});
}

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("token_attention", TORCH_FN(token_attention)); }

}  // namespace
}  // namespace ct
