// The CUDA text of the product of a few rows: rows_linear.cc compiles and launches it.
//
// The product reads each weight once, so the memory's speed bounds it. A block keeps its part of
// the input in shared memory. One thread copies boxes of weights into a ring. A box has the rows of
// a group, and kWidth columns of each. Eight warps share a box: each takes 16 rows and 64 columns.
// Tensor cores multiply them with all rows of the input, 16 x 8 x 16, where the weights are the
// matrix A. When a group ends, the sums of its warps meet in shared memory.
//
// Where the whole input has no room, a cluster of blocks shares a group. Each block has a part of
// the columns, and pushes its sums to the block that finishes those rows of the input.
//
// The order of elements in a product is free. So 16 bytes of a lane, of a weight's row or of an
// input's, serve two instructions.
//
// Weights are asked for before the wait: Note [Programmatic edges].
//
// The text is compiled for one set of these macros:
//
//   DTYPE     BFloat16 or Half: the dtype of the input and of the weights
//   MMA       "bf16" or "f16", the same for tensor cores
//   ROWS      of the input in shared memory, 8, 16 or 32; there may be fewer
//   COLUMNS   the elements of a row, a multiple of 8
//   TILES     16 rows of weights each, in a group: 1 or 2
//   BOXES     of a block's part of a row
//   SPLIT     blocks of a cluster, a power of two up to ROWS
//   EPILOGUE  what becomes of the products, as in token_linear_cuda.h: 0, 1, 3 or 4
//   EDGE      see edges.h
#pragma once

namespace ct {

inline constexpr char kRowsLinearText[] = R"cuda(
using Raw = DTYPE::Raw;
struct alignas(64) Map { unsigned char opaque[128]; };

struct RowsLinear {
  const Raw* input;  // [count][COLUMNS]
  const Raw* bias;   // or NULL
  void* out;
  int count;         // rows of the input
  int outputs;       // rows of the weights
  int stages;        // of the ring
  int window;        // stages that are on their way at the same time
};

constexpr bool kTwoMatrices = EPILOGUE == 3 || EPILOGUE == 4;
constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kParts = kWarps / TILES;       // of a box's columns, 64 each
constexpr int kWidth = 64 * kParts;
constexpr int kPairs = 8 * TILES;            // of a group: row i, and row kPairs + i of the box
constexpr int kStage = 2 * kPairs * kWidth;  // elements
constexpr int kSlice = BOXES * kWidth;       // columns of a block
constexpr int kPitch = kSlice + 32;          // lanes that read at the same time use all banks
constexpr int kLine = 2 * kPairs + 4;        // the same, between rows of the input in the sums
constexpr int kOwn = ROWS / SPLIT;           // rows of the input that a block finishes

__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); }

// What a block has in shared memory.
struct Shared {
  Raw *ring, *x;
  float* sums;       // [kParts][ROWS][kLine]
  float2* gathered;  // [2][SPLIT][kOwn][kPairs], with SPLIT above 1
  unsigned full, empty, pushed;  // the addresses of barriers: of the stages, and of `gathered`

  __device__ __forceinline__ Shared(unsigned char* at, int stages) {
    ring = reinterpret_cast<Raw*>(at);
    x = ring + stages * kStage;
    sums = reinterpret_cast<float*>(x + ROWS * kPitch);
    gathered = reinterpret_cast<float2*>(sums + kParts * ROWS * kLine);
    full = address_of(gathered + (SPLIT > 1 ? 2 * ROWS * kPairs : 0));
    empty = full + 8 * stages;
    pushed = empty + 8 * stages;
  }
};

// Copies the boxes of a block's groups, in order. One thread runs it. It reads weights alone, so it
// does not wait for the kernel before.
__device__ __forceinline__ void copy_boxes(const RowsLinear& l, const Map& map, const Shared& s, int rank, int group, int step, int groups) {
  unsigned long long once;  // each weight is read once, so it is the first that the cache gives up
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
  Place to, oldest;
  int flying = 0;
  for (; group < groups; group += step) {
    for (int box = 0; box < BOXES; ++box) {
      Barrier{s.empty + 8 * to.stage}.wait_for(to.phase ^ 1);  // at once in the first round
      if (flying == l.window) {
        Barrier{s.full + 8 * oldest.stage}.wait_for(oldest.phase);
        oldest.advance(l.stages);
      } else {
        ++flying;
      }
      const Barrier bar{s.full + 8 * to.stage};
      bar.expect(2 * kStage);
      asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(
                       address_of(s.ring + to.stage * kStage)),
                   "l"(&map), "r"((rank * BOXES + box) * (kWidth / 4)), "r"(group * (kTwoMatrices ? kPairs : 2 * kPairs)), "r"(0), "r"(bar.at), "l"(once)
                   : "memory");
      to.advance(l.stages);
    }
  }
}

// Copies the block's columns of the input into shared memory. Columns behind the last are zeros.
// Rows from `count` on are not written: each result depends on one row alone.
__device__ __forceinline__ void load_input(const RowsLinear& l, Raw* x, int rank) {
  constexpr int kChunks = kSlice / 8;
  const int all = l.count * kChunks;
#pragma unroll 8
  for (int i = threadIdx.x; i < all; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks, column = rank * kChunks + chunk;
    copy(address_of(x + row * kPitch + chunk * 8), l.input + static_cast<size_t>(row) * COLUMNS + column * 8, column < COLUMNS / 8 ? 16 : 0);
  }
  end_group();
  wait_for_group<0>();
}

// Writes what the products a and b become: those of row i and row kPairs + i of a group.
__device__ __forceinline__ void write(const RowsLinear& l, int group, int row, int i, float2 v) {
  const int first = kTwoMatrices ? group * kPairs + i : group * 2 * kPairs + i, second = kTwoMatrices ? l.outputs / 2 + first : first + kPairs;
  const int results = kTwoMatrices ? l.outputs / 2 : l.outputs;
  if (row >= l.count || first >= results) return;
  if (l.bias != nullptr) {
    v.x += DTYPE::widen(l.bias[first]);
    if (second < l.outputs) v.y += DTYPE::widen(l.bias[second]);
  }
  const size_t at = static_cast<size_t>(row) * results + first;
  if constexpr (EPILOGUE == 3) {
    static_cast<Raw*>(l.out)[at] = DTYPE::narrow(__fdividef(v.x, 1 + __expf(-v.x)) * v.y);
  } else if constexpr (EPILOGUE == 4) {
    const float inner = 0.7978845608f * (v.x + 0.044715f * v.x * v.x * v.x);
    static_cast<Raw*>(l.out)[at] = DTYPE::narrow(0.5f * v.x * (1 + tanhf(inner)) * v.y);
  } else if constexpr (EPILOGUE == 0) {
    static_cast<Raw*>(l.out)[at] = DTYPE::narrow(v.x);
    if (second < l.outputs) static_cast<Raw*>(l.out)[at + kPairs] = DTYPE::narrow(v.y);
  } else {
    static_cast<float*>(l.out)[at] = v.x;
    if (second < l.outputs) static_cast<float*>(l.out)[at + kPairs] = v.y;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads + 32) rows_linear(const RowsLinear l, const __grid_constant__ Map map) {
  extern __shared__ __align__(128) unsigned char shared[];
  const Shared s(shared, l.stages);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int rank = blockIdx.x % SPLIT, step = gridDim.x / SPLIT;
  const int groups = (l.outputs + 2 * kPairs - 1) / (2 * kPairs);
  begin();
  if (warp == kWarps) {
    if (lane == 0) {
      asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
      for (int i = 0; i < l.stages; ++i) {
        Barrier{s.full + 8 * i}.make(1);
        Barrier{s.empty + 8 * i}.make(kWarps);
      }
      for (int i = 0; SPLIT > 1 && i < 2; ++i) Barrier{s.pushed + 8 * i}.make(1);
      asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
    if (SPLIT > 1) asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("bar.arrive 2, %0;" ::"n"(kThreads + 32) : "memory");  // the barriers are made
    if (lane == 0) copy_boxes(l, map, s, rank, blockIdx.x / SPLIT, step, groups);
    return;
  }
  if (SPLIT > 1) asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("bar.sync 2, %0;" ::"n"(kThreads + 32) : "memory");
  if (SPLIT > 1 && thread < 2) Barrier{s.pushed + 8 * thread}.expect(ROWS * kPairs * 8);
  wait();
  load_input(l, s.x, rank);
  if (SPLIT > 1) await_cluster();
  meet();

  const int tile = warp / kParts, part = warp % kParts;
  const bool odd = g % 2 == 1;
  const Raw* const own_x = s.x + g * kPitch + part * 64 + t * 8;
  Place from;
  int turn = 0, phase = 0;
  for (int group = blockIdx.x / SPLIT; group < groups; group += step) {
    float sums[ROWS / 8][4];
#pragma unroll
    for (int j = 0; j < ROWS / 8; ++j) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
    for (int box = 0; box < BOXES; ++box) {
      Barrier{s.full + 8 * from.stage}.wait_for(from.phase);
      // Lanes of odd rows read the second 32 columns first, so that the lanes use all banks.
      const Raw* const weights = s.ring + from.stage * kStage + (tile * 16 + g) * kWidth + part * 64 + t * 8;
      uint4 w[2][2];  // of 32 columns, of rows g and g + 8
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint4 one = *reinterpret_cast<const uint4*>(weights + r * 8 * kWidth + (odd ? 32 : 0));
        const uint4 other = *reinterpret_cast<const uint4*>(weights + r * 8 * kWidth + (odd ? 0 : 32));
        w[0][r] = odd ? other : one;
        w[1][r] = odd ? one : other;
      }
      __syncwarp();
      if (lane == 0) Barrier{s.empty + 8 * from.stage}.arrive();
      from.advance(l.stages);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < ROWS / 8; ++j) {
          const uint4 x = *reinterpret_cast<const uint4*>(own_x + j * 8 * kPitch + box * kWidth + half * 32);
          multiply(sums[j], w[half][0].x, w[half][1].x, w[half][0].y, w[half][1].y, x.x, x.y);
          multiply(sums[j], w[half][0].z, w[half][1].z, w[half][0].w, w[half][1].w, x.z, x.w);
        }
      }
    }
    meet();  // the sums of the group before are read
#pragma unroll
    for (int j = 0; j < ROWS / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s.sums[(part * ROWS + 8 * j + 2 * t + e % 2) * kLine + tile * 16 + g + e / 2 * 8] = sums[j][e];
    }
    meet();
#pragma unroll
    for (int i = thread; i < ROWS * kPairs; i += kThreads) {
      const int row = i / kPairs, pair = i % kPairs;
      float2 v = make_float2(0, 0);
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        const float* const at = s.sums + (p * ROWS + row) * kLine + pair;
        v.x += at[0], v.y += at[kPairs];
      }
      if (SPLIT == 1) {
        write(l, group, row, pair, v);
      } else {
        push_to(row / kOwn, v, s.gathered + ((turn * SPLIT + rank) * kOwn + row % kOwn) * kPairs + pair, Barrier{s.pushed + 8 * turn});
      }
    }
    if (SPLIT > 1) {
      // A block pushes the sums of a group when all its threads have read those of the group
      // before. So `gathered` has room for two.
      wait_for_pushes(Barrier{s.pushed + 8 * turn}, phase);
      if (thread == 0) Barrier{s.pushed + 8 * turn}.expect(ROWS * kPairs * 8);
      for (int i = thread; i < kOwn * kPairs; i += kThreads) {
        float2 v = make_float2(0, 0);
#pragma unroll
        for (int r = 0; r < SPLIT; ++r) {
          const float2 of = s.gathered[(turn * SPLIT + r) * kOwn * kPairs + i];
          v.x += of.x, v.y += of.y;
        }
        write(l, group, rank * kOwn + i / kPairs, i % kPairs, v);
      }
      if (turn == 1) phase ^= 1;
      turn ^= 1;
    }
  }
}
)cuda";

}  // namespace ct
