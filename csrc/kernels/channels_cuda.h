// The CUDA text of the operators on channels: channels.cc compiles and launches it.
//
// The text is compiled for one set of these macros:
//
//   DTYPE       BFloat16, Half or Float
//   PARAMETER   the same, of a shift, a scale or a bias; undefined in a text without channel_affine
//   NONE, RELU, RELU6, SILU, HARDSWISH, GELU
//               1 for the activation, 0 for the others
#pragma once

namespace ct {

// A group is eight adjacent channels of one pixel. A pixel has `columns` groups.
inline constexpr char kChannelsText[] = R"cuda(
using Eight = Vector<DTYPE, 8>;

// Half of erfc(a), a >= 0, with an error of 1e-7. Formula 7.1.26 of Abramowitz and Stegun, Handbook
// of Mathematical Functions.
__device__ __forceinline__ float half_erfc(float a) {
  const float t = __fdividef(1.f, fmaf(.3275911f, a, 1.f));
  const float p = fmaf(fmaf(fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f), t, -.284496736f), t, .254829592f);
  return .5f * p * t * __expf(-a * a);
}

// In bfloat16 the error is below a rounding where z is above -5. Below, where the result is smaller
// than 2e-6, the error is at most 1 % of it.
__device__ __forceinline__ float gelu(float z, Float) { return .5f * z * (1 + erff(z * 0.70710678f)); }
__device__ __forceinline__ float gelu(float z, Half) { return gelu(z, Float()); }
__device__ __forceinline__ float gelu(float z, BFloat16) {
  const float tail = half_erfc(fabsf(z) * 0.70710678f);
  return z * (z < 0 ? tail : 1 - tail);
}

__device__ __forceinline__ float activation(float z) {
  if (RELU) return z <= 0 ? 0 : z;
  if (RELU6) return z <= 0 ? 0 : z >= 6 ? 6 : z;
  if (SILU) return z / (1 + __expf(-z));
  if (HARDSWISH) return z * (z <= -3 ? 0 : z >= 3 ? 6 : z + 3) * (1.f / 6);
  if (GELU) return gelu(z, DTYPE());
  return z;
}

#ifdef PARAMETER
// `to` may be the input.
extern "C" __global__ void channel_affine(const Eight* input, const Vector<PARAMETER, 8>* __restrict__ shift,
                                          const Vector<PARAMETER, 8>* __restrict__ scale, const Vector<PARAMETER, 8>* __restrict__ bias,
                                          const Eight* __restrict__ addend, Eight* to, unsigned columns, unsigned groups) {
  for (unsigned k = blockIdx.x * blockDim.x + threadIdx.x; k < groups; k += gridDim.x * blockDim.x) {
    float v[8], f[8];
    const Eight in = input[k];
    Eight other;
    if (addend != nullptr) other = addend[k];
    widen(in, v);
    if (shift != nullptr) {
      widen(shift[k % columns], f);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] += f[i];
    }
    if (scale != nullptr) {
      widen(scale[k % columns], f);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] *= f[i];
    }
    if (bias != nullptr) {
      widen(bias[k % columns], f);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] += f[i];
    }
    if (addend != nullptr) {
      widen(other, f);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] += f[i];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = activation(v[i]);
    to[k] = narrow<DTYPE>(v);
  }
}
#endif

// Adds up a chunk of an image's pixels for `lanes` columns. It writes the sums to partial, [image,
// chunk, channel], or with one chunk the means to `to`, [image, channel]. The other pointer is
// NULL. A block adds in a fixed order, so equal inputs give equal bits.
extern "C" __global__ void __launch_bounds__(256) channel_sums(const Eight* __restrict__ images, Eight* __restrict__ to, float* __restrict__ partial,
                                                              int pixels, int columns, int lanes, int tiles, int chunks) {
  __shared__ float shared[256 * 8];
  const int rows = blockDim.x / lanes, lane = threadIdx.x % lanes, row = threadIdx.x / lanes;
  const int chunk = blockIdx.x % chunks, tile = blockIdx.x / chunks % tiles, image = blockIdx.x / chunks / tiles;
  const int column = tile * lanes + lane, each = (pixels + chunks - 1) / chunks, last = min((chunk + 1) * each, pixels);
  float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  if (column < columns && row < rows) {
#pragma unroll 4
    for (int p = chunk * each + row; p < last; p += rows) {
      float v[8];
      widen(images[(static_cast<size_t>(image) * pixels + p) * columns + column], v);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += v[i];
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) shared[threadIdx.x * 8 + i] = sums[i];
  __syncthreads();
  if (row > 0 || column >= columns) return;
  for (int r = 1; r < rows; ++r) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] += shared[(r * lanes + lane) * 8 + i];
  }
  if (to != nullptr) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] /= pixels;
    to[image * columns + column] = narrow<DTYPE>(sums);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) partial[(static_cast<size_t>(image) * chunks + chunk) * columns * 8 + column * 8 + i] = sums[i];
}

// Adds the sums of the chunks. count: of the means.
extern "C" __global__ void channel_means(const float* __restrict__ partial, DTYPE::Raw* __restrict__ to, int channels, int chunks, int pixels, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float* const from = partial + static_cast<size_t>(i / channels) * chunks * channels + i % channels;
  float sum = 0;
#pragma unroll 8
  for (int k = 0; k < chunks; ++k) sum += from[static_cast<size_t>(k) * channels];
  to[i] = DTYPE::narrow(sum / pixels);
}

// Returns v as it is after it was stored.
__device__ __forceinline__ float rounded(float v) { return DTYPE::widen(DTYPE::narrow(v)); }

// Makes the factors of one image, [image, channel]. first: [squeezed, channels], second: [channels,
// squeezed]. The biases may be NULL. `shared` holds the means, the squeezed numbers, and the sums of
// the threads. Of the means it holds the first four of each eight, and then the other four, so that
// adjacent threads read adjacent numbers.
extern "C" __global__ void __launch_bounds__(1024) excite(const float* __restrict__ partial, const Eight* __restrict__ first,
                                                         const DTYPE::Raw* __restrict__ first_bias, const DTYPE::Raw* __restrict__ second,
                                                         const DTYPE::Raw* __restrict__ second_bias, DTYPE::Raw* __restrict__ to, int channels,
                                                         int squeezed, int chunks, int pixels) {
  extern __shared__ __align__(16) float shared[];
  float* const means = shared;
  float* const hidden = means + channels;
  float* const sums = hidden + squeezed;
  const int thread = threadIdx.x, threads = blockDim.x, lane = thread % 32, columns = channels / 8;
  const float* const from = partial + static_cast<size_t>(blockIdx.x) * chunks * channels;
  const int parts = max(threads / channels, 1);
  if (parts > 1) {
    float sum = 0;
    if (thread < parts * channels) {
#pragma unroll 4
      for (int k = thread / channels; k < chunks; k += parts) sum += from[static_cast<size_t>(k) * channels + thread % channels];
    }
    sums[thread] = sum;
    __syncthreads();
  }
  for (int c = thread; c < channels; c += threads) {
    float sum = 0;
    if (parts > 1) {
      for (int k = 0; k < parts; ++k) sum += sums[k * channels + c];
    } else {
#pragma unroll 4
      for (int k = 0; k < chunks; ++k) sum += from[static_cast<size_t>(k) * channels + c];
    }
    means[(c % 8 / 4 * columns + c / 8) * 4 + c % 4] = rounded(sum / pixels);
  }
  __syncthreads();
  for (int s = thread / 32; s < squeezed; s += threads / 32) {
    float sum = 0;
#pragma unroll 5
    for (int k = lane; k < columns; k += 32) {
      float w[8];
      widen(first[static_cast<size_t>(s) * columns + k], w);
      const float4 a = reinterpret_cast<const float4*>(means)[k], b = reinterpret_cast<const float4*>(means)[columns + k];
      sum = fmaf(w[0], a.x, fmaf(w[1], a.y, fmaf(w[2], a.z, fmaf(w[3], a.w, sum))));
      sum = fmaf(w[4], b.x, fmaf(w[5], b.y, fmaf(w[6], b.z, fmaf(w[7], b.w, sum))));
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (lane == 0) hidden[s] = rounded(activation(rounded(first_bias != nullptr ? sum + DTYPE::widen(first_bias[s]) : sum)));
  }
  __syncthreads();
  // Eight threads work on a channel, so that adjacent threads read adjacent numbers.
  constexpr int kSharing = 8;
#pragma unroll 3
  for (int from_channel = 0; from_channel < channels; from_channel += threads / kSharing) {
    const int c = from_channel + thread / kSharing;
    float sum = 0;
    if (c < channels) {
      const DTYPE::Raw* const row = second + static_cast<size_t>(c) * squeezed;
      if (squeezed % 2 == 0) {
#pragma unroll 4
        for (int s = thread % kSharing * 2; s < squeezed; s += 2 * kSharing) {
          float w[2];
          widen(*reinterpret_cast<const Vector<DTYPE, 2>*>(row + s), w);
          sum = fmaf(w[0], hidden[s], fmaf(w[1], hidden[s + 1], sum));
        }
      } else {
        for (int s = thread % kSharing; s < squeezed; s += kSharing) sum = fmaf(DTYPE::widen(row[s]), hidden[s], sum);
      }
    }
#pragma unroll
    for (int distance = kSharing / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (c >= channels || thread % kSharing != 0) continue;
    if (second_bias != nullptr) sum += DTYPE::widen(second_bias[c]);
    to[static_cast<size_t>(blockIdx.x) * channels + c] = DTYPE::narrow(1 / (1 + __expf(-rounded(sum))));
  }
}
)cuda";

}  // namespace ct
