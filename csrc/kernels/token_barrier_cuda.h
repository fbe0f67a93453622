// The CUDA text of barriers in shared memory, and of what a block of a cluster pushes to the first
// one. It needs compute capability 9.0.
#pragma once

namespace ct {

inline constexpr char kTokenBarrierText[] = R"cuda(
__device__ __forceinline__ unsigned address_of(const void* shared) { return static_cast<unsigned>(__cvta_generic_to_shared(shared)); }

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
// threads of all blocks call it. The first block then calls wait_for_pushes.
__device__ __forceinline__ void expect_pushes(Barrier bar, int bytes) {
  if (threadIdx.x == 0) {
    bar.make(1);
    bar.expect(bytes);
  }
  asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.release;" ::: "memory");
}

__device__ __forceinline__ void wait_for_pushes(Barrier bar) {
  asm volatile("{\n.reg .pred done;\nagain_%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n@!done bra again_%=;\n}" ::"r"(bar.at) : "memory");
}

// Waits until the first block can be pushed to. A thread that pushes calls it before.
__device__ __forceinline__ void await_first() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Writes v to the place that `to` has in the first block of the cluster, whose barrier counts it.
__device__ __forceinline__ void push_to_first(float v, float* to, Barrier bar) {
  asm volatile(
      "{\n.reg .b32 there, bar;\nmapa.shared::cluster.u32 there, %0, 0;\nmapa.shared::cluster.u32 bar, %1, 0;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %2, [bar];\n}" ::"r"(address_of(to)),
      "r"(bar.at), "f"(v)
      : "memory");
}
__device__ __forceinline__ void push_to_first(float2 v, float2* to, Barrier bar) {
  asm volatile(
      "{\n.reg .b32 there, bar;\nmapa.shared::cluster.u32 there, %0, 0;\nmapa.shared::cluster.u32 bar, %1, 0;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%2, %3}, [bar];\n}" ::"r"(address_of(to)),
      "r"(bar.at), "f"(v.x), "f"(v.y)
      : "memory");
}
)cuda";

}  // namespace ct
