// The CUDA text of a ring of boxes in shared memory, for the kernels of token_linear.cc and of
// token_experts.cc that copy their weights by TMA: by cp.async.bulk.tensor, or codes of 4 bits,
// whose boxes lie in one piece or two, by cp.async.bulk. It needs compute capability 9.0.
//
// A group is PAIRS pairs of rows. A box is WIDTH columns of each of its rows, and lies in shared
// memory as [matrix][row][WIDTH]. A row has BOXES of them, whole lines of 128 bytes, which are
// copied faster. What is behind the last column becomes zeros. One thread of a block copies the
// boxes of the block's groups. Few boxes are on their way at the same time, because the small loads
// of the other threads wait behind them.
//
// Besides the macros of token_linear_cuda.h it has BOXES and WIDTH, and LINE: the bytes of WIDTH
// columns, with the scales of codes of 4 bits.
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

constexpr int kLine = LINE;  // bytes of a row in a box
constexpr int kBoxBytes = kLine * 2 * PAIRS;
constexpr int kTurns = PICKS == 1 ? TOP : 1;    // of all groups, one for each matrix
constexpr int kParts = PICKS == 2 ? TOP : 1;    // of a group's sums, one for each matrix
constexpr int kRowsOfGroup = kTwoMatrices ? PAIRS : 2 * PAIRS;  // of each matrix

__device__ __forceinline__ int groups_of(const Linear& l) { return (pairs_of(l) + PAIRS - 1) / PAIRS; }

// The group that a block computes, and its matrix. A block goes on by as many groups as there are
// blocks. There is no division: that takes as long as half a box.
struct Turn {
  int group, matrix = 0;
  const int groups;

  __device__ __forceinline__ explicit Turn(int of) : group(blockIdx.x), groups(of) { settle(); }
  __device__ __forceinline__ bool is_over() const { return matrix >= kTurns; }
  __device__ __forceinline__ void advance() {
    group += gridDim.x;
    settle();
  }
  __device__ __forceinline__ void settle() {
    while (group >= groups) {
      group -= groups;
      ++matrix;
    }
  }
};

#if CODES >= 3
constexpr int kPieces = kTwoMatrices ? 2 : 1;  // of a box in global memory

// Where the pieces of a box lie. The last group of a matrix may have fewer rows.
struct Piece {
  size_t at, between, of_matrix;  // bytes: from the matrix to the first piece, from it to the next, of a matrix
  int bytes;                      // of a piece

  __device__ __forceinline__ Piece(const Linear& l, int box, int row) {
    const int rows = l.rows / kPieces;
    at = (static_cast<size_t>(box) * l.rows + row) * kLine;
    between = static_cast<size_t>(rows) * kLine;
    of_matrix = static_cast<size_t>(BOXES) * l.rows * kLine;
    bytes = min(kRowsOfGroup, rows - row) * kLine;
  }
  __device__ __forceinline__ size_t offset(int matrix) const { return matrix * of_matrix + at; }
};
#endif

// What a block has in shared memory.
struct Shared {
  const unsigned char* ring;
  Raw* x;                // the input of the product: see make_input
  float* room;           // for the sums of its norms
  unsigned full, empty;  // the addresses of the barriers of the stages

  __device__ __forceinline__ Shared(unsigned char* shared, const Linear& l, int warps)
      : ring(shared), x(reinterpret_cast<Raw*>(shared + l.stages * kBoxBytes)), room(reinterpret_cast<float*>(x + (CODES == 0 ? 1 : 2) * kParts * PADDED)),
        full(address_of(room + 2 * warps)), empty(full + 8 * l.stages) {}
};

#if CODES < 3
using Boxes = Map;  // of all matrices; behind it there is the one of the slots
#else
// All matrices, and the slots. A matrix is [BOXES][rows][kLine]: see codes4.h.
struct Boxes { const unsigned char *all, *slots; };
#endif

// Where a box is copied from: this matrix, of all or of the slots.
struct Source {
  const Boxes& boxes;
  bool of_slots;
  int matrix;

  __device__ __forceinline__ Source(const Boxes& all, const int4* picks, int k) : boxes(all), of_slots(false), matrix(0) {
    if (PICKS == 0) return;
    const int4 pick = picks[k];
    of_slots = pick.y < 0;
    matrix = of_slots ? pick.x : pick.y;
  }

  // Begins the copy of a box of a group, which `bar` then counts.
  __device__ __forceinline__ void copy(const Linear& l, int box, int group, unsigned to, Barrier bar, unsigned long long policy) const {
    const int row = group * kRowsOfGroup;
#if CODES < 3
    bar.expect(kBoxBytes);
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(&boxes + of_slots), "r"(box * (kLine / 8)), "r"(row), "r"((kTwoMatrices ? 2 : 1) * matrix), "r"(bar.at), "l"(policy)
                 : "memory");
#else
    const Piece piece(l, box, row);
    const unsigned char* const from = (of_slots ? boxes.slots : boxes.all) + piece.offset(matrix);
    bar.expect(kPieces * piece.bytes);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to + i * kRowsOfGroup * kLine),
                   "l"(from + i * piece.between), "r"(piece.bytes), "r"(bar.at), "l"(policy)
                   : "memory");
    }
#endif
  }
};

// Copies the boxes of a block's groups, in order. One thread runs it. It waits until the readers
// have done with the box that is replaced, and for the oldest box if `window` are on their way. It
// reads weights and picks alone, so it does not wait for the kernel before. The picks are in shared
// memory.
__device__ __forceinline__ void copy_boxes(const Linear& l, const Boxes& boxes, const int4* picks, const Shared& shared) {
  const unsigned ring = address_of(shared.ring), full = shared.full, empty = shared.empty;
  unsigned long long once;  // each weight is read once, so it is the first that the cache gives up
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
  Place to, oldest;
  int flying = 0;
  for (Turn turn(groups_of(l)); !turn.is_over(); turn.advance()) {
    for (int part = 0; part < kParts; ++part) {
      const Source from(boxes, picks, PICKS == 1 ? turn.matrix : part);
      for (int box = 0; box < BOXES; ++box) {
        Barrier{empty + 8 * to.stage}.wait_for(to.phase ^ 1);  // at once in the first round
        if (flying == l.window) {
          Barrier{full + 8 * oldest.stage}.wait_for(oldest.phase);
          oldest.advance(l.stages);
        } else {
          ++flying;
        }
        from.copy(l, box, turn.group, ring + to.stage * kBoxBytes, Barrier{full + 8 * to.stage}, once);
        to.advance(l.stages);
      }
    }
  }
}

#if PICKS == 2
// Copies an input of each pick, behind each other, into x: TOP times what make_input writes.
template <int kThreads>
__device__ __forceinline__ void copy_inputs(const Linear& l, Raw* x) {
  for (int i = threadIdx.x; i < TOP * PADDED / 8; i += kThreads) {
    const int part = i / (PADDED / 8), at = i % (PADDED / 8);
    uint4 some = make_uint4(0, 0, 0, 0);
    if (at < COLUMNS / 8) some = __ldcg(static_cast<const uint4*>(l.input) + part * (COLUMNS / 8) + at);
    if constexpr (CODES == 0) {
      reinterpret_cast<uint4*>(x)[i] = some;
    } else {
      float v[8];
      widen(*reinterpret_cast<const Eight*>(&some), v);
      put(x, i * 8, v);
    }
  }
  meet<kThreads>();
}
#endif

// Begins a block of kWarps warps that compute, and one that copies. Returns true in the first ones,
// when the input of the product is there. Returns false in the last one, which has nothing more to
// do: its first thread has copied all boxes.
template <int kWarps>
__device__ __forceinline__ bool begin_block(const Linear& l, const Boxes& boxes, const Shared& shared) {
  constexpr int kThreads = 32 * kWarps;
  begin();
  if (threadIdx.x >= kThreads) {
    const bool copies = threadIdx.x == kThreads;
    if (copies) {
#if CODES < 3
      asm volatile("prefetch.tensormap [%0];" ::"l"(&boxes) : "memory");
#endif
      for (int i = 0; i < l.stages; ++i) {
        Barrier{shared.full + 8 * i}.make(1);
        Barrier{shared.empty + 8 * i}.make(kWarps);
      }
      asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
    asm volatile("bar.arrive 2, %0;" ::"n"(kThreads + 32) : "memory");  // the barriers are made
    __shared__ int4 picks[TOP];
    if (PICKS != 0) {
      if (threadIdx.x - kThreads < TOP) picks[threadIdx.x - kThreads] = __ldcg(l.picks + threadIdx.x - kThreads);
      __syncwarp();
    }
    if (copies) copy_boxes(l, boxes, picks, shared);
    return false;  // other threads of the block wait for the kernel before
  }
  Norms<kThreads> norms;
  norms.load(l);
  asm volatile("bar.sync 2, %0;" ::"n"(kThreads + 32) : "memory");
  wait();
#if PICKS == 2
  copy_inputs<kThreads>(l, shared.x);
#else
  make_input<kThreads>(l, norms, shared.x, shared.room);
#endif
  return true;
}
)cuda";

}  // namespace ct
