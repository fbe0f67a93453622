// gated: the activation between the two products of a feed-forward part, for some rows.
//
// It maps [rows, 2 * inner] to [rows, inner], in the same dtype: "silu" or "gelu_tanh" of the first
// half of a row times the second half, or "clamped": of adjacent elements a and b, (clamp(b) + 1) *
// a * sigmoid(alpha * a), where a is at most `limit`, and b between -limit and limit. It computes
// in float32. The kernel has the formulas of token_linear_cuda.h. On the CPU, and for float64,
// LibTorch's operators do the work.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "core/device.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::gated";

enum Activation : int { kSilu, kGelu, kClamped };  // the CUDA text has the same numbers

// The text is compiled for one set of these macros:
//
//   DTYPE       of both tensors
//   ACTIVATION  its number
//   ALIGNED     1: rows are read in groups of 16 bytes
constexpr char kSource[] = R"cuda(
__device__ __forceinline__ float activate(float a, float b, float limit, float alpha) {
  if constexpr (ACTIVATION == 2) {
    a = a > limit ? limit : a, b = b > limit ? limit : b < -limit ? -limit : b;  // a NaN stays
    return __fdividef(a, 1 + __expf(-alpha * a)) * (b + 1);
  } else if constexpr (ACTIVATION == 0) {
    return __fdividef(a, 1 + __expf(-a)) * b;
  }
  const float inner = 0.7978845608f * (a + 0.044715f * a * a * a);
  return 0.5f * a * (1 + tanhf(inner)) * b;
}

extern "C" __global__ void __launch_bounds__(256) gated(const DTYPE::Raw* __restrict__ from, DTYPE::Raw* __restrict__ to, int rows, int inner,
                                                        float limit, float alpha) {
  constexpr bool kPairs = ACTIVATION == 2;
  constexpr int kCount = ALIGNED ? 8 : 1;  // results of a thread
  const int column = kCount * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= inner) return;
  for (size_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const DTYPE::Raw* const at = from + row * 2 * inner + (kPairs ? 2 * column : column);
    DTYPE::Raw* const result = to + row * inner + column;
    if constexpr (ALIGNED) {
      float a[8], b[8], v[8];
      widen(*reinterpret_cast<const Vector<DTYPE, 8>*>(at), a);
      widen(*reinterpret_cast<const Vector<DTYPE, 8>*>(at + (kPairs ? 8 : inner)), b);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float first = !kPairs ? a[i] : i < 4 ? a[2 * i % 8] : b[2 * i % 8], second = !kPairs ? b[i] : i < 4 ? a[2 * i % 8 + 1] : b[2 * i % 8 + 1];
        v[i] = activate(first, second, limit, alpha);
      }
      *reinterpret_cast<Vector<DTYPE, 8>*>(result) = narrow<DTYPE>(v);
    } else {
      *result = DTYPE::narrow(activate(DTYPE::widen(at[0]), DTYPE::widen(at[kPairs ? 1 : inner]), limit, alpha));
    }
  }
}
)cuda";

Activation activation_of(std::string_view name) {
  if (name == "silu") return kSilu;
  if (name == "gelu_tanh") return kGelu;
  TORCH_CHECK(name == "clamped", kOperator, ": the activation is \"", name, "\", want silu, gelu_tanh or clamped");
  return kClamped;
}

at::Tensor by_operators(const at::Tensor& gate_up, Activation activation, double limit, double alpha) {
  const int64_t rows = gate_up.size(0), inner = gate_up.size(1) / 2;
  const at::Tensor wide = gate_up.scalar_type() == at::kDouble ? gate_up : gate_up.to(at::kFloat);
  const at::Tensor parts = activation == kClamped ? wide.view({rows, inner, 2}) : wide.view({rows, 2, inner});
  const at::Tensor a = parts.select(activation == kClamped ? 2 : 1, 0), b = parts.select(activation == kClamped ? 2 : 1, 1);
  at::Tensor result;
  if (activation == kClamped) {
    const at::Tensor gate = at::clamp(a, std::nullopt, limit);
    result = at::mul(at::add(at::clamp(b, -limit, limit), 1), at::mul(gate, at::sigmoid(at::mul(gate, alpha))));
  } else {
    result = at::mul(activation == kSilu ? at::silu(a) : at::gelu(a, "tanh"), b);
  }
  return result.to(gate_up.scalar_type()).contiguous();
}

at::Tensor gated(const at::Tensor& gate_up, c10::string_view name, double limit, double alpha) {
  const Activation activation = activation_of({name.data(), name.size()});
  const at::ScalarType dtype = gate_up.scalar_type();
  TORCH_CHECK(gate_up.dim() == 2 && gate_up.numel() > 0 && gate_up.size(1) % 2 == 0 && gate_up.is_contiguous() && at::isFloatingType(dtype), kOperator,
              ": gate_up is ", dtype, " ", gate_up.sizes(), ", want a floating dtype and [rows, 2 * inner] without gaps");
  TORCH_CHECK(!needs_gradient({gate_up}), kOperator, ": it has no gradient: call it in NoGrad");
  const int64_t inner = gate_up.size(1) / 2;
  if (!gate_up.is_cuda() || !is_floating(dtype) || inner > INT32_MAX / 16 || gate_up.size(0) > INT32_MAX ||
      cuda().chip(gate_up.device().index()).capability < 80) {
    return by_operators(gate_up, activation, limit, alpha);
  }
  at::Tensor out = at::empty({gate_up.size(0), inner}, gate_up.options());
  const bool aligned = inner % 8 == 0 && is_aligned(gate_up);
  const CudaProgram& program = variant_of(std::tuple(dtype, static_cast<int>(activation), aligned), [&] {
    return Variant{"a gated activation of " + float_name(dtype),
                   "\n" + define("DTYPE", float_name(dtype)) + define("ACTIVATION", activation) + define("ALIGNED", aligned), kSource,
                   /*fused_multiply_add=*/true};
  });
  const void* from = gate_up.const_data_ptr();
  void* to = out.mutable_data_ptr();
  int rows = static_cast<int>(gate_up.size(0)), columns = static_cast<int>(inner);
  auto most = static_cast<float>(limit), by = static_cast<float>(alpha);
  void* arguments[] = {&from, &to, &rows, &columns, &most, &by};
  const int64_t of_block = aligned ? 8 * 256 : 256;
  cuda().launch(program, "gated", images::stream_of(gate_up), static_cast<unsigned>((inner + of_block - 1) / of_block), 256, arguments, 0, CudaStart::kBehind,
                1, static_cast<unsigned>(std::min<int64_t>(rows, kMostTokenRows)));
  return out;
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) { library.def("gated(Tensor gate_up, str activation, float limit, float alpha) -> Tensor"); }

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("gated", TORCH_FN(gated)); }

}  // namespace
}  // namespace ct
