// token_route: the router of a mixture of experts, for one token.
//
//   input    [columns] float32
//   weight   [experts, columns] float32
//   bias     [experts] float32
//   norm     [columns] float32: an RMS norm of the input, whose weight with `offset` is 1 + norm
//   arrived  [1 or more] int32: the first one may count blocks, and is 0 before and after
//   table    [experts + 2 * slots + 1] int32, or none, for top to experts slots: see below
//   counts   [2] int64, with a table: how many picks were in a slot, and how many were not
//
// The scores are norm(input) @ weight^T + bias, in float32. The results are the `top` largest, the
// largest first, and their shares, float32 [top]: the softmax of all scores, or with `of_top` that
// of the top ones. Of equal scores the first one comes first. A NaN counts as the largest.
//
// A pick is four int32, [top, 4]: where the expert is to be found among the slots, or without a
// table among the experts; -1, or the expert if it is still to be copied into the slot; the expert;
// and 0. The table has the slot of each expert, or -1; the expert of each slot, or -1; when each
// slot was last picked, or with `often` how many times; and the time, which grows by one. The time
// goes from 2^31 - 2 to -(2^31 - 1), and a count stops at 2^31 - 2.
//
// A pick without a slot takes the one of at least `top` that was picked longest ago, or least
// often, and that this token does not use. The table then tells of experts that are still to be
// copied: so token_experts runs with these picks for every matrix of the layer, on the same stream,
// before the next token_route. On the CPU, LibTorch's operators find the scores.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "core/device.h"
#include "kernels/edges.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/token_instructions_cuda.h"
#include "kernels/token_route_cuda.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::token_route";
constexpr int64_t kMostColumns = 8192, kMostExperts = 1024, kMostTop = 16;

struct Inputs {
  const at::Tensor& input;
  const at::Tensor& weight;
  Optional bias;
  Optional norm;
  double eps;
  bool offset;
  int64_t top;
  bool of_top;
  const at::Tensor& arrived;
  Optional table;
  Optional counts;
  bool often;

  int64_t slots() const { return is_defined(table) ? (table->numel() - experts() - 1) / 2 : 0; }
  int64_t experts() const { return weight.size(0); }
  int64_t columns() const { return weight.size(1); }

  void check(Optional t, const char* name, int64_t elements) const {
    check_elements(kOperator, t, name, elements, weight.scalar_type(), weight.device());
  }

  void check() const {
    TORCH_CHECK(weight.dim() == 2 && weight.numel() > 0 && weight.is_contiguous() && is_aligned(weight) &&
                    (weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kDouble),
                kOperator, ": weight is ", weight.scalar_type(), " ", weight.sizes(), ", want a contiguous matrix of float32, aligned to 16 bytes");
    TORCH_CHECK(top > 0 && top <= std::min(kMostTop, experts()), kOperator, ": top is ", top, " of ", experts(), " experts, want 1 to ", std::min(kMostTop, experts()));
    TORCH_CHECK(!needs_gradient({input, weight, bias, norm}), kOperator, ": it has no gradient: call it in NoGrad");
    check(input, "input", columns());
    check(bias, "bias", experts());
    check(norm, "norm", columns());
    TORCH_CHECK(arrived.numel() > 0 && arrived.scalar_type() == at::kInt && arrived.device() == weight.device() && arrived.is_contiguous(), kOperator,
                ": arrived is ", arrived.scalar_type(), " ", arrived.sizes(), ", want int32 on ", weight.device());
    TORCH_CHECK(is_defined(table) == is_defined(counts), kOperator, ": table and counts go together");
    if (!is_defined(table)) return;
    TORCH_CHECK(table->scalar_type() == at::kInt && table->device() == weight.device() && table->is_contiguous() && (table->numel() - experts() - 1) % 2 == 0 &&
                    slots() >= top && slots() <= experts(),
                kOperator, ": table is ", table->scalar_type(), " ", table->sizes(), ", want int32 [experts + 2 * slots + 1] for ", experts(), " experts and ", top, " to ", experts(), " slots");
    TORCH_CHECK(counts->scalar_type() == at::kLong && counts->numel() == 2 && counts->device() == weight.device() && counts->is_contiguous(), kOperator,
                ": counts is ", counts->scalar_type(), " ", counts->sizes(), ", want int64 [2]");
  }
};

// Does what find_slots of the CUDA text does, for the experts of a token.
void find_slots(const Inputs& of, int32_t* picks) {
  const int64_t experts = of.experts(), slots = of.slots();
  int32_t* const slot_of = of.table->mutable_data_ptr<int32_t>();
  int32_t *const owner = slot_of + experts, *const stamp = owner + slots, *const clock = stamp + slots;
  int64_t* const counts = of.counts->mutable_data_ptr<int64_t>();
  constexpr int32_t kMost = INT32_MAX - 1;  // as in the kernel
  const int32_t now = *clock = *clock == kMost ? -INT32_MAX : *clock + 1;
  std::vector<bool> taken(static_cast<size_t>(slots));
  for (int64_t k = 0; k < of.top; ++k) {
    const int32_t slot = slot_of[picks[4 * k + 2]];
    TORCH_CHECK(slot < slots, kOperator, ": the table has slot ", slot, " of ", slots);
    picks[4 * k] = slot;
    picks[4 * k + 1] = -1;
    ++counts[slot < 0];
    if (slot < 0) continue;
    taken[static_cast<size_t>(slot)] = true;
    stamp[slot] = of.often ? std::min(stamp[slot] + 1, kMost) : now;
  }
  for (int64_t k = 0; k < of.top; ++k) {
    if (picks[4 * k] >= 0) continue;
    int64_t best = -1;
    for (int64_t i = 0; i < slots; ++i) {
      if (!taken[static_cast<size_t>(i)] && (best < 0 || stamp[i] < stamp[best])) best = i;
    }
    const int32_t expert = picks[4 * k + 2], slot = static_cast<int32_t>(best);
    taken[static_cast<size_t>(best)] = true;
    TORCH_CHECK(owner[slot] < experts, kOperator, ": the table has expert ", owner[slot], " of ", experts);
    if (owner[slot] >= 0) slot_of[owner[slot]] = -1;
    owner[slot] = expert;
    slot_of[expert] = slot;
    stamp[slot] = of.often ? 1 : now;
    picks[4 * k] = slot;
    picks[4 * k + 1] = expert;
  }
}

std::tuple<at::Tensor, at::Tensor> by_operators(const Inputs& of) {
  at::Tensor input = of.input.view({1, -1});
  if (is_defined(of.norm)) input = at::rms_norm(input, {of.columns()}, of.offset ? at::add(*of.norm, 1) : *of.norm, of.eps);
  const at::Tensor scores = at::linear(input, of.weight, is_defined(of.bias) ? std::optional(*of.bias) : std::nullopt).view({-1});
  const auto [sorted, numbers] = at::sort(scores, /*stable=*/true, /*dim=*/0, /*descending=*/true);
  const at::Tensor top = numbers.narrow(0, 0, of.top), picks = at::zeros({of.top, 4}, numbers.options().dtype(at::kInt));
  picks.select(1, 0).copy_(top);
  picks.select(1, 1).fill_(-1);
  picks.select(1, 2).copy_(top);
  if (is_defined(of.table)) find_slots(of, picks.mutable_data_ptr<int32_t>());
  return {picks, of.of_top ? at::softmax(sorted.narrow(0, 0, of.top), 0) : at::softmax(scores, 0).index_select(0, top)};
}

// As the struct Route of the CUDA text.
struct Route {
  const void* input;
  const void* weight;
  const void* bias;
  const void* norm;
  void* scores;
  void* arrived;
  void* table;
  void* counts;
  void* picks;
  void* shares;
  float eps;
  int slots;
};

// Returns how many blocks are a cluster that computes all scores. 1 means that each expert has a
// block of its own: many weights have no room beside the kernel before.
int cluster_of(const Inputs& of) {
  constexpr int64_t kCluster = 8, kMostWeights = 48;  // of a thread
  const int64_t steps = (of.columns() / 4 + kTokenRouteThreads - 1) / kTokenRouteThreads;
  const bool fits = of.experts() % kCluster == 0 && of.experts() / kCluster * steps * 4 <= kMostWeights;
  return fits && cuda().chip(of.weight.device().index()).capability >= 90 ? kCluster : 1;
}

std::tuple<at::Tensor, at::Tensor> by_kernel(const Inputs& of, Edge edge) {
  TORCH_CHECK(of.weight.scalar_type() == at::kFloat && of.columns() % 4 == 0 && of.columns() <= kMostColumns && of.experts() <= kMostExperts &&
                  cuda().chip(of.weight.device().index()).capability >= 80,
              kOperator, ": weight is ", of.weight.scalar_type(), " ", of.weight.sizes(), ", and the kernel takes float32, up to ", kMostExperts,
              " experts, and a multiple of 4 columns up to ", kMostColumns, ", on compute capability 8.0");
  const int cluster = cluster_of(of);
  const CudaProgram& program = variant_of(
      std::tuple(of.columns(), of.experts(), of.top, is_defined(of.norm), of.offset, of.of_top, of.often, cluster, static_cast<int>(edge)), [&] {
        return Variant{"a router of " + std::to_string(of.experts()) + " experts",
                       "\n" + define("THREADS", kTokenRouteThreads) + define("COLUMNS", of.columns()) + define("EXPERTS", of.experts()) + define("TOP", of.top) + define("NORM", is_defined(of.norm)) +
                           define("OFFSET", of.offset) + define("OF_TOP", of.of_top) + define("OFTEN", of.often) + define("CLUSTER", cluster) + define("EDGE", edge) + kEdgesText,
                       std::string(kTokenInstructionsText) + kTokenRouteText, /*fused_multiply_add=*/true};
      });
  at::Tensor scores = at::empty({cluster > 1 ? 0 : of.experts()}, of.weight.options()), picks = at::empty({of.top, 4}, of.weight.options().dtype(at::kInt)),
             shares = at::empty({of.top}, of.weight.options());
  Route r{of.input.const_data_ptr(), of.weight.const_data_ptr(), read(of.bias), read(of.norm), scores.mutable_data_ptr(), of.arrived.mutable_data_ptr(),
          is_defined(of.table) ? of.table->mutable_data_ptr() : nullptr, is_defined(of.counts) ? of.counts->mutable_data_ptr() : nullptr,
          picks.mutable_data_ptr(), shares.mutable_data_ptr(), static_cast<float>(of.eps), static_cast<int>(of.slots())};
  void* arguments[] = {&r};
  cuda().launch(program, "token_route", images::stream_of(of.weight), static_cast<unsigned>(cluster > 1 ? cluster : of.experts()), kTokenRouteThreads, arguments, 0, start_of(edge),
                static_cast<unsigned>(cluster));
  return {picks, shares};
}

std::tuple<at::Tensor, at::Tensor> token_route(const at::Tensor& input, const at::Tensor& weight, Optional bias, Optional norm, double eps, bool offset,
                                               int64_t top, bool of_top, const at::Tensor& arrived, c10::string_view edge, Optional table,
                                               Optional counts, bool often) {
  const Inputs of{input, weight, bias, norm, eps, offset, top, of_top, arrived, table, counts, often};
  of.check();
  const Edge checked = edge_of(kOperator, {edge.data(), edge.size()}, weight.device());
  return weight.is_cuda() ? by_kernel(of, checked) : by_operators(of);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def(
      "token_route(Tensor input, Tensor weight, Tensor? bias, Tensor? norm, float eps, bool offset, int top, bool of_top, Tensor(a!) arrived, str edge, "
      "Tensor(b!)? table=None, Tensor(c!)? counts=None, bool often=False) -> (Tensor, Tensor)");
  declare_early_reads(kOperator, {{"weight"}, {"bias"}, {"norm"}});
}

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("token_route", TORCH_FN(token_route)); }

}  // namespace
}  // namespace ct
