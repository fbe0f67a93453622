// The CUDA text of token_linear_boxes, a form of token_linear_cuda.h, whose text comes before it.
//
// A box has kWidth columns of eight rows, which are a group of four pairs. One thread of a block
// copies the boxes of the block's groups into a ring in shared memory. Few boxes are on their way
// at the same time, because the small loads of the other threads wait behind them. It needs compute
// capability 9.0.
#pragma once

namespace ct {

inline constexpr char kTokenBoxesText[] = R"cuda(
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

constexpr int kWarps = 4;  // that compute
// Whole lines of 128 bytes are copied faster. What is behind the last column becomes zeros.
constexpr int kWidth = ((COLUMNS + kBoxes - 1) / kBoxes + 63) / 64 * 64, kBoxBytes = kWidth * 2 * 8;

// Copies the boxes of a block's groups, in order. One thread runs it.
__device__ __forceinline__ void copy_boxes(const Linear& l, const Map& map, unsigned ring, unsigned full, unsigned empty) {
  unsigned long long once;  // each weight is read once, so it is the first that the cache gives up
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
  const int groups = (pairs_of(l) + kWarps - 1) / kWarps;
  Place to, oldest;
  bool filled = false;
  int flying = 0;
  for (int group = blockIdx.x; group < groups; group += gridDim.x) {
    const int row = group * (kTwoMatrices ? kWarps : 2 * kWarps);
    for (int box = 0; box < kBoxes; ++box) {
      if (filled) Barrier{empty + 8 * to.stage}.wait_for(to.phase ^ 1);
      if (flying == l.window) {
        Barrier{full + 8 * oldest.stage}.wait_for(oldest.phase);
        oldest.advance(l.stages);
      } else {
        ++flying;
      }
      const Barrier bar{full + 8 * to.stage};
      bar.expect(kBoxBytes);
      asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(
                       ring + to.stage * kBoxBytes),
                   "l"(&map), "r"(box * (kWidth / 4)), "r"(row), "r"(0), "r"(bar.at), "l"(once)
                   : "memory");
      to.advance(l.stages);
      filled |= to.stage == 0;
    }
  }
}

extern "C" __global__ void __launch_bounds__(160) token_linear_boxes(const Linear l, const __grid_constant__ Map map) {
  extern __shared__ __align__(128) unsigned char shared[];
  Raw* const x = reinterpret_cast<Raw*>(shared + l.stages * kBoxBytes);
  float* const room = reinterpret_cast<float*>(x + kPadded);
  unsigned long long* const barriers = reinterpret_cast<unsigned long long*>(room + 2 * kWarps);
  const unsigned full = address_of(barriers), empty = full + 8 * l.stages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  begin();
  if (warp == kWarps) {
    if (lane == 0) {
      asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
      for (int i = 0; i < l.stages; ++i) {
        Barrier{full + 8 * i}.make(1);
        Barrier{empty + 8 * i}.make(kWarps);
      }
      asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
    asm volatile("bar.arrive 2, 160;" ::: "memory");
    if (lane == 0) copy_boxes(l, map, address_of(shared), full, empty);
    return;  // the other warps wait for the kernel before
  }
  Norms<32 * kWarps> norms;
  norms.load(l);
  asm volatile("bar.sync 2, 160;" ::: "memory");
  wait();
  make_input<32 * kWarps>(l, norms, x, room);
  const int pairs = pairs_of(l);
  Place from;
  for (int group = blockIdx.x; group * kWarps < pairs; group += gridDim.x) {
    const int pair = group * kWarps + warp;
    const Pair of(l, pair);
    float a[2] = {0, 0}, b[2] = {0, 0};
    float2 add = make_float2(0, 0);
    if (lane == 0 && pair < pairs) add = of.addends(l);
    for (int box = 0; box < kBoxes; ++box) {
      Barrier{full + 8 * from.stage}.wait_for(from.phase);
      const Raw* const first = reinterpret_cast<const Raw*>(shared + from.stage * kBoxBytes) + warp * (kTwoMatrices ? 1 : 2) * kWidth;
      const Raw* const second = first + (kTwoMatrices ? kWarps : 1) * kWidth;
#pragma unroll
      for (int i = 0; i < (kWidth + 255) / 256; ++i) {
        const int at = i * 256 + lane * 8;
        if (kWidth % 256 != 0 && at >= kWidth) continue;
        float v[8];
        widen(*reinterpret_cast<const Eight*>(x + box * kWidth + at), v);
        multiply(a[0], a[1], *reinterpret_cast<const uint4*>(first + at), v);
        multiply(b[0], b[1], *reinterpret_cast<const uint4*>(second + at), v);
      }
      __syncwarp();
      if (lane == 0) Barrier{empty + 8 * from.stage}.arrive();
      from.advance(l.stages);
    }
    const float sum_a = sum_of_warp(a[0] + a[1]), sum_b = sum_of_warp(b[0] + b[1]);
    if (lane == 0 && pair < pairs) of.write(l, sum_a, sum_b, add);
  }
}
)cuda";

}  // namespace ct
