// The operator streamtorch::window_attention(query, key, value, bias, mask, scale), for evaluation.
//
// It returns softmax(query key^T * scale + bias + mask) value, as models with attention in windows
// compute it: [B, H, L, D] of windows B, heads H, tokens L and depth D. `bias`, [1, H, L, L], is
// that of the heads. `mask`, [W, L, L], is that of the windows of an image, and window b has number
// b % W. Both may be absent. The result lies in memory as [B, L, H, D], as the next layer reads it.
//
// On CUDA one kernel does this for windows of at most 64 tokens, in float16 or bfloat16. It reads
// query, key and value with their strides, keeps the scores in registers and rounds probabilities
// and results once. Elsewhere, and where a gradient is needed, LibTorch's operators do the work.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>
#include <torch/library.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "core/device.h"
#include "kernels/both_devices.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr int kMostTokens = 64, kThreads = 128;

CT_ON_BOTH_DEVICES(kText,

// Where a tensor [B, H, L, D] lies. Distances are in elements, and D has no gaps.
struct Layout {
  const void* first;
  long long window;
  long long head;
  long long token;
};

)  // CT_ON_BOTH_DEVICES

// A block works on one head of one window. Each of its four warps has 16 tokens of the query, and
// keeps their scores in the registers of the tensor cores' products, 16 x 8 at a time.
constexpr char kSource[] = R"cuda(
using Raw = DTYPE::Raw;
constexpr int kTokens = 64, kGap = 8;
__device__ __forceinline__ float lowest() { return __uint_as_float(0xFF800000u); }  // minus infinity

// Adds the product of a 16 x 16 and a 16 x 8 matrix to `sum`. A thread has the elements (row, 2 * column),
// (row, 2 * column + 1) and the same of row + 8, where row = lane / 4 and column = lane % 4.
__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA "." MMA ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned two(const Raw* from) { return *reinterpret_cast<const unsigned*>(from); }

extern "C" __global__ void __launch_bounds__(128) window_attention(Layout query, Layout key, Layout value, const Raw* __restrict__ bias,
                                                                  const Raw* __restrict__ mask, Raw* __restrict__ to, int heads, int tokens,
                                                                  int windows, float scale) {
  __shared__ __align__(16) Raw keys[kTokens][DEPTH + kGap];
  __shared__ __align__(16) Raw values[DEPTH][kTokens + kGap];
  __shared__ float added[kTokens * kTokens];  // the bias and the mask
  const int window = blockIdx.x / heads, head = blockIdx.x % heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Raw* const q = static_cast<const Raw*>(query.first) + window * query.window + head * query.head;
  const Raw* const k = static_cast<const Raw*>(key.first) + window * key.window + head * key.head;
  const Raw* const v = static_cast<const Raw*>(value.first) + window * value.window + head * value.head;
  if (bias != nullptr || mask != nullptr) {
    const Raw* const of_bias = bias + head * tokens * tokens;
    const Raw* const of_mask = mask + window % windows * tokens * tokens;
#pragma unroll 8
    for (int i = threadIdx.x; i < tokens * tokens; i += 128) {
      float a = 0;
      if (bias != nullptr) a += DTYPE::widen(of_bias[i]);
      if (mask != nullptr) a += DTYPE::widen(of_mask[i]);
      added[i] = a;
    }
  }
  for (int i = threadIdx.x; i < kTokens * (DEPTH / 8); i += 128) {
    const int token = i / (DEPTH / 8), depth = i % (DEPTH / 8) * 8;
    Vector<DTYPE, 8> of_key = {}, of_value = {};
    if (token < tokens) {
      of_key = *reinterpret_cast<const Vector<DTYPE, 8>*>(k + token * key.token + depth);
      of_value = *reinterpret_cast<const Vector<DTYPE, 8>*>(v + token * value.token + depth);
    }
    *reinterpret_cast<Vector<DTYPE, 8>*>(&keys[token][depth]) = of_key;
#pragma unroll
    for (int d = 0; d < 8; ++d) values[depth + d][token] = of_value.at[d];
  }
  __syncthreads();
  const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
  if (warp * 16 >= tokens) return;
  float scores[kTokens / 8][4];
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = 0;
  }
#pragma unroll
  for (int d = 0; d < DEPTH; d += 16) {
    unsigned a[4] = {0, 0, 0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + half * 8 >= tokens) continue;
      const Raw* const from = q + (row + half * 8) * query.token + d + column;
      a[half] = two(from);
      a[2 + half] = two(from + 8);
    }
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      const Raw* const from = &keys[n * 8 + lane / 4][d + column];
      multiply(scores[n], a, two(from), two(from + 8));
    }
  }
  // The softmax of two rows, of which four threads have the columns.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* const of_row = added + min(row + half * 8, tokens - 1) * tokens;
    float most = lowest(), sum = 0;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = n * 8 + column + i;
        float s = scores[n][half * 2 + i] * scale;
        if (c >= tokens) {
          s = lowest();
        } else if (bias != nullptr || mask != nullptr) {
          s += of_row[c];
        }
        scores[n][half * 2 + i] = s;
        most = max(most, s);
      }
    }
    most = max(most, __shfl_xor_sync(~0u, most, 1));
    most = max(most, __shfl_xor_sync(~0u, most, 2));
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float e = __expf(scores[n][half * 2 + i] - most);
        scores[n][half * 2 + i] = e;
        sum += e;
      }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float factor = 1 / sum;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) scores[n][half * 2 + i] *= factor;
    }
  }
  float out[DEPTH / 8][4];
#pragma unroll
  for (int n = 0; n < DEPTH / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] = 0;
  }
#pragma unroll
  for (int k16 = 0; k16 < kTokens / 16; ++k16) {
    const float(&near)[4] = scores[2 * k16], (&far)[4] = scores[2 * k16 + 1];
    const unsigned a[4] = {DTYPE::narrow(near[0], near[1]), DTYPE::narrow(near[2], near[3]), DTYPE::narrow(far[0], far[1]), DTYPE::narrow(far[2], far[3])};
#pragma unroll
    for (int n = 0; n < DEPTH / 8; ++n) {
      const Raw* const from = &values[n * 8 + lane / 4][k16 * 16 + column];
      multiply(out[n], a, two(from), two(from + 8));
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + half * 8 >= tokens) continue;
    Raw* const at = to + ((static_cast<size_t>(window) * tokens + row + half * 8) * heads + head) * DEPTH + column;
#pragma unroll
    for (int n = 0; n < DEPTH / 8; ++n) *reinterpret_cast<unsigned*>(at + n * 8) = DTYPE::narrow(out[n][half * 2], out[n][half * 2 + 1]);
  }
}
)cuda";

const CudaProgram& program_of(at::ScalarType dtype, int64_t depth) {
  return variant_of(std::tuple(dtype, depth), [&] {
    Variant variant{"attention in windows, " + float_name(dtype), kText, kSource, /*fused_multiply_add=*/true};
    variant.head += "\n#define DTYPE " + float_name(dtype) + "\n#define DEPTH " + std::to_string(depth) + "\n";
    variant.head += dtype == at::kHalf ? "#define MMA \"f16\"\n" : "#define MMA \"bf16\"\n";
    return variant;
  });
}

// Returns whether the kernel can read query, key or value.
bool is_readable(const at::Tensor& t, const at::Tensor& query) {
  if (t.dim() != 4 || t.sizes() != query.sizes() || t.scalar_type() != query.scalar_type() || t.device() != query.device()) return false;
  return t.stride(3) == 1 && t.stride(0) % 8 == 0 && t.stride(1) % 8 == 0 && t.stride(2) % 8 == 0 && is_aligned(t);
}

// Returns whether the kernel can add `t`, of shape [count, L, L], or [1, count, L, L].
bool is_added(Optional t, int64_t count, const at::Tensor& query) {
  if (!is_defined(t)) return true;
  const int64_t tokens = query.size(2);
  at::IntArrayRef sizes = t->sizes();
  if (sizes.size() == 4 && sizes[0] == 1) sizes = sizes.slice(1);
  return sizes == at::IntArrayRef({count, tokens, tokens}) && t->scalar_type() == query.scalar_type() && t->device() == query.device() && t->is_contiguous();
}

bool is_fused(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, Optional bias, Optional mask) {
  if (!query.is_cuda() || query.dim() != 4 || query.numel() == 0 || (query.scalar_type() != at::kHalf && query.scalar_type() != at::kBFloat16)) return false;
  const int64_t depth = query.size(3);
  if (query.size(2) > kMostTokens || depth % 16 != 0 || depth > 64 || query.size(0) * query.size(1) > INT32_MAX) return false;
  return !needs_gradient({query, key, value, bias, mask}) && is_readable(query, query) && is_readable(key, query) && is_readable(value, query) && is_added(bias, query.size(1), query) &&
         is_added(mask, is_defined(mask) ? mask->size(0) : 1, query) && cuda().chip(query.device().index()).capability >= 80;
}

Layout layout_of(const at::Tensor& t) { return {t.const_data_ptr(), t.stride(0), t.stride(1), t.stride(2)}; }

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, Optional bias, Optional mask, double scale) {
  at::Tensor out = at::empty({query.size(0), query.size(2), query.size(1), query.size(3)}, query.options());
  Layout q = layout_of(query), k = layout_of(key), v = layout_of(value);
  const void *of_heads = is_defined(bias) ? bias->const_data_ptr() : nullptr, *of_windows = is_defined(mask) ? mask->const_data_ptr() : nullptr;
  void* to = out.mutable_data_ptr();
  int heads = static_cast<int>(query.size(1)), tokens = static_cast<int>(query.size(2)), windows = is_defined(mask) ? static_cast<int>(mask->size(0)) : 1;
  auto factor = static_cast<float>(scale);
  void* arguments[] = {&q, &k, &v, &of_heads, &of_windows, &to, &heads, &tokens, &windows, &factor};
  cuda().launch(program_of(query.scalar_type(), query.size(3)), "window_attention", images::stream_of(query),
                static_cast<unsigned>(query.size(0) * heads), kThreads, arguments);
  return out.transpose(1, 2);
}

at::Tensor window_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, Optional bias, Optional mask, double scale) {
  TORCH_CHECK(query.dim() == 4, "streamtorch::window_attention: the query ", query.sizes(), " is not [B, H, L, D]");
  if (is_defined(mask)) {
    TORCH_CHECK(mask->dim() == 3 && mask->size(0) > 0 && query.size(0) % mask->size(0) == 0, "streamtorch::window_attention: the mask ", mask->sizes(),
                " is not [W, L, L] of a divisor W of ", query.size(0), " windows");
  }
  static const auto call = operator_of<decltype(attend)>("streamtorch::window_attention_cuda");
  if (is_fused(query, key, value, bias, mask)) return call.call(query, key, value, bias, mask, scale);
  at::Tensor scores = at::matmul(at::mul(query, scale), key.transpose(-2, -1));
  if (is_defined(bias)) scores = at::add(scores, *bias);
  if (is_defined(mask)) {
    const at::IntArrayRef sizes = scores.sizes();
    const int64_t windows = mask->size(0);
    scores = at::add(scores.reshape({sizes[0] / windows, windows, sizes[1], sizes[2], sizes[3]}), mask->unsqueeze(1).unsqueeze(0)).reshape(sizes);
  }
  return at::matmul(at::softmax(scores, -1), value);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("window_attention_cuda(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? mask, float scale) -> Tensor");
  // Registered for every backend, because the function chooses between the kernel of this file and
  // LibTorch's operators.
  library.def("window_attention(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? mask, float scale) -> Tensor", TORCH_FN(window_attention));
}

TORCH_LIBRARY_IMPL(streamtorch, CUDA, library) { library.impl("window_attention_cuda", TORCH_FN(attend)); }

}  // namespace
}  // namespace ct
