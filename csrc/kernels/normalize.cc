// Pixels to the images that a model reads: flip, normalise, cast and layout in one pass over the memory.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/device.h"
#include "core/exec.h"
#include "core/tensor.h"
#include "kernels/images.h"

namespace ct {
namespace {

using images::Geometry;
using images::kLevels;

// The numbers are not looked at, so that what matters of the dtype is its size.
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
    unsigned char pixel[kRows];  // all loads are on their way before the first store
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

void normalize_on_cuda(const void* pixels, const void* flips, const void* table, void* out, int64_t element, Geometry g, c10::Stream stream) {
  const char* kernel = element == 2 ? "normalize_2" : element == 4 ? "normalize_4" : "normalize_8";
  void* arguments[] = {&pixels, &flips, &table, &out, &g};
  images::launch(kProgram, kernel, stream, g, arguments);
}

template <typename T>
void normalize_on_cpu(const at::Tensor& pixels, const uint8_t* flips, const at::Tensor& table, const at::Tensor& out, const Geometry& g) {
  normalize_on_cpu(static_cast<const uint8_t*>(pixels.const_data_ptr()), flips, static_cast<const T*>(table.const_data_ptr()),
                   static_cast<T*>(out.mutable_data_ptr()), g);
}

void normalize(const at::Tensor& pixels, const at::Tensor* flips, const at::Tensor& table, const at::Tensor& out, c10::Stream stream) {
  const Geometry g = images::geometry(pixels, out);
  const auto* flip_data = flips == nullptr ? nullptr : static_cast<const uint8_t*>(flips->const_data_ptr());
  const int64_t element = out.element_size();
  if (out.is_cuda()) {
    normalize_on_cuda(pixels.const_data_ptr(), flip_data, table.const_data_ptr(), out.mutable_data_ptr(), element, g, stream);
  } else if (element == 2) {
    normalize_on_cpu<uint16_t>(pixels, flip_data, table, out, g);
  } else if (element == 4) {
    normalize_on_cpu<uint32_t>(pixels, flip_data, table, out, g);
  } else {
    normalize_on_cpu<uint64_t>(pixels, flip_data, table, out, g);
  }
}

}  // namespace
}  // namespace ct

extern "C" ct_status* ct_normalize_images(ct_exec x, const ct_tensor* pixels, const ct_tensor* flips, const ct_tensor* table,
                                          const ct_tensor* out) noexcept {
  return ct::executed(x, [&] {
    const at::Tensor& from = ct::deref(pixels, "pixels").tensor;
    const at::Tensor& to = ct::deref(out, "out").tensor;
    const at::Tensor& values = ct::deref(table, "table").tensor;
    ct::use_here({pixels, flips, table, out}, *x.stream);
    ct::images::check(from, flips == nullptr ? nullptr : &flips->tensor, values, to);
    if (from.numel() == 0) return;
    constexpr const char* op = "NormalizeImages";
    for (const ct_tensor* tensor : {pixels, flips, table}) {
      if (tensor != nullptr) ct::checker::reads(op, tensor->tensor);
    }
    ct::checker::writes(op, to);
    ct::normalize(from, flips == nullptr ? nullptr : &flips->tensor, values, to, x.stream->stream);
    to.unsafeGetTensorImpl()->bump_version();
  });
}
