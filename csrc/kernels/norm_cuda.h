// The CUDA text of the fused batch norm: norm.cc compiles and launches it.
//
// A tensor of images in channels last is a matrix. It has N*H*W rows and C channels. A group is
// eight adjacent channels of one row, and a thread reads one group at a time. A tile is LANES
// groups side by side, in every row. A block of kThreads threads works on one tile, in kThreads /
// LANES rows at a time.
//
// The text is compiled for one set of these macros:
//
//   DTYPE       BFloat16, Half or Float
//   LANES       1, 2, 4 or 8
//   ACTIVATION  kNone, kRelu, kRelu6, kSilu, kHardswish or kGelu, of norm.cc
//   ADDEND      0: nothing is added before the activation, 1: a tensor, 2: a second norm's result
//   KERNELS     which kernels the text has: a number of Kernels in norm.cc
//
// The struct Norm and the enumeration of activations come from norm.cc.
//
// Note [Sums in order]: every sum is made in a fixed order. A thread adds up its rows, a warp
// adds up its threads, and a block adds up its warps. Each block writes its sums to memory, and
// then takes a ticket. By its ticket a block knows whether it is the last block of its tile to
// finish. The last block adds the sums of all blocks of the tile, again in a fixed order. So
// equal inputs give equal bits. Only in the kernels of
// Note [One kernel] a block waits for other blocks.
//
// Note [One kernel]: for tensors that fit into the multiprocessors' shared memories, one kernel
// makes the sums and uses them. Each block reads its rows once and keeps them. It writes its sums,
// and waits until all blocks of its tile have written theirs. Then each block adds the sums of all
// blocks and goes on with its rows. The launch is cooperative, so all blocks run at the same time.
// Rows for which there is no room are read again.
//
// Note [Norms over ranks]: the statistics of the batches of several ranks are made of each rank's
// mean, deviation and number of values. norm_statistics computes them, one collective gathers them,
// and norm_combine makes the numbers of the norm. The backward's sums are the gradients of weight
// and bias. One collective adds them over the ranks, and norm_factors makes the factors of the
// input's gradient. The gradients of weight and bias themselves stay those of the rank.
//
// Note [Sums about a few rows]: the statistics are sums of differences. Each of them is the
// difference between a row and the mean of kSamples rows. So the result is accurate even if the
// mean is much larger than the deviation. A single row would not do: it may be far from all other
// rows, as the corner of a padded image is.
#pragma once

namespace ct {

inline constexpr char kNormText[] = R"cuda(
using Raw = DTYPE::Raw;
using Eight = Vector<DTYPE, 8>;

// The tickets of the blocks: kTiles for each stream, all of them 0 while no kernel runs.
__device__ unsigned all_tickets[kStreams * kTiles];
// How often the blocks of a tile have met: Note [One kernel].
__device__ unsigned all_rounds[kStreams * kTiles];

constexpr int kThreads = 512, kWidth = LANES * 8, kRows = kThreads / LANES;

__device__ __forceinline__ void load(const float* from, float* f) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  f[0] = a.x; f[1] = a.y; f[2] = a.z; f[3] = a.w; f[4] = b.x; f[5] = b.y; f[6] = b.z; f[7] = b.w;
}

// Returns the probability that a standard normal number is below z.
__device__ __forceinline__ float probability(float z) { return .5f + .5f * erff(z * 0.70710678f); }

// A NaN stays a NaN, as in LibTorch's activations.
__device__ __forceinline__ float activate(float z) {
  if (ACTIVATION == kRelu) return z <= 0 ? 0 : z;
  if (ACTIVATION == kRelu6) return z <= 0 ? 0 : z >= 6 ? 6 : z;
  if (ACTIVATION == kSilu) return z / (1 + __expf(-z));
  if (ACTIVATION == kHardswish) return z * (z <= -3 ? 0 : z >= 3 ? 6 : z + 3) * (1.f / 6);
  if (ACTIVATION == kGelu) return z * probability(z);
  return z;
}

// Returns the gradient before the activation.
__device__ __forceinline__ float differentiate(float gradient, float z) {
  if (ACTIVATION == kRelu) return z <= 0 ? 0 : gradient;
  if (ACTIVATION == kRelu6) return z <= 0 || z >= 6 ? 0 : gradient;
  if (ACTIVATION == kSilu) {
    const float s = 1 / (1 + __expf(-z));
    return gradient * s * (1 + z * (1 - s));
  }
  if (ACTIVATION == kHardswish) return z < -3 ? 0 : z <= 3 ? gradient * (z * (1.f / 3) + .5f) : gradient;
  if (ACTIVATION == kGelu) return gradient * (probability(z) + z * 0.39894228f * __expf(-.5f * z * z));
  return gradient;
}

// Whether one bit for each element says where the activation passes the gradient.
constexpr bool kMasked = ADDEND != 0 && (ACTIVATION == kRelu || ACTIVATION == kRelu6);
// Whether the value before the activation has to be computed again from the addend.
constexpr bool kAgain = ADDEND != 0 && (ACTIVATION == kSilu || ACTIVATION == kHardswish || ACTIVATION == kGelu);

// Writes kSums sums of the block for each channel of its tile to `to`, where they are [kSums, kWidth].
template <int kSums>
__device__ __forceinline__ void add_block(float (&sums)[kSums][8], float* shared, float* to) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  constexpr int kAll = kSums * kWidth;
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int distance = LANES; distance < 32; distance *= 2) sums[k][i] += __shfl_xor_sync(~0u, sums[k][i], distance);
    }
  }
  if (lane < LANES) {
#pragma unroll
    for (int k = 0; k < kSums; ++k) {
#pragma unroll
      for (int i = 0; i < 8; ++i) shared[warp * kAll + k * kWidth + lane * 8 + i] = sums[k][i];
    }
  }
  __syncthreads();
  if (thread < kAll) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) sum += shared[w * kAll + thread];
    __stcg(to + thread, sum);
  }
  __syncthreads();
}

// Returns true in the block that is the last one of its tile to come here.
__device__ __forceinline__ bool is_last(unsigned* ticket, int blocks) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    unsigned before;
    // The ticket is 0 again after the last block.
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(ticket), "r"(blocks - 1) : "memory");
    last = before == blocks - 1;
  }
  __syncthreads();
  return last;
}

// Returns how often the blocks of a tile have met. A kernel asks at its beginning, because the answer
// takes long.
__device__ __forceinline__ unsigned met(unsigned* round) {
  unsigned then = 0;
  if (threadIdx.x == 0) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(then) : "l"(round) : "memory");
  return then;
}

// Waits until all blocks of a tile have come here. All of them must run at the same time. then: what
// `met` has returned in this kernel.
__device__ __forceinline__ void meet(unsigned* ticket, unsigned* round, unsigned then, int blocks) {
  if (threadIdx.x == 0) {
    unsigned now, before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(ticket), "r"(blocks - 1) : "memory");
    if (before == blocks - 1) {
      asm volatile("st.release.gpu.global.u32 [%0], %1;" : : "l"(round), "r"(then + 1) : "memory");
    } else {
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(round) : "memory");
      } while (now == then);
    }
  }
  __syncthreads();
}

// Adds the sums of all blocks of a tile. The result is in shared[0 .. kSums * kWidth).
template <int kSums>
__device__ __forceinline__ void add_blocks(const float* from, int blocks, float* shared) {
  constexpr int kAll = kSums * kWidth, kQuads = kAll / 4, kGroups = kThreads / kQuads;
  const int thread = threadIdx.x, quad = thread % kQuads, group = thread / kQuads;
  if (group < kGroups) {
    float4 sum = make_float4(0, 0, 0, 0);
    const float4* quads = reinterpret_cast<const float4*>(from) + quad;
#pragma unroll 8
    for (int b = group; b < blocks; b += kGroups) {
      const float4 v = __ldcg(quads + static_cast<size_t>(b) * kQuads);
      sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
    }
    reinterpret_cast<float4*>(shared)[group * kQuads + quad] = sum;
  }
  __syncthreads();
  float sum = 0;
  if (thread < kAll) {
    for (int g = 0; g < kGroups; ++g) sum += shared[g * kAll + thread];
  }
  __syncthreads();
  if (thread < kAll) shared[thread] = sum;
  __syncthreads();
}

template <int kSums>
__device__ constexpr int shared_floats() {
  constexpr int kAll = kSums * kWidth, kOfWarps = kThreads / 32 * kAll, kOfGroups = kThreads * 4;
  return kOfWarps > kOfGroups ? kOfWarps : kOfGroups;
}

// Adds the block's sums to the tile's: Note [Sums in order]. Returns true in one block of each tile.
// There `ask` runs before the blocks' sums are read. It reads all else that the block needs, so that
// the reads overlap.
template <int kSums, typename Ask>
__device__ __forceinline__ bool add_all(float (&sums)[kSums][8], float* shared, float* partial, unsigned* tickets, int tile, int block, int blocks,
                                        const Ask& ask) {
  constexpr int kAll = kSums * kWidth;
  add_block<kSums>(sums, shared, partial + static_cast<size_t>(tile * blocks + block) * kAll);
  if (!is_last(tickets + tile, blocks)) return false;
  ask();
  add_blocks<kSums>(partial + static_cast<size_t>(tile) * blocks * kAll, blocks, shared);
  return true;
}

// Rows of a block, the last rows of the tensor first: a convolution wrote these last, so they may
// still be in the cache.
struct Walk {
  int tile, block, blocks, column, row, chunks;
  bool inside;
  __device__ Walk(int rows, int columns, int blocks_of_tile)
      : tile(blockIdx.x / blocks_of_tile), block(blockIdx.x % blocks_of_tile), blocks(blocks_of_tile),
        column(tile * LANES + threadIdx.x % LANES), row(threadIdx.x / LANES), chunks((rows + kRows - 1) / kRows), inside(column < columns) {}
  __device__ int row_of(int chunk) const { return (chunks - 1 - chunk) * kRows + row; }
};

// The parameters and the running statistics of a channel.
struct Channel {
  float weight = 1, bias = 0, running_mean = 0, running_var = 0;
  Channel() = default;
  __device__ Channel(const Norm& p, int c) {
    if (p.weight != nullptr) weight = p.weight[c];
    if (p.bias != nullptr) bias = p.bias[c];
    if (p.running_mean == nullptr) return;
    running_mean = p.running_mean[c];
    running_var = p.running_var[c];
  }
  // Writes the numbers by which channel c is normalized.
  __device__ void save(const Norm& p, int c, float mean, float deviation) const {
    const int n = p.channels;
    const float scale = weight * deviation;
    p.saved[c] = mean;
    p.saved[n + c] = deviation;
    p.saved[2 * n + c] = scale;
    p.saved[3 * n + c] = bias - mean * scale;
  }
};

// The value before the activation. f: an element of the input, g: of the addend.
__device__ __forceinline__ float before(float f, float g, float scale, float shift, float scale2) {
  const float z = fmaf(f, scale, shift);
  return ADDEND == 0 ? z : ADDEND == 1 ? z + g : fmaf(g, scale2, z);
}

constexpr int kSamples = 8;

// The row of a sample, far from the tensor's corners.
__device__ __forceinline__ int sample_row(int sample, int rows) {
  return static_cast<int>(static_cast<long long>(2 * sample + 1) * rows / (2 * kSamples));
}

__device__ __forceinline__ void load_samples(const Eight* __restrict__ x, int column, int rows, int columns, Eight (&v)[kSamples]) {
#pragma unroll
  for (int k = 0; k < kSamples; ++k) v[k] = x[sample_row(k, rows) * columns + column];
}

// The middle of the sums for one column: Note [Sums about a few rows].
__device__ __forceinline__ void middle_of(const Eight (&v)[kSamples], float (&middle)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) middle[i] = 0;
#pragma unroll
  for (int k = 0; k < kSamples; ++k) {
    float f[8];
    widen(v[k], f);
#pragma unroll
    for (int i = 0; i < 8; ++i) middle[i] += f[i];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) middle[i] *= 1.f / kSamples;
}

// The same number for channel c alone.
__device__ __forceinline__ float middle_of_channel(const Eight* __restrict__ x, int c, int rows, int columns) {
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kSamples; ++k) sum += DTYPE::widen(reinterpret_cast<const Raw*>(x)[static_cast<size_t>(sample_row(k, rows)) * columns * 8 + c]);
  return sum * (1.f / kSamples);
}

__device__ __forceinline__ void add_differences(const Eight& v, const float (&middle)[8], float (&sums)[2][8]) {
  float f[8];
  widen(v, f);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float d = f[i] - middle[i];
    sums[0][i] += d;
    sums[1][i] = fmaf(d, d, sums[1][i]);
  }
}

// The statistics of a channel, from its sums of differences.
struct Statistics {
  float mean, variance, factor;  // factor: 1 / deviation
  __device__ Statistics(const Norm& p, float mean, float variance) : mean(mean), variance(variance), factor(rsqrtf(variance + p.eps)) {}
  __device__ Statistics(const Norm& p, float middle, float sum, float squares, int rows) {
    const float each = 1.f / rows, difference = sum * each, v = squares * each - difference * difference;
    mean = middle + difference;
    variance = v < 0 ? 0 : v;  // NaN stays
    factor = rsqrtf(variance + p.eps);
  }
  // Writes them to p.saved, and updates the running statistics of channel c, which is `of`.
  template <typename Count>
  __device__ void finish(const Norm& p, int c, const Channel& of, Count rows) const {
    of.save(p, c, mean, factor);
    if (p.running_mean == nullptr || rows == 0) return;  // no value over all ranks: both stay
    p.running_mean[c] = of.running_mean + p.momentum * (mean - of.running_mean);
    // One value over all ranks has no variance: the running one stays.
    if (rows > 1) p.running_var[c] = of.running_var + p.momentum * (variance * (static_cast<float>(rows) / static_cast<float>(rows - 1)) - of.running_var);
  }
};

#if KERNELS == 0
// The numbers of a norm by the batch's statistics.
extern "C" __global__ void __launch_bounds__(kThreads) norm_statistics(const Eight* __restrict__ x, Norm p, int rows, int columns, int blocks,
                                                                      float* partial, int slot) {
  constexpr int kAhead = sizeof(Eight) == 16 ? 4 : 2;
  __shared__ __align__(16) float shared[shared_floats<2>()];
  const Walk walk(rows, columns, blocks);
  float middle[8], sums[2][8];
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[0][i] = sums[1][i] = 0;
  if (walk.inside) {
    Eight samples[kSamples];
    load_samples(x, walk.column, rows, columns, samples);
    middle_of(samples, middle);
    for (int chunk = walk.block; chunk < walk.chunks; chunk += blocks * kAhead) {
      Eight v[kAhead];
      bool there[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int c = chunk + u * blocks, row = walk.row_of(c);
        there[u] = c < walk.chunks && row < rows;
        if (there[u]) v[u] = x[row * columns + walk.column];
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (there[u]) add_differences(v[u], middle, sums);
      }
    }
  }
  const int c = walk.tile * kWidth + threadIdx.x;
  const bool counts = threadIdx.x < kWidth && c < p.channels;
  Channel channel;
  float middle_of_c;
  const auto ask = [&] {
    if (!counts) return;
    channel = Channel(p, c);
    middle_of_c = middle_of_channel(x, c, rows, columns);
  };
  if (!add_all<2>(sums, shared, partial, all_tickets + slot * kTiles, walk.tile, walk.block, blocks, ask) || !counts) return;
  Statistics(p, middle_of_c, shared[threadIdx.x], shared[kWidth + threadIdx.x], rows).finish(p, c, channel, rows);
}

// The numbers of a norm by the batches of several ranks: Note [Norms over ranks]. `all` has `width`
// numbers of each rank. Those from `first` on are the rank's mean and 1 / deviation of each channel,
// and the last one is how many values its channels have. Writes the sum of these to the fifth row of
// p.saved.
extern "C" __global__ void norm_combine(Norm p, const float* __restrict__ all, int first, int width, int world) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, n = p.channels;
  if (c >= n) return;
  const Channel channel(p, c);
  const float middle = all[first + c];  // of a rank without values it is 0, which does as well
  float count = 0, sum = 0;
  for (int r = 0; r < world; ++r) {
    const float* const of = all + static_cast<size_t>(r) * width;
    count += of[width - 1];
    sum = fmaf(of[width - 1], of[first + c] - middle, sum);
  }
  const float mean = count == 0 ? 0 : middle + sum / count;
  float squares = 0;
  for (int r = 0; r < world; ++r) {
    const float* const of = all + static_cast<size_t>(r) * width;
    if (of[width - 1] == 0) continue;
    const float deviation = of[first + n + c], v = 1 / (deviation * deviation) - p.eps, difference = of[first + c] - mean;
    squares = fmaf(of[width - 1], (v < 0 ? 0 : v) + difference * difference, squares);
  }
  Statistics(p, mean, count == 0 ? 0 : squares / count).finish(p, c, channel, count);
  p.saved[4 * n + c] = count;
}

// The numbers of a norm by the running statistics.
extern "C" __global__ void norm_fold(Norm p) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= p.channels) return;
  const Channel channel(p, c);
  channel.save(p, c, channel.running_mean, rsqrtf(channel.running_var + p.eps));
}
#endif

// Loads what the second norm q adds to the value before the activation, for eight channels.
__device__ __forceinline__ void load_second(const Norm& q, int c, float (&scale2)[8], float (&shift)[8]) {
  float shift2[8];
  load(q.saved + 2 * q.channels + c, scale2);
  load(q.saved + 3 * q.channels + c, shift2);
#pragma unroll
  for (int i = 0; i < 8; ++i) shift[i] += shift2[i];
}

// How a thread applies a norm to its column.
struct Apply {
  float scale[8], shift[8], scale2[8];

  // scales, shifts: those of the first norm, for the eight channels from c on.
  __device__ Apply(const float* scales, const float* shifts, const Norm& q, int c) {
    load(scales, scale);
    load(shifts, shift);
    if (ADDEND == 2) load_second(q, c, scale2, shift);
  }

  // Applies it to v, a group of the input, and w, a group of the addend. Writes the result to y[k].
  // Unless mask is NULL, writes the mask to mask[k].
  __device__ void operator()(const Eight& v, const Eight& w, Eight* y, unsigned char* mask, int k) const {
    float f[8], g[8];
    widen(v, f);
    if (ADDEND != 0) widen(w, g);
    unsigned passes = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float z = before(f[i], g[i], scale[i], shift[i], scale2[i]);
      if (kMasked && differentiate(1.f, z) != 0) passes |= 1u << i;
      f[i] = activate(z);
    }
    y[k] = narrow<DTYPE>(f);
    if (kMasked && mask != nullptr) mask[k] = static_cast<unsigned char>(passes);
  }
};

#if KERNELS == 0
// y = activation(norm(x) + addend). groups: rows * columns. A thread keeps to its column, because the
// number of threads is a multiple of columns.
extern "C" __global__ void norm_apply(const Eight* __restrict__ x, const Eight* __restrict__ addend, Eight* __restrict__ y,
                                      unsigned char* __restrict__ mask, Norm p, Norm q, int groups, int columns) {
  constexpr int kAhead = sizeof(Eight) == 16 && ADDEND == 0 ? 4 : 2;
  const int threads = gridDim.x * blockDim.x, thread = blockIdx.x * blockDim.x + threadIdx.x, c = thread % columns * 8;
  const Apply apply(p.saved + 2 * p.channels + c, p.saved + 3 * p.channels + c, q, c);
  for (int from = thread; from < groups; from += threads * kAhead) {
    Eight v[kAhead], w[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int k = from + u * threads;
      if (k >= groups) continue;
      v[u] = x[k];
      if (ADDEND != 0) w[u] = addend[k];
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int k = from + u * threads;
      if (k < groups) apply(v[u], w[u], y, mask, k);
    }
  }
}
#endif

extern __shared__ __align__(16) unsigned char kept_rows[];

// The rows of a block in a kernel that reads its input once: Note [One kernel]. A block works on
// `each` successive rows.
struct Rows {
  int tile, block, lane, column, row, first, count;
  bool inside;
  __device__ Rows(int rows, int columns, int blocks, int each)
      : tile(blockIdx.x / blocks), block(blockIdx.x % blocks), lane(threadIdx.x % LANES), column(tile * LANES + lane), row(threadIdx.x / LANES),
        first(block * each), count(min(each, rows - first)), inside(column < columns) {}
  __device__ int at(int r, int columns) const { return (first + r) * columns + column; }
};

#if KERNELS == 1
// norm_statistics and norm_apply in one: Note [One kernel]. kept: how many rows of a block fit into
// its shared memory.
extern "C" __global__ void __launch_bounds__(kThreads, 1) norm_whole(const Eight* __restrict__ x, const Eight* __restrict__ addend,
                                                                    Eight* __restrict__ y, unsigned char* __restrict__ mask, Norm p, Norm q,
                                                                    int rows, int columns, int blocks, int each, int kept, float* partial, int slot) {
  constexpr int kFirst = sizeof(Eight) == 16 ? 8 : 4, kAhead = kFirst / 2;
  __shared__ __align__(16) float shared[shared_floats<2>()];
  __shared__ float middles[kWidth];
  Eight* const keep = reinterpret_cast<Eight*>(kept_rows);
  const Rows of(rows, columns, blocks, each);
  unsigned *const ticket = all_tickets + slot * kTiles + of.tile, *const round = all_rounds + slot * kTiles + of.tile;
  // All that the kernel reads before its blocks meet is asked for at once.
  const unsigned then = met(round);
  const int thread = threadIdx.x, c = of.tile * kWidth + thread;
  const bool counts = thread < kWidth && c < p.channels;
  Channel channel;
  if (counts) channel = Channel(p, c);
  float middle[8], sums[2][8];
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[0][i] = sums[1][i] = 0;
  if (of.inside) {
    Eight v[kFirst], samples[kSamples];
    const auto read = [&](int from) {
#pragma unroll
      for (int u = 0; u < kFirst; ++u) {
        const int r = from + u * kRows;
        if (r < of.count) v[u] = x[of.at(r, columns)];
      }
    };
    load_samples(x, of.column, rows, columns, samples);
    read(of.row);
    middle_of(samples, middle);
    if (of.row == 0) {
#pragma unroll
      for (int i = 0; i < 8; ++i) middles[of.lane * 8 + i] = middle[i];
    }
    for (int from = of.row; from < of.count;) {
#pragma unroll
      for (int u = 0; u < kFirst; ++u) {
        const int r = from + u * kRows;
        if (r >= of.count) continue;
        if (r < kept) keep[r * LANES + of.lane] = v[u];
        add_differences(v[u], middle, sums);
      }
      from += kRows * kFirst;
      read(from);
    }
  }
  constexpr int kAll = 2 * kWidth;
  float* const all = partial + static_cast<size_t>(of.tile) * blocks * kAll;
  add_block<2>(sums, shared, all + static_cast<size_t>(of.block) * kAll);
  meet(ticket, round, then, blocks);
  add_blocks<2>(all, blocks, shared);
  const Statistics statistics(p, counts ? middles[thread] : 0.f, counts ? shared[thread] : 0.f, counts ? shared[kWidth + thread] : 0.f, rows);
  __syncthreads();
  if (thread < kWidth) {
    const float scale = channel.weight * statistics.factor;
    shared[thread] = counts ? scale : 0.f;
    shared[kWidth + thread] = counts ? channel.bias - statistics.mean * scale : 0.f;
  }
  __syncthreads();
  if (counts && of.block == blocks - 1) statistics.finish(p, c, channel, rows);
  if (!of.inside) return;
  const Apply apply(shared + of.lane * 8, shared + kWidth + of.lane * 8, q, of.column * 8);
  // The rows that were read last come first: those that are not kept may still be in the cache.
  for (int from = (of.count - 1) / (kRows * kAhead) * (kRows * kAhead) + of.row; from >= 0; from -= kRows * kAhead) {
    Eight v[kAhead], w[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int r = from + u * kRows;
      if (r >= of.count) continue;
      v[u] = r < kept ? keep[r * LANES + of.lane] : x[of.at(r, columns)];
      if (ADDEND != 0) w[u] = addend[of.at(r, columns)];
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int r = from + u * kRows, k = of.at(r, columns);
      if (r < of.count) apply(v[u], w[u], y, mask, k);
    }
  }
}
#endif

constexpr int kNorms = ADDEND == 2 ? 2 : 1;

// What the forward has saved of a channel.
struct Saved {
  float mean, deviation, scale;
  Saved() = default;
  __device__ Saved(const Norm& p, int c) : mean(p.saved[c]), deviation(p.saved[p.channels + c]), scale(p.saved[2 * p.channels + c]) {}
};

// The factors of the input's gradient for a channel: a, b and c of Norm::factors.
struct Factors {
  float a, b, c;
  __device__ Factors(const Norm& p, const Saved& saved, float sum, float product, float count) : a(saved.scale), b(0), c(0) {
    if (!p.training) return;
    const float each = 1.f / count;
    b = -a * saved.deviation * saved.deviation * product * each;
    c = -a * sum * each - b * saved.mean;
  }
  __device__ void save(const Norm& p, int channel) const {
    p.factors[channel] = a;
    p.factors[p.channels + channel] = b;
    p.factors[2 * p.channels + channel] = c;
  }
};

// Writes the gradients of the parameters of channel c.
__device__ __forceinline__ void finish_parameters(const Norm& p, int c, const Saved& saved, float sum, float product) {
  p.weight_gradient[c] = product * saved.deviation;
  p.bias_gradient[c] = sum;
}

// Adds the block's sums to the tile's, and ends the work of the tile in one of its blocks: it
// writes the gradients of the parameters, and the factors of the input's gradient. count: number of
// values of a channel.
template <int kSums>
__device__ __forceinline__ void finish(float (&sums)[kSums][8], float* shared, float* partial, unsigned* tickets, const Walk& walk, const Norm& p,
                                       const Norm& q, int count) {
  const int n = p.channels, c = walk.tile * kWidth + threadIdx.x;
  const bool counts = threadIdx.x < kWidth && c < n;
  Saved saved[kNorms];
  const auto ask = [&] {
#pragma unroll
    for (int k = 0; k < kNorms; ++k) {
      if (counts) saved[k] = Saved(k == 0 ? p : q, c);
    }
  };
  if (!add_all<kSums>(sums, shared, partial, tickets, walk.tile, walk.block, walk.blocks, ask) || !counts) return;
#pragma unroll
  for (int k = 0; k < kNorms; ++k) {
    const Norm& of = k == 0 ? p : q;
    const float sum = shared[threadIdx.x], product = shared[(k + 1) * kWidth + threadIdx.x];
    finish_parameters(of, c, saved[k], sum, product);
    Factors(of, saved[k], sum, product, count).save(of, c);
  }
}

// What a thread of the backward knows of its column.
struct Column {
  float mean[8], mean2[8], scale[8], shift[8], scale2[8];

  __device__ Column(const Norm& p, const Norm& q, int c) {
    load(p.saved + c, mean);
    if (!kMasked) {
      load(p.saved + 2 * p.channels + c, scale);
      load(p.saved + 3 * p.channels + c, shift);
    }
    if (ADDEND == 2) load(q.saved + c, mean2);
    if (ADDEND == 2 && kAgain) load_second(q, c, scale2, shift);
  }

  // Adds one group to the sums. dy, dy2: the gradients of the result. v, w: input and addend. Returns
  // the gradient before the activation. With an addend the sums are those of the rounded gradient,
  // which is also the gradient of the addend.
  template <bool kTwo, int kSums>
  __device__ Eight add(const Eight& dy, const Eight& dy2, const Eight& v, const Eight& w, unsigned passes, float (&sums)[kSums][8]) const {
    float d[8], e[8], f[8], g[8];
    widen(dy, d);
    if (kTwo) widen(dy2, e);
    widen(v, f);
    if (ADDEND == 2 || kAgain) widen(w, g);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (kTwo) d[i] += e[i];
      if (kMasked) {
        d[i] = passes >> i & 1 ? d[i] : 0.f;
      } else if (ACTIVATION != kNone) {
        d[i] = differentiate(d[i], before(f[i], g[i], scale[i], shift[i], scale2[i]));
      }
    }
    const Eight rounded = narrow<DTYPE>(d);
    if (ADDEND != 0) widen(rounded, d);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sums[0][i] += d[i];
      sums[1][i] = fmaf(d[i], f[i] - mean[i], sums[1][i]);
      if (ADDEND == 2) sums[kSums - 1][i] = fmaf(d[i], g[i] - mean2[i], sums[kSums - 1][i]);
    }
    return rounded;
  }
};

#if KERNELS == 2
// The backward's sums: gradients of weight and bias, and the factors of the input's gradient. dz is the
// gradient before the activation. It is written unless it is NULL.
template <bool kTwo>
__device__ __forceinline__ void reduce(const Eight* __restrict__ dy, const Eight* __restrict__ dy2, const Eight* __restrict__ x,
                                       const Eight* __restrict__ addend, const unsigned char* __restrict__ mask, Eight* __restrict__ dz,
                                       const Norm& p, const Norm& q, int rows, int columns, int blocks, float* partial, unsigned* tickets) {
  constexpr int kSums = ADDEND == 2 ? 3 : 2, kAhead = sizeof(Eight) == 16 ? (kTwo || ADDEND == 2 || kAgain ? 2 : 4) : 2;
  __shared__ __align__(16) float shared[shared_floats<kSums>()];
  const Walk walk(rows, columns, blocks);
  float sums[kSums][8];
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[k][i] = 0;
  }
  if (walk.inside) {
    const Column column(p, q, walk.column * 8);
    for (int chunk = walk.block; chunk < walk.chunks; chunk += blocks * kAhead) {
      Eight a[kAhead], b[kAhead], v[kAhead], w[kAhead];
      unsigned passes[kAhead];
      bool there[kAhead];
      int at[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int k = chunk + u * blocks, row = walk.row_of(k);
        there[u] = k < walk.chunks && row < rows;
        at[u] = row * columns + walk.column;
        if (!there[u]) continue;
        a[u] = dy[at[u]];
        if (kTwo) b[u] = dy2[at[u]];
        v[u] = x[at[u]];
        if (ADDEND == 2 || kAgain) w[u] = addend[at[u]];
        if (kMasked) passes[u] = mask[at[u]];
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (!there[u]) continue;
        const Eight z = column.add<kTwo>(a[u], b[u], v[u], w[u], passes[u], sums);
        if (ADDEND != 0 && dz != nullptr) dz[at[u]] = z;
      }
    }
  }
  finish<kSums>(sums, shared, partial, tickets, walk, p, q, rows);
}

#define REDUCE(name, kTwo)                                                                                                             \
  extern "C" __global__ void __launch_bounds__(kThreads) name(const Eight* dy, const Eight* dy2, const Eight* x, const Eight* addend, \
      const unsigned char* mask, Eight* dz, Norm p, Norm q, int rows, int columns, int blocks, float* partial, int slot) {              \
    reduce<kTwo>(dy, dy2, x, addend, mask, dz, p, q, rows, columns, blocks, partial, all_tickets + slot * kTiles);                     \
  }
REDUCE(norm_reduce, false)
REDUCE(norm_reduce_two, true)

// The factors of the input's gradient by the sums over all ranks: Note [Norms over ranks]. of_bias and
// of_weight: the sums of the gradients of the parameters.
extern "C" __global__ void norm_factors(Norm p, const float* __restrict__ of_bias, const float* __restrict__ of_weight) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, n = p.channels;
  if (c >= n) return;
  const Saved saved(p, c);
  Factors(p, saved, of_bias[c], of_weight[c] / saved.deviation, p.saved[4 * n + c]).save(p, c);
}

// The gradients of the inputs. dz is the gradient behind the activation if ADDEND is 0, and the one before
// the activation otherwise.
extern "C" __global__ void norm_gradient(const Eight* __restrict__ dz, const Eight* __restrict__ x, const Eight* __restrict__ x2,
                                         Eight* __restrict__ dx, Eight* __restrict__ dx2, Norm p, Norm q, int groups, int columns) {
  constexpr int kAhead = 2;
  const int threads = gridDim.x * blockDim.x, thread = blockIdx.x * blockDim.x + threadIdx.x, n = p.channels, c = thread % columns * 8;
  float a[8], b[8], k0[8], scale[8], shift[8], a2[8], b2[8], k2[8];
  load(p.factors + c, a);
  load(p.factors + n + c, b);
  load(p.factors + 2 * n + c, k0);
  if (ADDEND == 0 && ACTIVATION != kNone) {
    load(p.saved + 2 * n + c, scale);
    load(p.saved + 3 * n + c, shift);
  }
  if (ADDEND == 2) {
    load(q.factors + c, a2);
    load(q.factors + n + c, b2);
    load(q.factors + 2 * n + c, k2);
  }
  for (int from = thread; from < groups; from += threads * kAhead) {
    Eight v[kAhead], w[kAhead], z[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int k = from + u * threads;
      if (k >= groups) continue;
      v[u] = dz[k];
      w[u] = x[k];
      if (ADDEND == 2) z[u] = x2[k];
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int k = from + u * threads;
      if (k >= groups) continue;
      float d[8], f[8], g[8], out[8];
      widen(v[u], d);
      widen(w[u], f);
      if (ADDEND == 2) widen(z[u], g);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (ADDEND == 0 && ACTIVATION != kNone) d[i] = differentiate(d[i], fmaf(f[i], scale[i], shift[i]));
        out[i] = fmaf(a[i], d[i], fmaf(b[i], f[i], k0[i]));
      }
      dx[k] = narrow<DTYPE>(out);
      if (ADDEND == 2) {
#pragma unroll
        for (int i = 0; i < 8; ++i) out[i] = fmaf(a2[i], d[i], fmaf(b2[i], g[i], k2[i]));
        dx2[k] = narrow<DTYPE>(out);
      }
    }
  }
}
#endif

#if KERNELS == 3
// norm_reduce and norm_gradient in one: Note [One kernel]. dz is written if ADDEND is 1. Otherwise
// only its rows that are not kept are written. kept: as in norm_whole, for x and dz.
template <bool kTwo>
__device__ __forceinline__ void gradient_whole(const Eight* __restrict__ dy, const Eight* __restrict__ dy2, const Eight* __restrict__ x,
                                               const Eight* __restrict__ addend, const unsigned char* __restrict__ mask, Eight* dz,
                                               Eight* __restrict__ dx, Eight* __restrict__ dx2, const Norm& p, const Norm& q, int rows, int columns,
                                               int blocks, int each, int kept, float* partial, unsigned* tickets, unsigned* rounds) {
  constexpr int kSums = ADDEND == 2 ? 3 : 2, kFirst = sizeof(Eight) == 16 && ADDEND == 0 && !kTwo ? 4 : 2, kAhead = 2;
  __shared__ __align__(16) float shared[shared_floats<kSums>()];
  Eight *const keep = reinterpret_cast<Eight*>(kept_rows), *const keep_dz = keep + kept * LANES;
  const Rows of(rows, columns, blocks, each);
  // As in norm_whole.
  const unsigned then = met(rounds + of.tile);
  const int thread = threadIdx.x, c = of.tile * kWidth + thread;
  const bool counts = thread < kWidth && c < p.channels;
  Saved saved[kNorms];
#pragma unroll
  for (int k = 0; k < kNorms; ++k) {
    if (counts) saved[k] = Saved(k == 0 ? p : q, c);
  }
  float sums[kSums][8];
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[k][i] = 0;
  }
  if (of.inside) {
    const Column column(p, q, of.column * 8);
    for (int from = of.row; from < of.count; from += kRows * kFirst) {
      Eight a[kFirst], b[kFirst], v[kFirst], w[kFirst];
      unsigned passes[kFirst];
#pragma unroll
      for (int u = 0; u < kFirst; ++u) {
        const int r = from + u * kRows, k = of.at(r, columns);
        if (r >= of.count) continue;
        a[u] = dy[k];
        if (kTwo) b[u] = dy2[k];
        v[u] = x[k];
        if (ADDEND == 2 || kAgain) w[u] = addend[k];
        if (kMasked) passes[u] = mask[k];
      }
#pragma unroll
      for (int u = 0; u < kFirst; ++u) {
        const int r = from + u * kRows;
        if (r >= of.count) continue;
        const Eight z = column.add<kTwo>(a[u], b[u], v[u], w[u], passes[u], sums);
        if (r < kept) {
          keep[r * LANES + of.lane] = v[u];
          keep_dz[r * LANES + of.lane] = z;
        }
        if (ADDEND == 1 || r >= kept) dz[of.at(r, columns)] = z;
      }
    }
  }
  constexpr int kAll = kSums * kWidth;
  float* const all = partial + static_cast<size_t>(of.tile) * blocks * kAll;
  add_block<kSums>(sums, shared, all + static_cast<size_t>(of.block) * kAll);
  meet(tickets + of.tile, rounds + of.tile, then, blocks);
  add_blocks<kSums>(all, blocks, shared);
  float factors[3 * kNorms];
#pragma unroll
  for (int k = 0; k < kNorms; ++k) {
    factors[3 * k] = factors[3 * k + 1] = factors[3 * k + 2] = 0;
    if (!counts) continue;
    const Norm& norm = k == 0 ? p : q;
    const float sum = shared[thread], product = shared[(k + 1) * kWidth + thread];
    const Factors f(norm, saved[k], sum, product, rows);
    factors[3 * k] = f.a;
    factors[3 * k + 1] = f.b;
    factors[3 * k + 2] = f.c;
    if (of.block == blocks - 1) finish_parameters(norm, c, saved[k], sum, product);
  }
  __syncthreads();
  if (thread < kWidth) {
#pragma unroll
    for (int k = 0; k < 3 * kNorms; ++k) shared[k * kWidth + thread] = factors[k];
  }
  __syncthreads();
  if (!of.inside) return;
  float a[kNorms][8], b[kNorms][8], k0[kNorms][8];
#pragma unroll
  for (int k = 0; k < kNorms; ++k) {
    load(shared + 3 * k * kWidth + of.lane * 8, a[k]);
    load(shared + (3 * k + 1) * kWidth + of.lane * 8, b[k]);
    load(shared + (3 * k + 2) * kWidth + of.lane * 8, k0[k]);
  }
  for (int from = (of.count - 1) / (kRows * kAhead) * (kRows * kAhead) + of.row; from >= 0; from -= kRows * kAhead) {
    Eight v[kAhead], w[kAhead], z[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int r = from + u * kRows, k = of.at(r, columns);
      if (r >= of.count) continue;
      v[u] = r < kept ? keep_dz[r * LANES + of.lane] : dz[k];
      w[u] = r < kept ? keep[r * LANES + of.lane] : x[k];
      if (ADDEND == 2) z[u] = addend[k];
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int r = from + u * kRows, k = of.at(r, columns);
      if (r >= of.count) continue;
      float d[8], f[8], out[8];
      widen(v[u], d);
#pragma unroll
      for (int n = 0; n < kNorms; ++n) {
        widen(n == 0 ? w[u] : z[u], f);
#pragma unroll
        for (int i = 0; i < 8; ++i) out[i] = fmaf(a[n][i], d[i], fmaf(b[n][i], f[i], k0[n][i]));
        (n == 0 ? dx : dx2)[k] = narrow<DTYPE>(out);
      }
    }
  }
}

#define WHOLE(name, kTwo)                                                                                                                \
  extern "C" __global__ void __launch_bounds__(kThreads, 1) name(const Eight* dy, const Eight* dy2, const Eight* x, const Eight* addend, \
      const unsigned char* mask, Eight* dz, Eight* dx, Eight* dx2, Norm p, Norm q, int rows, int columns, int blocks, int each, int kept, \
      float* partial, int slot) {                                                                                                        \
    gradient_whole<kTwo>(dy, dy2, x, addend, mask, dz, dx, dx2, p, q, rows, columns, blocks, each, kept, partial,                        \
                         all_tickets + slot * kTiles, all_rounds + slot * kTiles);                                                       \
  }
WHOLE(norm_gradient_whole, false)
WHOLE(norm_gradient_whole_two, true)
#endif

#if KERNELS == 4
// y: the largest values of ReLU(norm(x)) in each window. where: for each value its place in the
// window, 3 * row + column, or kNowhere for a value of 0. The result of the norm is not written.
constexpr unsigned kNowhere = 255;

extern "C" __global__ void norm_pool(const Eight* __restrict__ x, Eight* __restrict__ y, uint2* __restrict__ where, Norm p, Pooling g, int columns) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x, column = thread % columns, pixel = thread / columns;
  if (pixel >= g.images * g.out_height * g.out_width) return;
  const int left = pixel % g.out_width * 2 - 1, top = pixel / g.out_width % g.out_height * 2 - 1, image = pixel / (g.out_width * g.out_height);
  float scale[8], shift[8], best[8];
  unsigned place[8];
  load(p.saved + 2 * p.channels + column * 8, scale);
  load(p.saved + 3 * p.channels + column * 8, shift);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    best[i] = 0;
    place[i] = kNowhere;
  }
#pragma unroll
  for (int k = 0; k < 9; ++k) {
    const int row = top + k / 3, at = left + k % 3;
    if (row < 0 || row >= g.height || at < 0 || at >= g.width) continue;
    float f[8];
    widen(x[((image * g.height + row) * g.width + at) * columns + column], f);
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i] = fmaf(f[i], scale[i], shift[i]);
    const Eight rounded = narrow<DTYPE>(f);
    widen(rounded, f);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (f[i] > best[i] || f[i] != f[i]) {
        best[i] = f[i];
        place[i] = k;
      }
    }
  }
  y[thread] = narrow<DTYPE>(best);
  where[thread] = make_uint2(place[0] | place[1] << 8 | place[2] << 16 | place[3] << 24, place[4] | place[5] << 8 | place[6] << 16 | place[7] << 24);
}

// Four pixels, (2 * row, 2 * at) and those beside and below. Their gradients come from the four
// windows (row, at) to (row + 1, at + 1).
struct Patch {
  int image, row, at;
  __device__ Patch(const Pooling& g, int number)
      : image(number / (g.out_width * g.out_height)), row(number / g.out_width % g.out_height), at(number % g.out_width) {}

  __device__ int pixel(const Pooling& g, int k) const {
    const int r = 2 * row + k / 2, a = 2 * at + k % 2;
    return r < g.height && a < g.width ? (image * g.height + r) * g.width + a : -1;
  }

  // Loads the pixels. They are loaded before the gradients are gathered, so that the loads overlap.
  __device__ void load(const Eight* __restrict__ x, const Pooling& g, int columns, int column, Eight (&v)[4]) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int at = pixel(g, k);
      if (at >= 0) v[k] = x[at * columns + column];
    }
  }

  __device__ void gather(const Eight* __restrict__ dy, const uint2* __restrict__ where, const Pooling& g, int columns, int column, float (&z)[4][8]) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < 8; ++i) z[k][i] = 0;
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int down = w / 2, right = w % 2;
      if (row + down >= g.out_height || at + right >= g.out_width) continue;
      const int from = ((image * g.out_height + row + down) * g.out_width + at + right) * columns + column;
      float d[8];
      widen(dy[from], d);
      const uint2 places = where[from];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int r = k / 2 + 1 - 2 * down, a = k % 2 + 1 - 2 * right;  // of the pixel in the window
        if (r < 0 || a < 0) continue;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const unsigned place = (i < 4 ? places.x >> 8 * i : places.y >> 8 * (i - 4)) & 255u;
          if (place == static_cast<unsigned>(3 * r + a)) z[k][i] += d[i];
        }
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(kThreads) norm_pool_reduce(const Eight* __restrict__ dy, const uint2* __restrict__ where,
                                                                       const Eight* __restrict__ x, Norm p, Pooling g, int patches, int columns,
                                                                       int blocks, float* partial, int slot) {
  __shared__ __align__(16) float shared[shared_floats<2>()];
  const Walk walk(patches, columns, blocks);
  float mean[8], sums[2][8];
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[0][i] = sums[1][i] = 0;
  if (walk.inside) {
    load(p.saved + walk.column * 8, mean);
    for (int chunk = walk.block; chunk < walk.chunks; chunk += blocks) {
      const int number = walk.row_of(chunk);
      if (number >= patches) continue;
      const Patch patch(g, number);
      Eight v[4];
      float z[4][8];
      patch.load(x, g, columns, walk.column, v);
      patch.gather(dy, where, g, columns, walk.column, z);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (patch.pixel(g, k) < 0) continue;
        float f[8];
        widen(v[k], f);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          sums[0][i] += z[k][i];
          sums[1][i] = fmaf(z[k][i], f[i] - mean[i], sums[1][i]);
        }
      }
    }
  }
  finish<2>(sums, shared, partial, all_tickets + slot * kTiles, walk, p, p, g.images * g.height * g.width);
}

extern "C" __global__ void norm_pool_gradient(const Eight* __restrict__ dy, const uint2* __restrict__ where, const Eight* __restrict__ x,
                                              Eight* __restrict__ dx, Norm p, Pooling g, int columns) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x, column = thread % columns, number = thread / columns, n = p.channels;
  if (number >= g.images * g.out_height * g.out_width) return;
  const Patch patch(g, number);
  Eight v[4];
  float a[8], b[8], c[8], z[4][8];
  patch.load(x, g, columns, column, v);
  load(p.factors + column * 8, a);
  load(p.factors + n + column * 8, b);
  load(p.factors + 2 * n + column * 8, c);
  patch.gather(dy, where, g, columns, column, z);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int pixel = patch.pixel(g, k);
    if (pixel < 0) continue;
    float f[8];
    widen(v[k], f);
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i] = fmaf(a[i], z[k][i], fmaf(b[i], f[i], c[i]));
    dx[pixel * columns + column] = narrow<DTYPE>(f);
  }
}
#endif
)cuda";

}  // namespace ct
