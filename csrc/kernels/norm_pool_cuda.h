// The CUDA text of batch_norm_relu_max_pool. It stands behind that of norm_backward_cuda.h.
#pragma once

namespace ct {

inline constexpr char kNormPoolText[] = R"cuda(
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
