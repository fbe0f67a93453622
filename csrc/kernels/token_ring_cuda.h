// The CUDA text of a ring of boxes in shared memory, for the kernels of token_linear.cc that copy
// their weights by TMA, cp.async.bulk.tensor. It needs compute capability 9.0.
//
// A group is PAIRS pairs of rows. A box is kLine bytes of each of its rows, and lies in shared
// memory as [matrix][row][kWidth]. One thread of a block copies the boxes of the block's groups.
// Few boxes are on their way at the same time, because the small loads of the other threads wait
// behind them.
#pragma once

namespace ct {

inline constexpr char kTokenRingText[] = R"cuda(
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

// Whole lines of 128 bytes are copied faster. What is behind the last column becomes zeros.
constexpr int kElement = CODES == 0 ? 2 : 1, kInLine = 128 / kElement;  // bytes of a weight, and weights of a line
constexpr int kWidth = ((COLUMNS + kBoxes - 1) / kBoxes + kInLine - 1) / kInLine * kInLine;  // columns of a box
constexpr int kLine = kWidth * kElement, kBoxBytes = kLine * 2 * PAIRS;
constexpr int kRowsOfGroup = kTwoMatrices ? PAIRS : 2 * PAIRS;  // of each matrix

__device__ __forceinline__ int groups_of(const Linear& l) { return (pairs_of(l) + PAIRS - 1) / PAIRS; }

// Copies the boxes of a block's groups, in order. One thread runs it. ring, full and empty are
// addresses in shared memory. It waits until the readers have done with the box that is replaced,
// and for the oldest box if `window` are on their way. It reads weights alone, so it does not wait
// for the kernel before.
__device__ __forceinline__ void copy_boxes(const Linear& l, const Map& map, unsigned ring, unsigned full, unsigned empty) {
  unsigned long long once;  // each weight is read once, so it is the first that the cache gives up
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
  Place to, oldest;
  bool filled = false;
  int flying = 0;
  for (int group = blockIdx.x; group < groups_of(l); group += gridDim.x) {
    const int row = group * kRowsOfGroup;
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
                   "l"(&map), "r"(box * (kLine / 8)), "r"(row), "r"(0), "r"(bar.at), "l"(once)
                   : "memory");
      to.advance(l.stages);
      filled |= to.stage == 0;
    }
  }
}

// Makes the barriers of a ring, which `warps` read: those that say that a stage is full, and those
// that say that it is empty. One thread runs it.
__device__ __forceinline__ void make_ring(const Linear& l, const Map& map, unsigned full, unsigned empty, int warps) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
  for (int i = 0; i < l.stages; ++i) {
    Barrier{full + 8 * i}.make(1);
    Barrier{empty + 8 * i}.make(warps);
  }
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
)cuda";

}  // namespace ct
