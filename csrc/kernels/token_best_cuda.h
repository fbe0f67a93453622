// The CUDA text that finds the largest of a token's logits, for the kernels that end a decoder's
// step. Their blocks, of 1024 threads, are one cluster.
//
// The text is compiled for one set of these macros:
//
//   BLOCKS  the number of blocks: 1 below compute capability 9.0
//   EDGE    see edges.h
#pragma once

namespace ct {

inline constexpr char kTokenBestText[] = R"cuda(
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
    const bool first = above(other);
    // Copies stay in registers. References would force one of them into memory.
    const Best large = first ? *this : other, small = first ? other : *this;
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

// Waits for all threads of all blocks. Each sees what the others have written into shared memory.
__device__ __forceinline__ void meet() {
#if BLOCKS > 1
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// Returns the address of a variable in the shared memory of another block.
__device__ __forceinline__ unsigned address_in(const void* shared, int block) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
#if BLOCKS > 1
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(block));
#endif
  return address;
}

__device__ __forceinline__ void store_in(float* shared, int block, float v) {
#if BLOCKS > 1
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address_in(shared, block)), "f"(v) : "memory");
#else
  *shared = v;
#endif
}

struct Bests {
  Best warps[32], blocks[BLOCKS];
};

// Returns the best of `count` logits, in all threads of all blocks.
__device__ __forceinline__ Best best_of(const float* logits, int count, Bests& shared) {
#if BLOCKS > 1
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
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
  if (threadIdx.x % 32 == 0) shared.warps[threadIdx.x / 32] = best;
#if BLOCKS > 1
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");  // all blocks run: their shared memory is there
#endif
  __syncthreads();
  if (threadIdx.x < 32) {
    best = of_lanes(shared.warps[threadIdx.x]);
    if (threadIdx.x < 3 * BLOCKS) {  // each field goes to each block
      const int field = threadIdx.x % 3;
      store_in(reinterpret_cast<float*>(&shared.blocks[blockIdx.x]) + field, threadIdx.x / 3,
               field == 0 ? best.logit : field == 1 ? __int_as_float(best.token) : best.sum);
    }
  }
  meet();
  best = shared.blocks[0];
#pragma unroll
  for (int i = 1; i < BLOCKS; ++i) best.add(shared.blocks[i]);
  return best;
}
)cuda";

}  // namespace ct
