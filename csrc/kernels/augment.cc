// streamtorch::augment_images augments a batch of images. Each image has its own list of steps.
// The operator reads an image a few times and writes it once.
//
// Image m of `out` is image n = m % N of `pixels` after the steps steps[m, 0], steps[m, 1] and so
// on. If flips[n] is set, the image is flipped left to right before the steps. `pixels` is
// contiguous uint8 [N, H, W, C], with C 1 or 3. `out` is contiguous uint8 [M, H, W, C], where M is
// a multiple of N, and shares no memory with `pixels`. `flips` is bool [N], or absent. `steps` is
// float32 [M, S, 8], with S at most 8. A step is a kind and the kind's values, as
// cgotorch/images/step.go lists them. A kind that is not listed there changes nothing.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/augment_pixels.h"
#include "kernels/images.h"
#include "kernels/level.h"
#include "kernels/variants.h"

// Note [Augmentations run on the device]
//
// The host chooses the steps of an image by random numbers, which depend only on the image's key.
// The host sends the steps with the pixels. The kernel needs nothing else. One block makes one
// image. It reads the image once for each step that needs the whole image (contrast, equalise,
// autocontrast), and then writes it once. Steps such as brightness are tables of 256 values.
//
// One source says what a step makes of a pixel, and both g++ and NVRTC compile it. Neither
// compiler fuses a multiplication with an addition, except where PyTorch does. So the CPU and
// CUDA give the same bytes. If parameters were drawn on the device, a copy of 160 bytes for each
// image would be saved. But the device's sines and roots would have to equal the host's.

namespace ct {
namespace {

using augment::kLevels;
using augment::kMaxSteps;
using augment::Source;
using augment::Step;

struct Batch {
  const uint8_t* pixels;
  const uint8_t* flips;  // or NULL
  const Step* steps;
  uint8_t* out;
  int32_t images;  // of `out`
  int32_t sources, height, width, channels, count;
};

// The CPU works on one row at a time, with the channels one after another. It does one step after
// another on the row, so that the compiler can use vector instructions. All of the code is
// inlined into two callers. The first caller is compiled for processors with a fused
// multiply-add. In the second caller fmaf is a function call.
#define CT_INLINE inline __attribute__((always_inline))

template <int C>
CT_INLINE void read_row(const Source& s, int y, uint8_t* row) {
  const int width = s.width;
  const uint8_t* from = s.pixels + static_cast<int64_t>(y) * width * C;
  const int64_t step = s.flip ? -C : C;
  if (s.flip) from += int64_t{C} * (width - 1);
  for (int c = 0; c < C; ++c) {
    for (int x = 0; x < width; ++x) row[c * width + x] = from[x * step + c];
  }
}

// first_row reads row y, and does the step if the step moves pixels or sharpens. The buffer
// `around` has room for three rows.
template <int C>
CT_INLINE void first_row(const Source& s, const Step& step, int y, uint8_t* __restrict row, uint8_t* __restrict around) {
  const int kind = kind_of(step), width = s.width, size = C * width;
  if (augment::moves(kind)) {
    for (int x = 0; x < width; ++x) {
      const auto p = augment::moved<C>(s, step, y, x);
      for (int c = 0; c < C; ++c) row[c * width + x] = p.channel[c];
    }
    return;
  }
  read_row<C>(s, y, row);
  if (kind != augment::kSharpness || y == 0 || y == s.height - 1) return;
  for (int i = 0; i < 3; ++i) read_row<C>(s, y - 1 + i, around + i * size);
  for (int c = 0; c < C; ++c) {
    const uint8_t *above = around + c * width, *here = above + size, *below = here + size;
    for (int x = 1; x < width - 1; ++x) {
      const int sum = above[x - 1] + above[x] + above[x + 1] + here[x - 1] + 5 * here[x] + here[x + 1] + below[x - 1] + below[x] + below[x + 1];
      row[c * width + x] = augment::sharpened(here[x], sum, step);
    }
  }
}

template <int C>
CT_INLINE augment::Pixel<C> pixel_of(const uint8_t* row, int width, int x) {
  augment::Pixel<C> p;
  for (int c = 0; c < C; ++c) p.channel[c] = row[c * width + x];
  return p;
}

template <int C>
CT_INLINE void step_row(const Step& step, const uint8_t* __restrict table, uint8_t* __restrict row, int width) {
  const int kind = kind_of(step);
  if (augment::has_table(kind)) {
    for (int c = 0; c < C; ++c) {
      for (int x = 0; x < width; ++x) row[c * width + x] = table[c * kLevels + row[c * width + x]];
    }
  } else if (C == 3 && kind == augment::kSaturation) {
    for (int x = 0; x < width; ++x) {
      const auto p = augment::saturated<C>(pixel_of<C>(row, width, x), step);
      for (int c = 0; c < C; ++c) row[c * width + x] = p.channel[c];
    }
  } else if (C == 3 && kind == augment::kHue) {
    for (int x = 0; x < width; ++x) {
      const auto p = augment::turned<C>(pixel_of<C>(row, width, x), step);
      for (int c = 0; c < C; ++c) row[c * width + x] = p.channel[c];
    }
  }
}

template <int C>
CT_INLINE void row_after(const Source& s, const Step* steps, int count, const uint8_t* tables, int y, uint8_t* row) {
  first_row<C>(s, count > 0 ? steps[0] : Step{}, y, row, row + C * s.width);
  for (int k = 0; k < count; ++k) step_row<C>(steps[k], tables + k * C * kLevels, row, s.width);
}

// augment_image makes image m. The buffer `row` has room for four rows.
template <int C>
CT_INLINE void augment_image(const Batch& b, int64_t m, uint8_t* row) {
  const int64_t area = int64_t{b.height} * b.width, n = m % b.sources;
  const Source source{b.pixels + n * area * C, b.height, b.width, b.flips != nullptr && b.flips[n] != 0};
  Step steps[kMaxSteps];
  for (int k = 0; k < b.count; ++k) steps[k] = augment::ready(b.steps[m * b.count + k], b.height, b.width);
  uint8_t tables[kMaxSteps * C * kLevels];
  for (int k = 0; k < b.count; ++k) {
    const int kind = kind_of(steps[k]);
    if (!augment::has_table(kind)) continue;
    int histogram[C][kLevels] = {};
    augment::Summary summary[C] = {};
    uint64_t greys = 0;
    for (int y = 0; augment::needs_image(kind) && y < b.height; ++y) {
      row_after<C>(source, steps, k, tables, y, row);
      if (augment::needs_histogram(kind)) {
        for (int i = 0; i < C * b.width; ++i) ++histogram[i / b.width][row[i]];
      } else {
        uint32_t sum = 0;
        for (int x = 0; x < b.width; ++x) sum += static_cast<uint32_t>(static_cast<int>(augment::grey<C>(pixel_of<C>(row, b.width, x))));
        greys += sum;
      }
    }
    if (augment::needs_histogram(kind)) {
      for (int c = 0; c < C; ++c) summary[c] = augment::summarize(histogram[c]);
    }
    const float mean = static_cast<float>(greys) / static_cast<float>(area);
    for (int c = 0; c < C; ++c) {
      uint8_t* table = tables + (k * C + c) * kLevels;
      for (int v = 0; v < kLevels; ++v) table[v] = augment::entry(steps[k], mean, summary[c], histogram[c], v);
    }
  }
  uint8_t* out = b.out + m * area * C;
  for (int y = 0; y < b.height; ++y, out += b.width * C) {
    row_after<C>(source, steps, b.count, tables, y, row);
    for (int c = 0; c < C; ++c) {
      for (int x = 0; x < b.width; ++x) out[x * C + c] = row[c * b.width + x];
    }
  }
}

template <int C>
CT_INLINE void augment_images(const Batch& b) {
  std::vector<uint8_t> row(size_t{4} * C * static_cast<size_t>(b.width));
  for (int64_t m = 0; m < b.images; ++m) augment_image<C>(b, m, row.data());
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) void augment_on_avx2(const Batch& b) { b.channels == 1 ? augment_images<1>(b) : augment_images<3>(b); }
#endif

void augment_on_cpu(const Batch& b) {
#ifdef __x86_64__
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2) return augment_on_avx2(b);
#endif
  b.channels == 1 ? augment_images<1>(b) : augment_images<3>(b);
}

// One block makes one image, because a step may need the whole image. The block passes over the
// image once for each step that needs the whole image, and once to write the result. This takes
// two or three times as long as one pass over the memory. No intermediate image is stored.
constexpr int kThreads = 1024;
constexpr char kSource[] = R"cuda(
template <int C>
__device__ __forceinline__ void augment(const unsigned char* pixels, const unsigned char* flips, const Step* steps, int count, unsigned char* out,
                                        int sources, int height, int width) {
  __shared__ Step step[kMaxSteps];
  __shared__ unsigned char tables[kMaxSteps * C * kLevels];
  __shared__ int histogram[C * kLevels];
  __shared__ Summary summary[C];
  __shared__ unsigned long long greys;
  const long long m = blockIdx.x;
  const long long n = m % sources;
  const int thread = threadIdx.x;
  const int threads = blockDim.x;
  const int area = height * width;
  const Source source = {pixels + n * area * C, height, width, flips != nullptr && flips[n] != 0};
  for (int k = thread; k < count; k += threads) step[k] = ready(steps[m * count + k], height, width);
  __syncthreads();
  for (int k = 0; k < count; ++k) {
    const int kind = kind_of(step[k]);
    if (!has_table(kind)) continue;
    if (needs_image(kind)) {
      for (int i = thread; i < C * kLevels; i += threads) histogram[i] = 0;
      if (thread == 0) greys = 0;
      __syncthreads();
      unsigned long long sum = 0;
      for (int i = thread; i < area; i += threads) {
        const Pixel<C> p = after<C>(source, step, k, tables, i / width, i % width);
        if (needs_histogram(kind)) {
          for (int c = 0; c < C; ++c) atomicAdd(&histogram[c * kLevels + p.channel[c]], 1);
        } else {
          sum += static_cast<unsigned long long>(grey<C>(p));
        }
      }
      if (sum > 0) atomicAdd(&greys, sum);
      __syncthreads();
      if (needs_histogram(kind) && thread < C) summary[thread] = summarize(histogram + thread * kLevels);
      __syncthreads();
    }
    const float mean = kind == kContrast ? static_cast<float>(greys) / static_cast<float>(area) : 0.0f;
    for (int i = thread; i < C * kLevels; i += threads) {
      const int c = i / kLevels;
      tables[k * C * kLevels + i] = entry(step[k], mean, summary[c], histogram + c * kLevels, i % kLevels);
    }
    __syncthreads();
  }
  out += m * area * C;
  for (int i = thread; i < area; i += threads) {
    const Pixel<C> p = after<C>(source, step, count, tables, i / width, i % width);
    for (int c = 0; c < C; ++c) out[static_cast<long long>(i) * C + c] = p.channel[c];
  }
}

#define KERNEL(name, C)                                                                                                           \
  extern "C" __global__ void __launch_bounds__(1024) name(const unsigned char* pixels, const unsigned char* flips, const Step* steps, \
                                                          int count, unsigned char* out, int sources, int height, int width) {    \
    augment<C>(pixels, flips, steps, count, out, sources, height, width);                                                         \
  }
KERNEL(augment_1, 1)
KERNEL(augment_3, 3)
)cuda";

const CudaProgram& program() {
  return variant_of(0, [] { return Variant{"augment", std::string(kLevelText).append(augment::kPixelsText), kSource}; });
}

void check(const at::Tensor& pixels, const std::optional<at::Tensor>& flips, const at::Tensor& steps, const at::Tensor& out) {
  images::check_device(out, {&pixels, images::pointer(flips), &steps});
  images::check_pixels(pixels, flips);
  const int64_t n = pixels.size(0), c = pixels.size(3);
  TORCH_CHECK(c == 1 || c == 3, "pixels must have 1 or 3 channels; got ", pixels.sizes());
  const int64_t m = out.dim() == 4 && n > 0 ? out.size(0) / n * n : n;
  TORCH_CHECK(out.dim() == 4 && out.size(0) == m, "out must have as many images as pixels, or a multiple; got ", out.sizes(), " for ", pixels.sizes());
  images::check_bytes(out, {m, pixels.size(1), pixels.size(2), c}, pixels);
  TORCH_CHECK(steps.scalar_type() == at::kFloat && steps.dim() == 3 && steps.size(0) == m && steps.size(1) <= kMaxSteps &&
                  steps.size(2) == 1 + augment::kStepValues && steps.is_contiguous(),
              "steps must be contiguous Float [", m, ", up to ", kMaxSteps, ", ", 1 + augment::kStepValues, "]; got ", steps.scalar_type(),
              " ", steps.sizes());
}

void augment_batch(const at::Tensor& pixels, const std::optional<at::Tensor>& flips, const at::Tensor& steps, const at::Tensor& out) {
  check(pixels, flips, steps, out);
  if (out.numel() == 0) return;
  Batch b{static_cast<const uint8_t*>(pixels.const_data_ptr()),
          images::data_of<uint8_t>(flips),
          static_cast<const Step*>(steps.const_data_ptr()),
          static_cast<uint8_t*>(out.mutable_data_ptr()),
          static_cast<int32_t>(out.size(0)),
          static_cast<int32_t>(pixels.size(0)),
          static_cast<int32_t>(pixels.size(1)),
          static_cast<int32_t>(pixels.size(2)),
          static_cast<int32_t>(pixels.size(3)),
          static_cast<int32_t>(steps.size(1))};
  if (out.is_cuda()) {
    void* arguments[] = {&b.pixels, &b.flips, &b.steps, &b.count, &b.out, &b.sources, &b.height, &b.width};
    cuda().launch(program(), b.channels == 1 ? "augment_1" : "augment_3", images::stream_of(out), static_cast<unsigned>(b.images), kThreads, arguments);
  } else {
    augment_on_cpu(b);
  }
  out.unsafeGetTensorImpl()->bump_version();
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  images::define(library, "augment_images(Tensor pixels, Tensor? flips, Tensor steps, *, Tensor(a!) out) -> ()", "augment_images", TORCH_FN(augment_batch));
}

}  // namespace
}  // namespace ct
