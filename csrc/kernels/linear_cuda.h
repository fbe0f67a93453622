// The CUDA text of the gradients behind a linear layer: linear.cc compiles and launches it.
//
// Each kernel reads or makes the gradient of a linear layer's result, and adds up its rows: the
// sums are the gradient of the layer's bias. The result is a matrix. A group is eight adjacent
// elements of one row. A block of kThreads threads works on kLanes groups side by side, in kRows
// rows at a time. The groups of all rows below each other are a tile.
//
// The text is compiled for one set of these macros:
//
//   DTYPE  BFloat16, Half or Float: the dtype of the gradient
//   BIAS   the same for the gradient of the bias
//   TANH   1: gelu_gradient is for the approximation with tanh, 0: it is for the exact function
//
// The struct Heads comes from linear.cc. All sums are made in a fixed order, so equal inputs give
// equal bits.
#pragma once

namespace ct {

inline constexpr char kLinearText[] = R"cuda(
using Raw = DTYPE::Raw;
using Eight = Vector<DTYPE, 8>;

constexpr int kThreads = 256, kLanes = 32, kRows = kThreads / kLanes;
constexpr int kBlocks = sizeof(Raw) == 2 ? 4 : 2;  // on each multiprocessor, as in linear.cc

// Goes through the rows of a block, and adds up what `part` makes of them. columns: groups of a
// row. partial: [blocks, columns * 8]; NULL if nobody wants the sums. part.load reads one group. Its
// result goes to part.use, which writes its group and returns the numbers to be added.
template <int kAhead, typename Part>
__device__ __forceinline__ void add_rows(const Part& part, int column, int rows, int columns, int block, int blocks, float* partial) {
  float sums[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i] = 0;
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes, step = blocks * kRows;
  if (column < columns) {
    for (int from = block * kRows + group; from < rows; from += step * kAhead) {
      typename Part::Loaded loaded[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int row = from + u * step;
        if (row < rows) loaded[u] = part.load(row);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int row = from + u * step;
        if (row >= rows) continue;
        float f[8];
        part.use(loaded[u], row, f);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] += f[i];
      }
    }
  }
  if (partial == nullptr) return;
  __shared__ float shared[kRows][8][kLanes];
#pragma unroll
  for (int i = 0; i < 8; ++i) shared[group][i][lane] = sums[i];
  __syncthreads();
  // Thread t adds the sums of the t-th column of the tile.
  static_assert(kThreads == 8 * kLanes, "a thread for each column");
  const int c = (column - lane) * 8 + threadIdx.x;
  if (c >= columns * 8) return;
  float sum = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) sum += shared[r][threadIdx.x % 8][threadIdx.x / 8];
  partial[static_cast<size_t>(block) * (columns * 8) + c] = sum;
}

// A block's tile and its number in the tile.
struct Tile {
  int column, block;
  __device__ explicit Tile(int columns) {
    const int tiles = (columns + kLanes - 1) / kLanes;
    column = static_cast<int>(blockIdx.x) % tiles * kLanes + static_cast<int>(threadIdx.x) % kLanes;
    block = static_cast<int>(blockIdx.x) / tiles;
  }
};

struct Plain {
  using Loaded = Eight;
  const Eight* from;
  int columns;
  __device__ Eight load(int row) const { return from[static_cast<size_t>(row) * columns]; }
  __device__ void use(const Eight& v, int, float (&f)[8]) const { widen(v, f); }
};

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) bias_gradient(const Eight* __restrict__ gradient, int rows, int columns, int blocks,
                                                                    float* __restrict__ partial) {
  const Tile tile(columns);
  add_rows<sizeof(Raw) == 2 ? 8 : 4>(Plain{gradient + tile.column, columns}, tile.column, rows, columns, tile.block, blocks, partial);
}

// Returns the derivative of GELU at x.
__device__ __forceinline__ float differentiate(float x) {
  if (TANH) {
    const float square = x * x, inner = .7978845608f * x * fmaf(.044715f, square, 1.f), t = tanhf(inner);
    return .5f * (1 + t) + .5f * x * (1 - t * t) * .7978845608f * fmaf(3 * .044715f, square, 1.f);
  }
  if (sizeof(Raw) == 4) return fmaf(x * .3989422804f, expf(-.5f * x * x), .5f * (1 + erff(x * .7071067812f)));
  // Abramowitz and Stegun, 7.1.26. The error of the normal distribution function is below 1e-7.
  const float e = __expf(-.5f * x * x), t = __fdividef(1.f, fmaf(.3275911f * .7071067812f, fabsf(x), 1.f));
  const float polynomial = t * fmaf(t, fmaf(t, fmaf(t, fmaf(t, 1.061405429f, -1.453152027f), 1.421413741f), -.284496736f), .254829592f);
  const float tail = .5f * polynomial * e;
  return fmaf(x * .3989422804f, e, x < 0 ? tail : 1 - tail);
}

struct Pair { Eight gradient, x; };

struct Gelu {
  using Loaded = Pair;
  const Eight *gradient, *x;
  Eight* to;
  int columns;
  __device__ Pair load(int row) const {
    const size_t at = static_cast<size_t>(row) * columns;
    return {gradient[at], x[at]};
  }
  __device__ void use(const Pair& v, int row, float (&f)[8]) const {
    float at[8];
    widen(v.gradient, f);
    widen(v.x, at);
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i] *= differentiate(at[i]);
    to[static_cast<size_t>(row) * columns] = narrow<DTYPE>(f);
  }
};

// to: the gradient of x, the input of GELU.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) gelu_gradient(const Eight* __restrict__ gradient, const Eight* __restrict__ x,
                                                                    Eight* __restrict__ to, int rows, int columns, int blocks,
                                                                    float* __restrict__ partial) {
  const Tile tile(columns);
  add_rows<sizeof(Eight) == 16 ? 4 : 2>(Gelu{gradient + tile.column, x + tile.column, to + tile.column, columns}, tile.column, rows, columns,
                                        tile.block, blocks, partial);
}

struct Packing {
  using Loaded = Eight;
  const Eight* from;
  Eight* to;
  unsigned positions;
  long long image, position;
  int columns;
  __device__ Eight load(int row) const {
    const unsigned n = row / positions, l = row - n * positions;
    return from[n * image + l * position];
  }
  __device__ void use(const Eight& v, int row, float (&f)[8]) const {
    to[static_cast<size_t>(row) * columns] = v;
    widen(v, f);
  }
};

// Packs the gradients of queries, keys and values. to: [images, positions, 3, heads, depth].
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks) heads_gradient(Heads g, Eight* __restrict__ to, int rows, int columns, int blocks,
                                                                     float* __restrict__ partial) {
  const Tile tile(columns);
  const int width = g.heads * g.depth, part = tile.column / width, head = tile.column % width / g.depth, at = tile.column % g.depth;
  const Source of = part == 0 ? g.queries : part == 1 ? g.keys : g.values;
  const Packing packing{reinterpret_cast<const Eight*>(of.elements) + head * of.head + at, to + tile.column, static_cast<unsigned>(g.positions), of.image,
                        of.position, columns};
  add_rows<4>(packing, tile.column, rows, columns, tile.block, blocks, partial);
}

// Returns a sum as an element of the bias's gradient. LibTorch's sum has the dtype of the layer's
// gradient, also where autocast gives the bias another dtype.
__device__ __forceinline__ BIAS::Raw rounded(float sum) { return BIAS::narrow(DTYPE::widen(DTYPE::narrow(sum))); }

// Adds the sums of the blocks, [blocks, quads * 4]. A block of kThreads threads makes 32 adjacent sums.
extern "C" __global__ void __launch_bounds__(kThreads) add_blocks(const float4* __restrict__ partial, BIAS::Raw* __restrict__ to, int quads, int blocks) {
  constexpr int kQuads = 8, kGroups = kThreads / kQuads;
  __shared__ float4 shared[kThreads];
  const int lane = threadIdx.x % kQuads, group = threadIdx.x / kQuads, c = blockIdx.x * kQuads + lane;
  float4 all = make_float4(0, 0, 0, 0);
  if (c < quads) {
#pragma unroll 4
    for (int b = group; b < blocks; b += kGroups) {
      const float4 v = partial[static_cast<size_t>(b) * quads + c];
      all.x += v.x; all.y += v.y; all.z += v.z; all.w += v.w;
    }
  }
  shared[threadIdx.x] = all;
  __syncthreads();
  if (group > 0 || c >= quads) return;
#pragma unroll 8
  for (int g = 1; g < kGroups; ++g) {
    const float4 v = shared[g * kQuads + lane];
    all.x += v.x; all.y += v.y; all.z += v.z; all.w += v.w;
  }
  to[4 * c] = rounded(all.x);
  to[4 * c + 1] = rounded(all.y);
  to[4 * c + 2] = rounded(all.z);
  to[4 * c + 3] = rounded(all.w);
}
)cuda";

}  // namespace ct
