// The CUDA text of the backward of the fused batch norm. It stands behind that of
// norm_forward_cuda.h.
#pragma once

namespace ct {

inline constexpr char kNormBackwardText[] = R"cuda(
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
)cuda";

}  // namespace ct
