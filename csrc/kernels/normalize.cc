// streamtorch::normalize_images turns pixels into the images that a model reads. In one pass it
// flips and normalises them, and converts them to the dtype and the memory order of `out`.
//
//  out[n, c, h, w] = table[c, pixels[n, h, w', c]]
//
// w' is W-1-w if flips[n] is set, else w.
//
// `pixels` is contiguous uint8 [N, H, W, C], with C from 1 to 4. `flips` is bool [N], or absent.
// `table` is [C, 256], with the result for each pixel value in each channel. `table` has the
// dtype of `out`, which is a floating-point dtype.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/device.h"
#include "kernels/images.h"

// Note [Pixels become floats on the device]
//
// Pixels cross the bus as uint8, a quarter of the bytes of float32. One kernel flips, normalises
// and converts them. LibTorch's operators took three kernels and 0.19 ms for 128 images of
// 224x224, and rounded differently from torchvision.
//
// The kernel looks each pixel value up in a table. The host makes the table as torchvision
// computes the values. So images equal torchvision's to the bit on every device. The kernel needs
// to know only the size of the dtype.

namespace ct {
namespace {

using images::Geometry;
using images::kLevels;

// T is any type of the dtype's size, because the elements are only copied.
template <typename T>
void normalize_on_cpu(const uint8_t* pixels, const uint8_t* flips, const T* table, T* out, const Geometry& g) {
  const int64_t row_pixels = int64_t{g.width} * g.channels;
  for (int64_t n = 0; n < g.images; ++n) {
    const bool flip = flips != nullptr && flips[n] != 0;
    for (int64_t h = 0; h < g.height; ++h, pixels += row_pixels) {
      T* row = out + n * g.image + h * g.row;
      const uint8_t* pixel = flip ? pixels + row_pixels - g.channels : pixels;
      const int64_t step = flip ? -g.channels : g.channels;
      for (int64_t w = 0; w < g.width; ++w, pixel += step) {
        for (int64_t c = 0; c < g.channels; ++c) row[w * g.column + c * g.channel] = table[c * kLevels + pixel[c]];
      }
    }
  }
}

constexpr CudaProgram kProgram{"normalize", images::kText, R"cuda(
template <typename T>
__device__ void normalize(const unsigned char* pixels, const unsigned char* flips, const T* table, T* out, Geometry g) {
  __shared__ T values[kMaxChannels * kLevels];
  for (int i = threadIdx.x; i < g.channels * kLevels; i += blockDim.x) values[i] = table[i];
  __syncthreads();
  const int strips = (g.height + kRows - 1) / kRows;
  const int n = blockIdx.x / strips;
  const int top = blockIdx.x % strips * kRows;
  const int rows = min(kRows, g.height - top);
  const int channel = threadIdx.x % g.channels;
  const int row_pixels = g.width * g.channels;
  const bool flip = flips != nullptr && flips[n] != 0;
  pixels += (static_cast<long long>(n) * g.height + top) * row_pixels + channel;
  out += n * g.image + top * g.row + channel * g.channel;
  const T* value = values + channel * kLevels;
  for (int w = threadIdx.x / g.channels; w < g.width; w += blockDim.x / g.channels) {
    const unsigned char* from = pixels + (flip ? g.width - 1 - w : w) * g.channels;
    T* to = out + w * g.column;
    unsigned char pixel[kRows];  // all loads are under way before the first store
#pragma unroll
    for (int r = 0; r < kRows; ++r) pixel[r] = r < rows ? from[r * row_pixels] : 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) to[r * g.row] = value[pixel[r]];
    }
  }
}

#define KERNEL(name, T)                                                                                                \
  extern "C" __global__ void name(const unsigned char* pixels, const unsigned char* flips, const T* table, T* out, Geometry g) { \
    normalize(pixels, flips, table, out, g);                                                                          \
  }
KERNEL(normalize_2, unsigned short)
KERNEL(normalize_4, unsigned int)
KERNEL(normalize_8, unsigned long long)
)cuda"};

template <typename T>
void normalize_on_cpu(const at::Tensor& pixels, const uint8_t* flips, const at::Tensor& table, const at::Tensor& out, const Geometry& g) {
  normalize_on_cpu(static_cast<const uint8_t*>(pixels.const_data_ptr()), flips, static_cast<const T*>(table.const_data_ptr()),
                   static_cast<T*>(out.mutable_data_ptr()), g);
}

void normalize_images(const at::Tensor& pixels, const std::optional<at::Tensor>& flips, const at::Tensor& table, const at::Tensor& out) {
  images::check(pixels, flips, table, out);
  if (pixels.numel() == 0) return;
  Geometry g = images::geometry(pixels, out);
  const uint8_t* flip_data = images::data_of<uint8_t>(flips);
  const int64_t element = out.element_size();
  if (out.is_cuda()) {
    const void *from = pixels.const_data_ptr(), *values = table.const_data_ptr();
    void* to = out.mutable_data_ptr();
    void* arguments[] = {&from, &flip_data, &values, &to, &g};
    images::launch(kProgram, element == 2 ? "normalize_2" : element == 4 ? "normalize_4" : "normalize_8", out, g, arguments);
  } else if (element == 2) {
    normalize_on_cpu<uint16_t>(pixels, flip_data, table, out, g);
  } else if (element == 4) {
    normalize_on_cpu<uint32_t>(pixels, flip_data, table, out, g);
  } else {
    normalize_on_cpu<uint64_t>(pixels, flip_data, table, out, g);
  }
  out.unsafeGetTensorImpl()->bump_version();  //edge:normalize-counts TestBatch_LateBackward
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  images::define(library, "normalize_images(Tensor pixels, Tensor? flips, Tensor table, *, Tensor(a!) out) -> ()", "normalize_images", TORCH_FN(normalize_images));
}

}  // namespace
}  // namespace ct
