// token_route: the router of a mixture of experts, for one token.
//
//   input    [columns] float32
//   weight   [experts, columns] float32
//   bias     [experts] float32
//   norm     [columns] float32: an RMS norm of the input, whose weight with `offset` is 1 + norm
//   arrived  [1 or more] int32: the first one is zero before and after
//
// The scores are norm(input) @ weight^T + bias, in float32. The results are the numbers of the
// `top` largest, int32 [top], the largest first, and their shares, float32 [top]: the softmax of
// all scores, or with `of_top` that of the top ones. Of equal scores the one with the smaller
// number comes first. A NaN counts as the largest. On the CPU, LibTorch's operators do the work.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>

#include "core/device.h"
#include "kernels/edges.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::token_route";
constexpr int64_t kMostColumns = 8192, kMostExperts = 1024, kMostTop = 16;
constexpr int kWarps = 4;  // as in the CUDA text

// Each warp computes the scores of some experts. The block that arrives last finds the top.
//
//   COLUMNS  the elements of the input, a multiple of 4
//   EXPERTS  the number of experts
//   TOP      the number of picks
//   NORM     1: the input goes through an RMS norm
//   OFFSET   what is added to its weights
//   OF_TOP   1: the softmax is over the top scores
constexpr char kSource[] = R"cuda(
constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr unsigned kAll = 0xFFFFFFFFu;

struct Route {
  const float* input;
  const float* weight;
  const float* bias;  // or NULL
  const float* norm;
  float* scores;      // [EXPERTS]
  int* arrived;
  int* picks;
  float* shares;
  float eps;
};

__device__ __forceinline__ float sum_of_warp(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(kAll, v, distance);
  return v;
}

// Returns whether a score comes before another one.
__device__ __forceinline__ bool before(float a, int i, float b, int j) {
  const bool no = a != a, others = b != b;
  if (no != others) return no;
  return a > b || ((no || a == b) && i < j);
}

// Finds the top of all scores. One warp runs it.
__device__ __forceinline__ void find_top(const Route& r) {
  constexpr int kOwn = (EXPERTS + 31) / 32;
  const int lane = threadIdx.x % 32;
  const float none = __int_as_float(static_cast<int>(0xFF800000u));
  float own[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own[i] = i * 32 + lane < EXPERTS ? __ldcg(r.scores + i * 32 + lane) : none;
  float largest = 0, sum = 0, mine = 0;
  unsigned taken[(kOwn + 31) / 32] = {};  // a bit for each own score
  for (int k = 0; k < TOP; ++k) {
    float best = none;
    int at = 0x7FFFFFFF;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int expert = i * 32 + lane;
      if (expert < EXPERTS && !(taken[i / 32] >> i % 32 & 1) && (at == 0x7FFFFFFF || before(own[i], expert, best, at))) best = own[i], at = expert;
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(kAll, best, distance);
      const int number = __shfl_xor_sync(kAll, at, distance);
      if (number != 0x7FFFFFFF && (at == 0x7FFFFFFF || before(other, number, best, at))) best = other, at = number;
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (i * 32 + lane == at) taken[i / 32] |= 1u << i % 32;
    }
    if (k == 0) {
      largest = best;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) sum += !OF_TOP && i * 32 + lane < EXPERTS ? expf(own[i] - largest) : 0;
      sum = sum_of_warp(sum);
    }
    const float share = expf(best - largest);
    if (OF_TOP) sum += share;
    if (lane == k) mine = share;
    if (lane == 0) r.picks[k] = at;
  }
  if (lane < TOP) r.shares[lane] = mine / sum;
}

extern "C" __global__ void __launch_bounds__(128) token_route(const Route r) {
  __shared__ __align__(16) float x[COLUMNS];
  __shared__ float room[kWarps];
  __shared__ bool last;
  begin();
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  // Weights are asked for into the cache of the device.
  for (int expert = blockIdx.x * kWarps + warp; expert < EXPERTS; expert += gridDim.x * kWarps) {
    for (int at = lane * 32; at < COLUMNS; at += 1024) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(r.weight + static_cast<size_t>(expert) * COLUMNS + at));
    }
  }
  wait();
  float squares = 0;
  for (int at = thread * 4; at < COLUMNS; at += kThreads * 4) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(r.input + at));
    *reinterpret_cast<float4*>(x + at) = v;
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  if (NORM) {
    squares = sum_of_warp(squares);
    if (lane == 0) room[warp] = squares;
    __syncthreads();
    squares = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) squares += room[i];
    const float scale = rsqrtf(squares / COLUMNS + r.eps);
    for (int at = thread * 4; at < COLUMNS; at += kThreads * 4) {
      const float4 w = __ldcg(reinterpret_cast<const float4*>(r.norm + at));
      x[at] *= scale * (w.x + OFFSET), x[at + 1] *= scale * (w.y + OFFSET), x[at + 2] *= scale * (w.z + OFFSET), x[at + 3] *= scale * (w.w + OFFSET);
    }
  }
  __syncthreads();
  for (int expert = blockIdx.x * kWarps + warp; expert < EXPERTS; expert += gridDim.x * kWarps) {
    const float* const row = r.weight + static_cast<size_t>(expert) * COLUMNS;
    float sum = 0;
#pragma unroll 4
    for (int at = lane * 4; at < COLUMNS; at += 128) {
      const float4 w = __ldcg(reinterpret_cast<const float4*>(row + at)), v = *reinterpret_cast<const float4*>(x + at);
      sum = fmaf(w.x, v.x, fmaf(w.y, v.y, fmaf(w.z, v.z, fmaf(w.w, v.w, sum))));
    }
    sum = sum_of_warp(sum);
    if (lane == 0) __stcg(r.scores + expert, sum + (r.bias == nullptr ? 0 : __ldcg(r.bias + expert)));
  }
  __syncthreads();
  if (thread == 0) {
    __threadfence();
    last = atomicAdd(r.arrived, 1) == static_cast<int>(gridDim.x) - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  if (thread == 0) *r.arrived = 0;
  if (warp == 0) find_top(r);
}
)cuda";

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

  int64_t experts() const { return weight.size(0); }
  int64_t columns() const { return weight.size(1); }

  void check(Optional t, const char* name, int64_t elements) const {
    if (!is_defined(t)) return;
    TORCH_CHECK(t->numel() == elements && t->scalar_type() == weight.scalar_type() && t->device() == weight.device() && t->is_contiguous() && is_aligned(*t),
                kOperator, ": ", name, " is ", t->scalar_type(), " ", t->sizes(), " on ", t->device(), ", want ", elements, " elements of ",
                weight.scalar_type(), " on ", weight.device(), ", contiguous and aligned to 16 bytes");
  }

  void check() const {
    TORCH_CHECK(weight.dim() == 2 && weight.numel() > 0 && weight.is_contiguous() && is_aligned(weight) &&
                    (weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kDouble),
                kOperator, ": weight is ", weight.scalar_type(), " ", weight.sizes(), ", want a contiguous matrix of float32, aligned to 16 bytes");
    TORCH_CHECK(top > 0 && top <= std::min(kMostTop, experts()), kOperator, ": top is ", top, " of ", experts(), " experts, want 1 to ", kMostTop);
    TORCH_CHECK(!needs_gradient({input, weight, bias, norm}), kOperator, ": it has no gradient: call it in NoGrad");
    check(input, "input", columns());
    check(bias, "bias", experts());
    check(norm, "norm", columns());
    TORCH_CHECK(arrived.numel() > 0 && arrived.scalar_type() == at::kInt && arrived.device() == weight.device() && arrived.is_contiguous(), kOperator,
                ": arrived is ", arrived.scalar_type(), " ", arrived.sizes(), ", want int32 on ", weight.device());
  }
};

std::tuple<at::Tensor, at::Tensor> by_operators(const Inputs& of) {
  at::Tensor input = of.input.view({1, -1});
  if (is_defined(of.norm)) input = at::rms_norm(input, {of.columns()}, of.offset ? at::add(*of.norm, 1) : *of.norm, of.eps);
  const at::Tensor scores = at::linear(input, of.weight, is_defined(of.bias) ? std::optional(*of.bias) : std::nullopt).view({-1});
  const auto [sorted, numbers] = at::sort(scores, /*stable=*/true, /*dim=*/0, /*descending=*/true);
  const at::Tensor picks = numbers.narrow(0, 0, of.top);
  const at::Tensor shares = of.of_top ? at::softmax(sorted.narrow(0, 0, of.top), 0) : at::softmax(scores, 0).index_select(0, picks);
  return {picks.to(at::kInt), shares};
}

// As the struct Route of the CUDA text.
struct Route {
  const void* input;
  const void* weight;
  const void* bias;
  const void* norm;
  void* scores;
  void* arrived;
  void* picks;
  void* shares;
  float eps;
};

std::tuple<at::Tensor, at::Tensor> by_kernel(const Inputs& of, Edge edge) {
  const c10::DeviceIndex device = of.weight.device().index();
  TORCH_CHECK(of.weight.scalar_type() == at::kFloat && of.columns() % 4 == 0 && of.columns() <= kMostColumns && of.experts() <= kMostExperts, kOperator,
              ": weight is ", of.weight.scalar_type(), " ", of.weight.sizes(), ", and the kernel takes float32, up to ", kMostExperts,
              " experts, and a multiple of 4 columns up to ", kMostColumns);
  const CudaProgram& program = variant_of(
      std::tuple(of.columns(), of.experts(), of.top, is_defined(of.norm), of.offset, of.of_top, static_cast<int>(edge)), [&] {
        return Variant{"a router of " + std::to_string(of.experts()) + " experts",
                       "\n" + define("COLUMNS", of.columns()) + define("EXPERTS", of.experts()) + define("TOP", of.top) + define("NORM", is_defined(of.norm)) +
                           define("OFFSET", of.offset) + define("OF_TOP", of.of_top) + define("EDGE", edge) + kEdgesText,
                       kSource, /*fused_multiply_add=*/true};
      });
  at::Tensor scores = at::empty({of.experts()}, of.weight.options()), picks = at::empty({of.top}, of.weight.options().dtype(at::kInt)),
             shares = at::empty({of.top}, of.weight.options());
  Route r{of.input.const_data_ptr(), of.weight.const_data_ptr(), read(of.bias), read(of.norm), scores.mutable_data_ptr(), of.arrived.mutable_data_ptr(),
          picks.mutable_data_ptr(), shares.mutable_data_ptr(), static_cast<float>(of.eps)};
  void* arguments[] = {&r};
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((of.experts() + kWarps - 1) / kWarps, cuda().chip(device).multiprocessors));
  cuda().launch(program, "token_route", images::stream_of(of.weight), blocks, 32 * kWarps, arguments, 0, start_of(edge));
  return {picks, shares};
}

std::tuple<at::Tensor, at::Tensor> token_route(const at::Tensor& input, const at::Tensor& weight, Optional bias, Optional norm, double eps, bool offset,
                                               int64_t top, bool of_top, const at::Tensor& arrived, c10::string_view edge) {
  const Inputs of{input, weight, bias, norm, eps, offset, top, of_top, arrived};
  of.check();
  const Edge checked = edge_of(kOperator, {edge.data(), edge.size()}, weight.device());
  return weight.is_cuda() ? by_kernel(of, checked) : by_operators(of);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def(
      "token_route(Tensor input, Tensor weight, Tensor? bias, Tensor? norm, float eps, bool offset, int top, bool of_top, Tensor(a!) arrived, str edge) -> "
      "(Tensor, Tensor)");
  declare_early_reads(kOperator, {{"weight"}});
}

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("token_route", TORCH_FN(token_route)); }

}  // namespace
}  // namespace ct
