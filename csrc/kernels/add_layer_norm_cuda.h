// The CUDA text of the sum with its layer norm: add_layer_norm.cc compiles and launches it.
//
// A tensor is a matrix of CHANNELS columns, and each row is normalised by itself. ROW_THREADS
// threads work on a row. Each of them reads four adjacent elements at a time, kQuads times, and
// keeps them in registers. So a kernel reads each of its tensors once.
//
// The text is compiled for one set of these macros:
//
//   INPUT        BFloat16, Half or Float: the dtype of the input and of its gradient
//   ADDEND       the same for the addend; INPUT if there is none
//   SUM          the same for the sum: INPUT if there is no addend
//   NORMED       the same for the result of the norm
//   PARAMETER    the same for weight and bias
//   ADDED        1: there is an addend, 0: there is none, 2: one row is added to all rows, and the
//                sum is not stored
//   APART        1: the rows of the addend lie apart, 0: they follow each other
//   CHANNELS     a multiple of 4
//   ROW_THREADS  a power of two
//   THREADS      threads of a block, a multiple of 32 and of ROW_THREADS
//   BLOCKS       blocks of add_layer_norm_gradient on each multiprocessor
//   SUMS         1: add_layer_norm_gradient makes the gradients of weight and bias, 0: it does not
//
// Note [Gradients of a layer norm]: a block of add_layer_norm_gradient works on many rows. Each
// thread adds up its columns of these rows. Then the block adds up its threads and writes its sums
// to memory. add_layer_norm_parameters adds the sums of all blocks. All sums are made in a fixed
// order, so equal inputs give equal bits.
#pragma once

namespace ct {

inline constexpr char kAddLayerNormText[] = R"cuda(
template <typename T>
using Four = Vector<T, 4>;

constexpr int kRowThreads = ROW_THREADS, kRows = THREADS / kRowThreads, kColumns = CHANNELS / 4;
constexpr int kQuads = (kColumns + kRowThreads - 1) / kRowThreads;
constexpr bool kFull = kColumns == kQuads * kRowThreads;

// The place of a thread: its row, and the first of its columns of four elements.
struct Place {
  int row, column;
  bool inside;
  __device__ Place(int first, int rows)
      : row(first + static_cast<int>(threadIdx.x) / kRowThreads), column(threadIdx.x % kRowThreads), inside(row < rows) {}
  __device__ bool has(int q) const { return inside && (kFull || column + q * kRowThreads < kColumns); }
  __device__ size_t at(int q) const { return static_cast<size_t>(row) * kColumns + column + q * kRowThreads; }
};

// Where the rows of the addend lie: `count` rows with a distance of `step`, and as many again behind
// `jump`. Distances are in groups of four elements.
struct Rows {
  int count;
  long long step, jump;
  __device__ size_t at(const Place& p, int q) const {
    if (ADDED == 2) return p.column + q * kRowThreads;
    return APART ? p.row / count * jump + p.row % count * step + p.column + q * kRowThreads : p.at(q);
  }
};

// Adds each of the numbers over the threads of a row. All of these threads get the sum. All
// threads of the block must come here.
template <int kCount>
__device__ __forceinline__ void add_row(float (&v)[kCount]) {
  constexpr int kWarps = (kRowThreads + 31) / 32;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int distance = 1; distance < kRowThreads && distance < 32; distance *= 2) v[k] += __shfl_xor_sync(~0u, v[k], distance);
  }
  if (kWarps == 1) return;
  __shared__ float of_warps[kCount][THREADS / 32];
  const int warp = threadIdx.x / 32, first = warp / kWarps * kWarps;
  __syncthreads();  // all threads have read the sums of the row before
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) of_warps[k][warp] = v[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    v[k] = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) v[k] += of_warps[k][first + w];
  }
}

// weight, bias, saved: or NULL. sum: NULL if there is no addend. saved: [2, rows], the mean and 1 /
// deviation of each row.
extern "C" __global__ void __launch_bounds__(THREADS) add_layer_norm(const Four<INPUT>* __restrict__ input, const Four<ADDEND>* __restrict__ addend,
                                                                    const Four<PARAMETER>* __restrict__ weight, const Four<PARAMETER>* __restrict__ bias,
                                                                    Four<SUM>* __restrict__ sum, Four<NORMED>* __restrict__ normed,
                                                                    float* __restrict__ saved, int rows, float eps, Rows of_addend) {
  const Place place(blockIdx.x * kRows, rows);
  Four<INPUT> in[kQuads];
  Four<ADDEND> other[kQuads];
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    if (!place.has(q)) continue;
    in[q] = input[place.at(q)];
    if (ADDED) other[q] = addend[of_addend.at(place, q)];
  }
  float v[kQuads][4], total[1] = {0};
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[q][i] = 0;
    if (!place.has(q)) continue;
    widen(in[q], v[q]);
    if (ADDED) {
      float f[4];
      widen(other[q], f);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[q][i] += f[i];
      const Four<SUM> rounded = narrow<SUM>(v[q]);
      if (ADDED == 1) sum[place.at(q)] = rounded;
      widen(rounded, v[q]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) total[0] += v[q][i];
  }
  add_row(total);
  const float mean = total[0] * (1.f / CHANNELS);
  float squares[1] = {0};
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    if (!place.has(q)) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[q][i] -= mean;
      squares[0] = fmaf(v[q][i], v[q][i], squares[0]);
    }
  }
  add_row(squares);
  const float scale = rsqrtf(squares[0] * (1.f / CHANNELS) + eps);
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    if (!place.has(q)) continue;
    const int column = place.column + q * kRowThreads;
    float w[4] = {1, 1, 1, 1}, b[4] = {0, 0, 0, 0}, out[4];
    if (weight != nullptr) widen(weight[column], w);
    if (bias != nullptr) widen(bias[column], b);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = fmaf(v[q][i] * scale, w[i], b[i]);
    normed[place.at(q)] = narrow<NORMED>(out);
  }
  if (saved != nullptr && place.inside && place.column == 0) {
    saved[place.row] = mean;
    saved[rows + place.row] = scale;
  }
}

// dnormed and dsum are the gradients of the two results. dsum, weight, dinput, daddend: or NULL.
// partial: [gridDim.x, 2, CHANNELS], unused if SUMS is 0. See Note [Gradients of a layer norm].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    add_layer_norm_gradient(const Four<NORMED>* __restrict__ dnormed, const Four<SUM>* __restrict__ dsum, const Four<SUM>* __restrict__ sum,
                            const float* __restrict__ saved, const Four<PARAMETER>* __restrict__ weight, Four<INPUT>* __restrict__ dinput,
                            Four<ADDEND>* __restrict__ daddend, float* __restrict__ partial, int rows) {
  float dweight[kQuads][4], dbias[kQuads][4];
  if (SUMS) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
#pragma unroll
      for (int i = 0; i < 4; ++i) dweight[q][i] = dbias[q][i] = 0;
    }
  }
  for (int first = blockIdx.x * kRows; first < rows; first += gridDim.x * kRows) {
    const Place place(first, rows);
    Four<NORMED> gradient[kQuads];
    Four<SUM> in[kQuads], skip[kQuads];
    float mean = 0, scale = 0;
    if (place.inside) {
      mean = saved[place.row];
      scale = saved[rows + place.row];
    }
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if (!place.has(q)) continue;
      gradient[q] = dnormed[place.at(q)];
      in[q] = sum[place.at(q)];
    }
    if (dsum != nullptr) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        if (place.has(q)) skip[q] = dsum[place.at(q)];
      }
    }
    // g is the gradient of the normalised value x.
    float g[kQuads][4], x[kQuads][4], sums[2] = {0, 0};
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if (!place.has(q)) continue;
      widen(gradient[q], g[q]);
      widen(in[q], x[q]);
      float factors[4] = {1, 1, 1, 1};
      if (weight != nullptr) widen(weight[place.column + q * kRowThreads], factors);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[q][i] = (x[q][i] - mean) * scale;
        if (SUMS) {
          dweight[q][i] = fmaf(g[q][i], x[q][i], dweight[q][i]);
          dbias[q][i] += g[q][i];
        }
        g[q][i] *= factors[i];
        sums[0] += g[q][i];
        sums[1] = fmaf(g[q][i], x[q][i], sums[1]);
      }
    }
    add_row(sums);
    const float a = sums[0] * (1.f / CHANNELS), b = sums[1] * (1.f / CHANNELS);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if (!place.has(q)) continue;
      float f[4] = {0, 0, 0, 0};
      if (dsum != nullptr) widen(skip[q], f);
#pragma unroll
      for (int i = 0; i < 4; ++i) f[i] = fmaf(scale, g[q][i] - a - x[q][i] * b, f[i]);
      if (dinput != nullptr) dinput[place.at(q)] = narrow<INPUT>(f);
      if (ADDED == 1 && daddend != nullptr) daddend[place.at(q)] = narrow<ADDEND>(f);
    }
  }
  if (!SUMS) return;
  const int column = threadIdx.x % kRowThreads, row = threadIdx.x / kRowThreads;
  float4* const out = reinterpret_cast<float4*>(partial) + static_cast<size_t>(blockIdx.x) * (2 * kColumns);
  // The sums of the block's rows, [kRows, 2, CHANNELS]. With one row they go to memory at once.
  __shared__ float4 of_rows[SUMS && kRows > 1 ? kRows * 2 * kColumns : 1];
  float4* const to = kRows > 1 ? of_rows + row * 2 * kColumns : out;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const int c = column + q * kRowThreads;
    if (!kFull && c >= kColumns) continue;
    to[c] = make_float4(dweight[q][0], dweight[q][1], dweight[q][2], dweight[q][3]);
    to[kColumns + c] = make_float4(dbias[q][0], dbias[q][1], dbias[q][2], dbias[q][3]);
  }
  if (kRows == 1) return;
  __syncthreads();
  for (int c = threadIdx.x; c < 2 * kColumns; c += THREADS) {
    float4 all = of_rows[c];
#pragma unroll 4
    for (int r = 1; r < kRows; ++r) {
      const float4 v = of_rows[r * 2 * kColumns + c];
      all.x += v.x; all.y += v.y; all.z += v.z; all.w += v.w;
    }
    out[c] = all;
  }
}

// Adds the sums of the blocks: [blocks, 2, CHANNELS]. A block of 256 threads makes 32 adjacent sums.
// dweight, dbias: or NULL.
extern "C" __global__ void __launch_bounds__(256) add_layer_norm_parameters(const float4* __restrict__ partial, float4* __restrict__ dweight,
                                                                           float4* __restrict__ dbias, int blocks) {
  constexpr int kLanes = 8, kGroups = 32;
  __shared__ float4 shared[kGroups * kLanes];
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes, c = blockIdx.x * kLanes + lane;
  float4 all = make_float4(0, 0, 0, 0);
  if (c < 2 * kColumns) {
#pragma unroll 4
    for (int b = group; b < blocks; b += kGroups) {
      const float4 v = partial[static_cast<size_t>(b) * (2 * kColumns) + c];
      all.x += v.x; all.y += v.y; all.z += v.z; all.w += v.w;
    }
  }
  shared[threadIdx.x] = all;
  __syncthreads();
  if (group > 0 || c >= 2 * kColumns) return;
#pragma unroll 8
  for (int g = 1; g < kGroups; ++g) {
    const float4 v = shared[g * kLanes + lane];
    all.x += v.x; all.y += v.y; all.z += v.z; all.w += v.w;
  }
  if (c < kColumns) {
    if (dweight != nullptr) dweight[c] = all;
  } else if (dbias != nullptr) {
    dbias[c - kColumns] = all;
  }
}
)cuda";

}  // namespace ct
