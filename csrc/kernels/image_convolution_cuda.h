// The CUDA text of the convolution of images: image_convolution.cc compiles and launches it.
//
// The text comes after the text of image_convolution_cells.h. It is compiled for one set of these
// macros:
//
//   DTYPE     BFloat16, Half or Float: the dtype of the images, the weight and its gradient
//   CELL      BFloat16 or Half: the dtype of the cells
//   CHANNELS  1 to 4: the number of channels of the images
#pragma once

namespace ct {

inline constexpr char kImageConvolutionText[] = R"cuda(
constexpr int kCell = cell_channels(CHANNELS);

struct alignas(16) Eight { unsigned at[4]; };  // eight elements of CELL

// A thread makes one cell. kPaired: the channels 2 * i and 2 * i + 1 of each cell lie side by side in
// memory, and either both or none of them are in the image. A thread reads such a pair at once.
template <bool kPaired>
__device__ __forceinline__ void cells_of_images(const DTYPE::Raw* __restrict__ in, Eight* __restrict__ out, const Images& g) {
  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= g.count * g.rows * g.columns) return;
  const Cell cell = cell_of(g, number);
  Vector<DTYPE, 2> v[kCell / 2];
#pragma unroll
  for (int i = 0; i < kCell / 2; ++i) {
    v[i].at[0] = v[i].at[1] = 0;
    const int from = pixel_of<CHANNELS>(g, cell, 2 * i);
    if (kPaired) {
      if (from >= 0) v[i] = *reinterpret_cast<const Vector<DTYPE, 2>*>(in + from);
    } else {
      const int next = pixel_of<CHANNELS>(g, cell, 2 * i + 1);
      if (from >= 0) v[i].at[0] = in[from];
      if (next >= 0) v[i].at[1] = in[next];
    }
  }
#pragma unroll
  for (int i = 0; i < kCell / 8; ++i) {
    Eight all;
#pragma unroll
    for (int k = 0; k < 4; ++k) all.at[k] = CELL::narrow(DTYPE::widen(v[4 * i + k].at[0]), DTYPE::widen(v[4 * i + k].at[1]));
    out[number * (kCell / 8) + i] = all;
  }
}

extern "C" __global__ void image_cells(const DTYPE::Raw* in, Eight* out, Images g) { cells_of_images<false>(in, out, g); }
extern "C" __global__ void image_cells_paired(const DTYPE::Raw* in, Eight* out, Images g) { cells_of_images<true>(in, out, g); }

extern "C" __global__ void weight_cells(const DTYPE::Raw* __restrict__ in, CELL::Raw* __restrict__ out, Weight g) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= g.outputs * g.window * g.window * kCell) return;
  const int from = element_of<CHANNELS>(g, thread / kCell, thread % kCell);
  out[thread] = CELL::narrow(from < 0 ? 0.f : DTYPE::widen(in[from]));
}

// in: the gradient of the cells of the kernel. g: the numbers of `out`, the gradient of the weight.
extern "C" __global__ void weight_gradient(const CELL::Raw* __restrict__ in, DTYPE::Raw* __restrict__ out, Weight g) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= g.outputs * g.kernel * g.kernel * CHANNELS) return;
  const Place place = place_of<CHANNELS>(g, thread);
  out[place.in_weight] = DTYPE::narrow(CELL::widen(in[place.in_cells]));
}
)cuda";

}  // namespace ct
