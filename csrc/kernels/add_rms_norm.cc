// add_rms_norm: adds to the residual stream of some rows what a layer gives, and norms the sum for
// the next layer.
//
//   sum       [rows, width] float32, the stream: gets sum + out, or sum + rms_norm(out) * out_norm
//   out       [rows, width] in a floating dtype, or none: the stream stays
//   out_norm  [width] float32, or none
//   norm      [width] float32, or none: the result is then the sum
//
// The result is rms_norm(sum) * norm, in `dtype`. With `offset` both norms have the weights 1 +
// weight. For float64 all of it is float64, on the CPU alone.
//
// A block takes one row, and keeps it in registers. The order of its sums depends on the width
// alone, so a row has the same bits in any batch. On the CPU, LibTorch's operators do the work.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rms_norm.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "core/device.h"
#include "kernels/edges.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::add_rms_norm";
constexpr int64_t kMostWidth = 32768;

// The text is compiled for one set of these macros:
//
//   WIDTH     of a row
//   THREADS   of a block: a multiple of 32, up to 512
//   ALIGNED   1: rows and weights are read in groups of 16 bytes; the sums are the same
//   OUT       the dtype of `out`, which NEW says to be there
//   OUT_NORM  1: `out` is normed first
//   NORM      1: the result is normed
//   OFFSET    1: the weights of norms are 1 + weight
//   RESULT    the dtype of the result
//   EDGE      see edges.h
constexpr char kSource[] = R"cuda(
constexpr int kGroups = (WIDTH + 8 * THREADS - 1) / (8 * THREADS);  // of 8 neighbours, which a thread has

// Eight numbers from `column` on. Behind the end of the row they are zeros.
template <typename T>
__device__ __forceinline__ void load(const typename T::Raw* from, int column, float (&v)[8]) {
  if (ALIGNED && column < WIDTH) return widen(*reinterpret_cast<const Vector<T, 8>*>(from + column), v);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = !ALIGNED && column + i < WIDTH ? T::widen(from[column + i]) : 0;
}

template <typename T>
__device__ __forceinline__ void store(typename T::Raw* to, int column, const float (&v)[8]) {
  if (ALIGNED && column < WIDTH) *reinterpret_cast<Vector<T, 8>*>(to + column) = narrow<T>(v);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (!ALIGNED && column + i < WIDTH) to[column + i] = T::narrow(v[i]);
  }
}

__device__ __forceinline__ int column_of(int group) { return 8 * (group * THREADS + static_cast<int>(threadIdx.x)); }

// The weights of a norm, for the columns of a thread. If they are few, they are loaded at once.
struct Weights {
  static constexpr bool kAtOnce = kGroups <= 2;  // more need too many registers
  const float* from;
  float loaded[kAtOnce ? kGroups : 1][8];

  __device__ __forceinline__ explicit Weights(const float* weights) : from(weights) {
#pragma unroll
    for (int g = 0; kAtOnce && g < kGroups; ++g) {
      if (from != nullptr) load<Float>(from, column_of(g), loaded[g]);
    }
  }
  __device__ __forceinline__ void get(int group, float (&w)[8]) const {
    if constexpr (!kAtOnce) return load<Float>(from, column_of(group), w);
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = loaded[kAtOnce ? group : 0][i];
  }
};

// Multiplies a row with 1 / sqrt(its mean square + eps), and with the weights.
__device__ __forceinline__ void norm_row(float (&row)[kGroups][8], const Weights& weights, float eps) {
  __shared__ float of_warps[THREADS / 32];
  float squares = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(row[g][i], row[g][i], squares);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) squares += __shfl_xor_sync(0xFFFFFFFFu, squares, distance);
  __syncthreads();  // all threads have read the sums of another norm
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = squares;
  __syncthreads();
  squares = 0;
#pragma unroll
  for (int i = 0; i < THREADS / 32; ++i) squares += of_warps[i];
  const float factor = rsqrtf(squares / WIDTH + eps);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    float w[8];
    weights.get(g, w);
#pragma unroll
    for (int i = 0; i < 8; ++i) row[g][i] *= factor * (OFFSET + w[i]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) add_rms_norm(float* sum, const OUT::Raw* out, const float* out_norm,
                                                                   const float* __restrict__ norm,
                                                                   RESULT::Raw* __restrict__ result, float eps) {
  const size_t first = static_cast<size_t>(blockIdx.x) * WIDTH;
  begin();
  const Weights weights(norm);  // unused without NORM
  wait();
  float row[kGroups][8];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) load<Float>(sum + first, column_of(g), row[g]);
  if constexpr (NEW) {
    float added[kGroups][8];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) load<OUT>(out + first, column_of(g), added[g]);
    if constexpr (OUT_NORM) norm_row(added, Weights(out_norm), eps);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 8; ++i) row[g][i] += added[g][i];
      store<Float>(sum + first, column_of(g), row[g]);
    }
  }
  if constexpr (NORM) norm_row(row, weights, eps);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) store<RESULT>(result + first, column_of(g), row[g]);
}
)cuda";

struct Inputs {
  at::Tensor& sum;
  Optional out;
  Optional out_norm;
  Optional norm;
  double eps;
  bool offset;
  at::ScalarType dtype;

  int64_t width() const { return sum.size(1); }

  void check() const {
    const at::ScalarType wide = sum.scalar_type();
    TORCH_CHECK(sum.dim() == 2 && sum.numel() > 0 && sum.is_contiguous() && (wide == at::kFloat || (wide == at::kDouble && !sum.is_cuda())), kOperator,
                ": sum is ", wide, " ", sum.sizes(), " on ", sum.device(), ", want float32 [rows, width] without gaps; float64 is for the CPU");
    TORCH_CHECK(!is_defined(out) || (out->sizes() == sum.sizes() && out->is_contiguous() && out->device() == sum.device() &&
                                     (is_floating(out->scalar_type()) || out->scalar_type() == wide)),
                kOperator, ": out is ", is_defined(out) ? out->scalar_type() : wide, " ", is_defined(out) ? out->sizes() : sum.sizes(),
                ", want a floating dtype and ", sum.sizes(), " on ", sum.device(), " without gaps");
    TORCH_CHECK(!is_defined(out) || !sum.is_alias_of(*out), kOperator, ": sum and out share memory");
    TORCH_CHECK(!is_defined(out_norm) || is_defined(out), kOperator, ": out_norm is the norm of out, and there is no out");
    for (const auto& [t, name] : {std::pair<Optional, const char*>(out_norm, "out_norm"), {norm, "norm"}}) {
      TORCH_CHECK(!is_defined(t) || (t->numel() == width() && t->scalar_type() == wide && t->is_contiguous() && t->device() == sum.device()), kOperator, ": ",
                  name, " is ", is_defined(t) ? t->scalar_type() : wide, " ", is_defined(t) ? t->sizes() : sum.sizes(), ", want ", wide, " [", width(), "] on ",
                  sum.device(), " without gaps");
    }
    TORCH_CHECK(is_floating(dtype) || (dtype == wide && wide == at::kDouble), kOperator, ": dtype is ", dtype, ", want a floating one");
    TORCH_CHECK(!needs_gradient({sum, out, out_norm, norm}), kOperator, ": it has no gradient: call it in NoGrad");
  }
};

at::Tensor by_operators(const Inputs& of) {
  const auto normed = [&](const at::Tensor& t, const at::Tensor& weight) {
    return at::rms_norm(t, {of.width()}, of.offset ? at::add(weight.view({-1}), 1) : weight.view({-1}), of.eps);
  };
  if (is_defined(of.out)) {
    const at::Tensor out = of.out->to(of.sum.scalar_type());
    of.sum.add_(is_defined(of.out_norm) ? normed(out, *of.out_norm) : out);
  }
  const at::Tensor result = is_defined(of.norm) ? normed(of.sum, *of.norm) : of.sum;
  return result.to(of.dtype, /*non_blocking=*/false, /*copy=*/!is_defined(of.norm));
}

at::Tensor by_kernel(const Inputs& of, Edge edge) {
  const int64_t width = of.width(), rows = of.sum.size(0);
  TORCH_CHECK(width <= kMostWidth && rows < INT32_MAX && cuda().chip(of.sum.device().index()).capability >= 80, kOperator, ": sum is ", of.sum.sizes(),
              "; the kernel takes up to ", kMostWidth, " columns, on compute capability 8.0");
  const bool added = is_defined(of.out), out_normed = is_defined(of.out_norm), normed = is_defined(of.norm);
  at::Tensor result = at::empty(of.sum.sizes(), of.sum.options().dtype(of.dtype));
  bool aligned = width % 8 == 0 && is_aligned(of.sum);
  for (Optional t : {of.out, of.out_norm, of.norm}) aligned = aligned && (!is_defined(t) || is_aligned(*t));
  const at::ScalarType out = added ? of.out->scalar_type() : at::kFloat;
  const int64_t threads = std::min<int64_t>((width + 255) / 256 * 32, 512);
  const CudaProgram& program = variant_of(std::tuple(width, aligned, out, added, out_normed, normed, of.offset, of.dtype, static_cast<int>(edge)), [&] {
    return Variant{"a sum and its norm of " + std::to_string(width) + " columns",
                   "\n" + define("WIDTH", width) + define("THREADS", threads) + define("ALIGNED", aligned) + define("OUT", float_name(out)) +
                       define("NEW", added) + define("OUT_NORM", out_normed) + define("NORM", normed) + define("OFFSET", of.offset) +
                       define("RESULT", float_name(of.dtype)) + define("EDGE", edge) + kEdgesText,
                   kSource, /*fused_multiply_add=*/true};
  });
  void* sum = added ? of.sum.mutable_data_ptr() : const_cast<void*>(of.sum.const_data_ptr());  // without `out` it is only read
  const void *from = read(of.out), *out_weight = read(of.out_norm), *weight = read(of.norm);
  void* to = result.mutable_data_ptr();
  auto eps = static_cast<float>(of.eps);
  void* arguments[] = {&sum, &from, &out_weight, &weight, &to, &eps};
  cuda().launch(program, "add_rms_norm", images::stream_of(of.sum), static_cast<unsigned>(rows), static_cast<unsigned>(threads), arguments, 0,
                start_of(edge));
  return result;
}

at::Tensor add_rms_norm(at::Tensor& sum, Optional out, Optional out_norm, Optional norm, double eps, bool offset, at::ScalarType dtype,
                        c10::string_view edge) {
  const Inputs of{sum, out, out_norm, norm, eps, offset, dtype};
  of.check();
  const Edge checked = edge_of(kOperator, {edge.data(), edge.size()}, sum.device());
  return sum.is_cuda() ? by_kernel(of, checked) : by_operators(of);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("add_rms_norm(Tensor(a!) sum, Tensor? out, Tensor? out_norm, Tensor? norm, float eps, bool offset, ScalarType dtype, str edge=\"full\") -> Tensor");
  declare_early_reads(kOperator, {{"norm"}});
}

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("add_rms_norm", TORCH_FN(add_rms_norm)); }

}  // namespace
}  // namespace ct
