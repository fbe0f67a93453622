// The CUDA text that all kernels of the fused batch norm share. norm_work.h compiles and launches
// it, with those of norm_forward_cuda.h, norm_backward_cuda.h and norm_pool_cuda.h behind it.
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
//   ACTIVATION  kNone, kRelu, kRelu6, kSilu, kHardswish or kGelu, of norm_work.h
//   ADDEND      0: nothing is added before the activation, 1: a tensor, 2: a second norm's result
//   KERNELS     which kernels the text has: a number of Kernels in norm_work.h
//
// The struct Norm and the enumeration of activations come from norm_work.h.
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
  // Writes the numbers that normalize channel c to p.saved. Updates the running statistics of the
  // channel. `of` is channel c.
  template <typename Count>
  __device__ void finish(const Norm& p, int c, const Channel& of, Count rows) const {
    of.save(p, c, mean, factor);
    if (p.running_mean == nullptr || rows == 0) return;  // no value over all ranks: both stay
    p.running_mean[c] = of.running_mean + p.momentum * (mean - of.running_mean);
    // One value over all ranks has no variance: the running one stays.
    if (rows > 1) p.running_var[c] = of.running_var + p.momentum * (variance * (static_cast<float>(rows) / static_cast<float>(rows - 1)) - of.running_var);
  }
};
)cuda";

}  // namespace ct
