// The CUDA text of the forward of the fused batch norm. It stands behind that of norm_cuda.h.
#pragma once

namespace ct {

inline constexpr char kNormForwardText[] = R"cuda(
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
)cuda";

}  // namespace ct
