// The CUDA text of a ring of boxes in shared memory, for the kernels of token_linear.cc and of
// token_experts.cc that copy their weights by TMA: by cp.async.bulk.tensor, or codes of 4 bits,
// whose boxes lie in one piece or two, by cp.async.bulk. It needs compute capability 9.0.
//
// A group is PAIRS pairs of rows. A box is WIDTH columns of each of its rows, and lies in shared
// memory as [matrix][row][LINE bytes]. A row has BOXES of them. Except with codes of 4 bits, LINE
// is a multiple of 128, which is copied faster. What is behind the last column becomes zeros.
//
// One thread of a block copies the boxes of the block's groups. Few boxes are on their way at the
// same time, because the small loads of the other threads wait behind them.
//
// Besides the macros of token_linear_cuda.h it has
//
//   BOXES     of a row
//   WIDTH     the columns of a box
//   LINE      the bytes of WIDTH columns, with the scales of codes of 4 bits
//   TOGETHER  boxes of so many picks, with PICKS 2, are a stage of the ring; else 1
//   BIAS      1: there are biases, with PICKS 2; else 0
//   SPLIT     blocks of a cluster, each of which adds up TOP / SPLIT picks of the same rows, with
//             PICKS 2; else 1
#pragma once

namespace ct {

inline constexpr char kTokenRingText[] = R"cuda(
constexpr int kLine = LINE;  // bytes of a row in a box
constexpr int kBoxBytes = kLine * 2 * PAIRS;
constexpr int kStageBytes = TOGETHER * kBoxBytes;
constexpr int kTurns = PICKS == 1 ? TOP : 1;  // of all groups, one for each matrix
constexpr int kRowsOfGroup = kTwoMatrices ? PAIRS : 2 * PAIRS;  // of each matrix

// Returns the first part of a block. The blocks of a cluster share a group.
__device__ __forceinline__ int first_part() { return SPLIT == 1 ? 0 : blockIdx.x % SPLIT * kParts; }

__device__ __forceinline__ int groups_of(const Linear& l) { return (pairs_of(l) + PAIRS - 1) / PAIRS; }

// The group that a block computes, and its matrix. A block goes on by as many groups as there are
// blocks. There is no division: that takes as long as half a box.
struct Turn {
  int group, matrix = 0;
  const int groups;

  __device__ __forceinline__ explicit Turn(int of) : group(blockIdx.x / SPLIT), groups(of) { settle(); }
  __device__ __forceinline__ bool is_over() const { return matrix >= kTurns; }
  __device__ __forceinline__ void advance() {
    group += gridDim.x / SPLIT;
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
      : ring(shared), x(reinterpret_cast<Raw*>(shared + l.stages * kStageBytes)), room(reinterpret_cast<float*>(x + (CODES == 0 ? 8 : CODES < 3 ? 16 : 9) * kParts * PADDED / 8)),
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
  bool of_slots = false;
  int matrix = 0;

  Source() = default;
  __device__ __forceinline__ explicit Source(const int4& pick) : of_slots(pick.y < 0), matrix(pick.y < 0 ? pick.x : pick.y) {}

  // Returns how many bytes of a group a box has.
  static __device__ __forceinline__ int bytes(const Linear& l, int group) {
#if CODES < 3
    return kBoxBytes;
#else
    return kPieces * Piece(l, 0, group * kRowsOfGroup).bytes;
#endif
  }

  // Begins the copy of a box of a group, which `bar` then counts.
  __device__ __forceinline__ void copy(const Linear& l, const Boxes& boxes, int box, int group, unsigned to, Barrier bar, unsigned long long policy) const {
    const int row = group * kRowsOfGroup;
#if CODES < 3
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(&boxes + of_slots), "r"(box * (kLine / 8)), "r"(row), "r"((kTwoMatrices ? 2 : 1) * matrix), "r"(bar.at), "l"(policy)
                 : "memory");
#else
    const Piece piece(l, box, row);
    const unsigned char* const from = (of_slots ? boxes.slots : boxes.all) + piece.offset(matrix);
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
    for (int part = 0; part < kParts; part += TOGETHER) {
      Source from[TOGETHER];
#pragma unroll
      for (int i = 0; PICKS != 0 && i < TOGETHER; ++i) from[i] = Source(picks[PICKS == 1 ? turn.matrix : first_part() + part + i]);
      for (int box = 0; box < BOXES; ++box) {
        Barrier{empty + 8 * to.stage}.wait_for(to.phase ^ 1);  // at once in the first round
        if (flying == l.window) {
          Barrier{full + 8 * oldest.stage}.wait_for(oldest.phase);
          oldest.advance(l.stages);
        } else {
          ++flying;
        }
        const Barrier bar{full + 8 * to.stage};
        bar.expect(TOGETHER * Source::bytes(l, turn.group));
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) from[i].copy(l, boxes, box, turn.group, ring + to.stage * kStageBytes + i * kBoxBytes, bar, once);
        to.advance(l.stages);
      }
    }
  }
}

#if PICKS == 2
// Copies an input of each part, behind each other, into x: kParts times what make_input writes.
template <int kThreads>
__device__ __forceinline__ void copy_inputs(const Linear& l, Raw* x) {
  constexpr int kChunks = kParts * PADDED / 8, kSteps = (kChunks + kThreads - 1) / kThreads, kTogether = kSteps < 4 ? kSteps : 4;
  for (int from = 0; from < kSteps; from += kTogether) {
    uint4 some[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int chunk = (from + i) * kThreads + threadIdx.x, part = chunk / (PADDED / 8), at = chunk % (PADDED / 8);
      some[i] = make_uint4(0, 0, 0, 0);
      if (chunk < kChunks && at < COLUMNS / 8) some[i] = __ldcg(static_cast<const uint4*>(l.input) + (first_part() + part) * (COLUMNS / 8) + at);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int chunk = (from + i) * kThreads + threadIdx.x;
      if (chunk >= kChunks) continue;
      if constexpr (CODES == 0) {
        reinterpret_cast<uint4*>(x)[chunk] = some[i];
      } else {
        float v[8];
        widen(*reinterpret_cast<const Eight*>(&some[i]), v);
        put(x, chunk * 8, v);
      }
    }
  }
  meet<kThreads>();
}
#endif

// A matrix that is used, as token_route made it, and its share in a sum of PICKS 2.
struct Pick {
  int4 of;
  float share;
};

constexpr bool kSummedBias = PICKS == 2 && BIAS;

// What is added to the products of a pair, with the biases of its matrices: see Addends.
struct AddendsOfPicks {
  Addends own;
  Raw biases[kSummedBias ? TOP : 1][2] = {};

  // `k` is the number of the pick whose products these are, with PICKS 1.
  __device__ __forceinline__ void load(const Linear& l, const Pair& of, const Pick* picks, int k) {
    const auto bias_of = [&](int pick) { return l.bias == nullptr ? nullptr : l.bias + static_cast<size_t>(picks[pick].of.z) * l.rows; };
    own = of.addends(l, PICKS == 0 ? l.bias : PICKS == 1 ? bias_of(k) : nullptr);
    if (!kSummedBias) return;
#pragma unroll
    for (int part = 0; part < TOP; ++part) {
      biases[part][0] = bias_of(part)[of.first];
      if (of.second < l.rows) biases[part][1] = bias_of(part)[of.second];
    }
  }
  __device__ __forceinline__ float2 sum(const Pick* picks) const {
    float2 all = own.sum();
#pragma unroll
    for (int part = 0; kSummedBias && part < TOP; ++part) {
      all.x = fmaf(picks[part].share, DTYPE::widen(biases[part][0]), all.x);
      all.y = fmaf(picks[part].share, DTYPE::widen(biases[part][1]), all.y);
    }
    return all;
  }
};

// Begins a block of kWarps warps that compute, and one that copies. Returns true in the first ones,
// when the input of the product is there. Then `own_picks`, in shared memory, has the picks.
// Returns false in the last one, which has nothing more to do: its first thread has copied all
// boxes.
template <int kWarps>
__device__ __forceinline__ bool begin_block(const Linear& l, const Boxes& boxes, const Shared& shared, Pick* own_picks) {
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
  Pick pick = {};
  const bool picks_one = PICKS != 0 && threadIdx.x < TOP;
  if (picks_one) pick = {__ldcg(l.picks + threadIdx.x), PICKS == 2 ? __ldcg(l.shares + threadIdx.x) : 1};
  asm volatile("bar.sync 2, %0;" ::"n"(kThreads + 32) : "memory");
  wait();
#if PICKS == 2
  copy_inputs<kThreads>(l, shared.x);
#else
  make_input<kThreads>(l, norms, shared.x, shared.room);
#endif
#if PICKS != 0  // they have come while the input was made
  if (picks_one) own_picks[threadIdx.x] = pick;
  meet<kThreads>();
#endif
  return true;
}
)cuda";

}  // namespace ct
