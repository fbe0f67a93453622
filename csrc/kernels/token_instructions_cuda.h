// The CUDA text of instructions that the kernels of tokens and prompts share. Barriers, and what a
// block of a cluster pushes to another one, need compute capability 9.0. MMA is "bf16" or "f16", if
// tensor cores multiply numbers in DTYPE.
#pragma once

namespace ct {

inline constexpr char kTokenInstructionsText[] = R"cuda(
__device__ __forceinline__ float lowest() { return __uint_as_float(0xFF800000u); }  // minus infinity

// Returns 2 to the power of v, or 0 where that is less than 2^-126.
__device__ __forceinline__ float power(float v) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
  return result;
}

__device__ __forceinline__ float sum_of_warp(float v) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, distance);
  return v;
}

__device__ __forceinline__ unsigned address_of(const void* shared) { return static_cast<unsigned>(__cvta_generic_to_shared(shared)); }

// Asks for 16 bytes. With bytes = 0 they become zeros, and nothing is read.
__device__ __forceinline__ void copy(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the last kPending groups of this thread's copies have come.
template <int kPending>
__device__ __forceinline__ void wait_for_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#ifdef MMA
// Adds the product of a 16 x 16 and a 16 x 8 matrix to `sum`. `high` has rows 0 to 7, `low` others.
__device__ __forceinline__ void multiply(float (&sum)[4], unsigned high0, unsigned low0, unsigned high1, unsigned low1, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA "." MMA ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(high0), "r"(low0), "r"(high1), "r"(low1), "r"(b0), "r"(b1));
}
#endif

// A place in a ring of `stages`.
struct Place {
  int stage = 0, phase = 0;
  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// A barrier of shared memory, by its address.
struct Barrier {
  unsigned at;
  __device__ __forceinline__ void make(int arrivals) const { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory"); }
  __device__ __forceinline__ void arrive() const { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
  __device__ __forceinline__ void expect(int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
  }
  __device__ __forceinline__ void wait_for(int phase) const {
    asm volatile(
        "{\n.reg .pred done;\nagain_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra end_%=;\nbra again_%=;\nend_%=:\n}" ::"r"(at),
        "r"(phase)
        : "memory");
  }
};

// Makes a barrier that counts the bytes that blocks of the cluster push to the first one. All
// threads of all blocks call it. The first block then calls wait_for_pushes with phase 0.
__device__ __forceinline__ void expect_pushes(Barrier bar, int bytes) {
  if (threadIdx.x == 0) {
    bar.make(1);
    bar.expect(bytes);
  }
  asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.release;" ::: "memory");
}

__device__ __forceinline__ void wait_for_pushes(Barrier bar, int phase) {
  asm volatile("{\n.reg .pred done;\nagain_%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@!done bra again_%=;\n}" ::"r"(bar.at), "r"(phase)
               : "memory");
}

// Waits until the other blocks of the cluster can be pushed to. A thread that pushes calls it before.
__device__ __forceinline__ void await_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Writes v to the place that `to` has in a block of the cluster, whose barrier counts it.
__device__ __forceinline__ void push_to(int block, float v, float* to, Barrier bar) {
  asm volatile(
      "{\n.reg .b32 there, bar;\nmapa.shared::cluster.u32 there, %0, %3;\nmapa.shared::cluster.u32 bar, %1, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %2, [bar];\n}" ::"r"(address_of(to)),
      "r"(bar.at), "f"(v), "r"(block)
      : "memory");
}
__device__ __forceinline__ void push_to(int block, float2 v, float2* to, Barrier bar) {
  asm volatile(
      "{\n.reg .b32 there, bar;\nmapa.shared::cluster.u32 there, %0, %4;\nmapa.shared::cluster.u32 bar, %1, %4;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%2, %3}, [bar];\n}" ::"r"(address_of(to)),
      "r"(bar.at), "f"(v.x), "f"(v.y), "r"(block)
      : "memory");
}
)cuda";

}  // namespace ct
