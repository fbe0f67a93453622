// token_likeliest: the end of a decoder's step that takes the likeliest token.
//
// It writes the first token with the largest of the logits, adds one to the position, and writes
// the token and its log probability into the first two elements of `result`. On the CPU, LibTorch's
// operators do the work.
#include <ATen/core/Tensor.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/log_softmax.h>
#include <torch/library.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "core/device.h"
#include "kernels/edges.h"
#include "kernels/images.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::token_likeliest";
constexpr unsigned kThreads = 1024, kCluster = 8;

// The text is compiled for one set of these macros:
//
//   BLOCKS  the number of blocks, one cluster: 1 below compute capability 9.0
//   EDGE    see edges.h
constexpr char kSource[] = R"cuda(
// The largest of some logits, and the sum of exp(logit - largest). A NaN counts as the largest.
struct Best {
  float logit;
  int token;
  float sum;

  __device__ __forceinline__ bool above(const Best& other) const {
    const bool no = logit != logit, others = other.logit != other.logit;
    if (no != others) return no;
    return logit > other.logit || ((no || logit == other.logit) && token < other.token);
  }

  __device__ __forceinline__ void add(const Best& other) {
    const Best &large = above(other) ? *this : other, &small = above(other) ? other : *this;
    const float ratio = small.sum == 0 ? 0 : expf(small.logit - large.logit);
    *this = Best{large.logit, large.token, fmaf(small.sum, ratio, large.sum)};
  }
};

constexpr float kLowest = -3.402823466e+38f;

__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<int>(0xFF800000u)); }

__device__ __forceinline__ Best of_lanes(Best best) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    best.add(Best{__shfl_xor_sync(0xFFFFFFFFu, best.logit, distance), __shfl_xor_sync(0xFFFFFFFFu, best.token, distance),
                  __shfl_xor_sync(0xFFFFFFFFu, best.sum, distance)});
  }
  return best;
}

extern "C" __global__ void __launch_bounds__(1024) token_likeliest(const float* logits, long long* token, long long* position, double* result, int count) {
  __shared__ Best warps[32], blocks[8];
  begin();
  wait();
  Best best{minus_infinity(), 0x7FFFFFFF, 0};
  const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = BLOCKS * blockDim.x;
  for (int at = thread; at < count; at += 4 * threads) {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = at + i * threads < count ? __ldcg(logits + at + i * threads) : minus_infinity();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (at + i * threads < count) best.add(Best{v[i], at + i * threads, v[i] < kLowest ? 0.0f : 1.0f});
    }
  }
  best = of_lanes(best);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x < 32) {
    best = of_lanes(warps[threadIdx.x]);
    if (threadIdx.x < 3) {  // each field goes to the first block
      const float field = threadIdx.x == 0 ? best.logit : threadIdx.x == 1 ? __int_as_float(best.token) : best.sum;
      float* const to = reinterpret_cast<float*>(&blocks[blockIdx.x]) + threadIdx.x;
#if BLOCKS > 1
      unsigned address;
      asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(address) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))));
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(field) : "memory");
#else
      *to = field;
#endif
    }
  }
#if BLOCKS > 1
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
  if (thread != 0) return;
  best = blocks[0];
  for (int i = 1; i < BLOCKS; ++i) best.add(blocks[i]);
  *token = best.token;
  *position += 1;
  result[0] = best.token;
  // Logits of which the largest is NaN, +Inf or -Inf have no probabilities.
  result[1] = best.logit - best.logit == 0 ? -logf(best.sum) : __int_as_float(0x7FC00000);
}
)cuda";

const CudaProgram& program_of(Edge edge, unsigned blocks) {
  return variant_of(std::tuple(static_cast<int>(edge), blocks), [&] {
    return Variant{"the likeliest token", "\n" + define("EDGE", edge) + define("BLOCKS", blocks) + kEdgesText, kSource,
                   /*fused_multiply_add=*/true};
  });
}

void token_likeliest(const at::Tensor& logits, at::Tensor& token, at::Tensor& position, at::Tensor& result, c10::string_view edge_name) {
  TORCH_CHECK(logits.scalar_type() == at::kFloat && logits.is_contiguous() && logits.numel() > 0 && logits.numel() < INT32_MAX - 4 * int64_t{kThreads * kCluster}, kOperator,
              ": logits are ", logits.scalar_type(), " ", logits.sizes(), ", want float32 without gaps");
  for (const at::Tensor& t : {token, position}) {
    TORCH_CHECK(t.numel() == 1 && t.scalar_type() == at::kLong && t.device() == logits.device(), kOperator, ": token and position are int64 [1] on ", logits.device());
  }
  TORCH_CHECK(result.numel() >= 2 && result.scalar_type() == at::kDouble && result.is_contiguous() && result.device() == logits.device(), kOperator,
              ": result is ", result.scalar_type(), " ", result.sizes(), ", want float64 of two elements or more on ", logits.device());
  if (!logits.is_cuda()) {
    const at::Tensor row = logits.view({-1});
    token.copy_(at::argmax(row, 0, /*keepdim=*/true));
    position.add_(1);
    result.select(0, 0).copy_(token.squeeze());
    result.select(0, 1).copy_(at::log_softmax(row, 0).index_select(0, token).squeeze());
    return;
  }
  const c10::DeviceIndex device = logits.device().index();
  const Edge edge = edge_of(kOperator, {edge_name.data(), edge_name.size()}, device);
  const unsigned blocks = cuda().chip(device).capability >= 90 ? kCluster : 1;
  const void* from = logits.const_data_ptr();
  void *to = token.mutable_data_ptr(), *at = position.mutable_data_ptr(), *told = result.mutable_data_ptr();
  int count = static_cast<int>(logits.numel());
  void* arguments[] = {&from, &to, &at, &told, &count};
  cuda().launch(program_of(edge, blocks), "token_likeliest", images::stream_of(logits), blocks, kThreads, arguments, 0, start_of(edge), blocks);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("token_likeliest(Tensor logits, Tensor(a!) token, Tensor(b!) position, Tensor(c!) result, str edge=\"full\") -> ()");
  declare_early_reads(kOperator, {});
}

// One kernel for every backend: it chooses between the CUDA kernel and LibTorch's operators. The
// operator is no composite, so the stream checker sees what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("token_likeliest", TORCH_FN(token_likeliest)); }

}  // namespace
}  // namespace ct
