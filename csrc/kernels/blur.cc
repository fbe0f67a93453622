// streamtorch::blur_images blurs each image of a batch by a Gaussian of its own.
//
// `pixels` and `out` are contiguous uint8 [N, H, W, C], with C from 1 to 4, and share no memory.
// `sigmas` is contiguous float32 [N, 2]: the standard deviations down and across, in pixels. One
// that is not above 0 does not blur that way. The kernel has `rows` x `columns` pixels. Both are
// odd and at most kMaxTaps. Beyond the border the image is reflected, so rows / 2 is less than H,
// and columns / 2 is less than W.

#include <ATen/core/Tensor.h>
#include <math.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/blur_taps.h"
#include "kernels/border.h"
#include "kernels/images.h"
#include "kernels/level.h"
#include "kernels/variants.h"

// Note [Blurring in two passes]
//
// A Gaussian of two dimensions is a product of two of one dimension. So the rows are blurred
// first, and the columns of the result after them. For a kernel of 23 x 23 pixels a pixel takes 46
// multiplications instead of 529. The result between the passes stays float32, and only the end is
// rounded. torchvision adds the 529 products in float32. A sum near a half may therefore round
// to the neighbouring level.

namespace ct {
namespace {

using blur::kMaxTaps;

struct Batch {
  const uint8_t* pixels;
  const float* sigmas;
  uint8_t* out;
  int images, height, width, channels, rows, columns;
};

// Adds `tap` times the elements of `from` to `sums`.
#define CT_INLINE inline __attribute__((always_inline))
CT_INLINE void add(float* __restrict sums, const float* __restrict from, float tap, int count) {
  for (int i = 0; i < count; ++i) sums[i] += tap * from[i];
}

CT_INLINE void blur_images(const Batch& b) {
  const int line = b.width * b.channels, side = b.columns / 2;
  std::vector<float> padded(static_cast<size_t>(line + 2 * side * b.channels)), sums(static_cast<size_t>(line));
  std::vector<float> middle(static_cast<size_t>(b.height) * static_cast<size_t>(line));  // after the first pass
  float down[kMaxTaps], across[kMaxTaps];
  for (int64_t n = 0; n < b.images; ++n) {
    for (int i = 0; i < b.rows; ++i) down[i] = blur::tap_of(i, b.rows, b.sigmas[2 * n]);
    for (int i = 0; i < b.columns; ++i) across[i] = blur::tap_of(i, b.columns, b.sigmas[2 * n + 1]);
    const uint8_t* from = b.pixels + n * b.height * line;
    for (int y = 0; y < b.height; ++y) {
      for (int x = -side; x < b.width + side; ++x) {
        const uint8_t* pixel = from + y * line + border::source_of(x, b.width, border::kReflect) * b.channels;
        std::copy(pixel, pixel + b.channels, padded.data() + (x + side) * b.channels);
      }
      float* row = middle.data() + static_cast<int64_t>(y) * line;
      std::fill(row, row + line, 0.0f);
      for (int i = 0; i < b.columns; ++i) add(row, padded.data() + i * b.channels, across[i], line);
    }
    uint8_t* to = b.out + n * b.height * line;
    for (int y = 0; y < b.height; ++y, to += line) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int i = 0; i < b.rows; ++i) {
        const int row = border::source_of(y + i - b.rows / 2, b.height, border::kReflect);
        add(sums.data(), middle.data() + static_cast<int64_t>(row) * line, down[i], line);
      }
      for (int i = 0; i < line; ++i) to[i] = clamped(rintf(sums[static_cast<size_t>(i)]));
    }
  }
}

#ifdef __x86_64__
__attribute__((target("avx2"))) void blur_on_avx2(const Batch& b) { blur_images(b); }
#endif

void blur_on_cpu(const Batch& b) {
#ifdef __x86_64__
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return blur_on_avx2(b);
#endif
  blur_images(b);
}

// One block makes a tile of one image. A column of a tile is one channel of one column of pixels.
constexpr int kThreads = 256;
constexpr char kSource[] = R"cuda(
extern "C" __global__ void __launch_bounds__(256) blur(const unsigned char* pixels, const float* sigmas, unsigned char* out, int height, int width,
                                                       int channels, int rows, int columns) {
  __shared__ float down[kMaxTaps];
  __shared__ float across[kMaxTaps];
  __shared__ float middle[(kTileRows + kMaxTaps - 1) * kTileColumns];
  const int line = width * channels;
  const int tiles_across = (line + kTileColumns - 1) / kTileColumns;
  const int tiles = (height + kTileRows - 1) / kTileRows * tiles_across;
  const int tile = blockIdx.x % tiles;
  const long long n = blockIdx.x / tiles;
  const int top = tile / tiles_across * kTileRows;
  const int left = tile % tiles_across * kTileColumns;
  const int bottom = min(top + kTileRows, height);
  for (int i = threadIdx.x; i < rows; i += blockDim.x) down[i] = tap_of(i, rows, sigmas[2 * n]);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) across[i] = tap_of(i, columns, sigmas[2 * n + 1]);
  __syncthreads();
  pixels += n * height * line;
  out += n * height * line;
  const int first = top - rows / 2;
  const int lines = bottom + rows / 2 - first;
  for (int i = threadIdx.x; i < lines * kTileColumns; i += blockDim.x) {
    const int place = left + i % kTileColumns;
    if (place >= line) continue;
    const unsigned char* from = pixels + source_of(first + i / kTileColumns, height, kReflect) * line + place % channels;
    float sum = 0.0f;
    for (int k = 0; k < columns; ++k) sum += across[k] * from[source_of(place / channels + k - columns / 2, width, kReflect) * channels];
    middle[i] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < (bottom - top) * kTileColumns; i += blockDim.x) {
    const int place = left + i % kTileColumns;
    if (place >= line) continue;
    float sum = 0.0f;
    for (int k = 0; k < rows; ++k) sum += down[k] * middle[i + k * kTileColumns];
    out[(top + i / kTileColumns) * line + place] = clamped(rintf(sum));
  }
}
)cuda";

const CudaProgram& program() {
  return variant_of(0, [] { return Variant{"blur", std::string(kLevelText).append(border::kBorderText).append(blur::kTapsText), kSource}; });
}

void check_taps(const char* what, int64_t taps, const char* side, int64_t size) {
  TORCH_CHECK(taps >= 1 && taps <= kMaxTaps && taps % 2 == 1, what, " must be odd and from 1 to ", kMaxTaps, "; got ", taps);
  TORCH_CHECK(size == 0 || taps / 2 < size, what, " must be at most ", 2 * size - 1, " for images of ", side, " ", size, "; got ", taps);
}

void blur_batch(const at::Tensor& pixels, const at::Tensor& sigmas, int64_t rows, int64_t columns, const at::Tensor& out) {
  images::check_device(out, {&pixels, &sigmas});
  images::check_pixels(pixels, std::nullopt);
  const int64_t n = pixels.size(0), h = pixels.size(1), w = pixels.size(2), c = pixels.size(3);
  TORCH_CHECK(c >= 1 && c <= images::kMaxChannels, "pixels must have 1 to ", images::kMaxChannels, " channels; got ", pixels.sizes());
  check_taps("rows", rows, "height", h);
  check_taps("columns", columns, "width", w);
  TORCH_CHECK(sigmas.scalar_type() == at::kFloat && sigmas.sizes() == at::IntArrayRef({n, 2}) && sigmas.is_contiguous(),
              "sigmas must be contiguous Float [", n, ", 2]; got ", sigmas.scalar_type(), " ", sigmas.sizes());
  images::check_bytes(out, pixels.sizes(), pixels);
  if (pixels.numel() == 0) return;
  Batch b{static_cast<const uint8_t*>(pixels.const_data_ptr()), static_cast<const float*>(sigmas.const_data_ptr()),
          static_cast<uint8_t*>(out.mutable_data_ptr()), static_cast<int>(n), static_cast<int>(h), static_cast<int>(w), static_cast<int>(c),
          static_cast<int>(rows), static_cast<int>(columns)};
  if (out.is_cuda()) {
    const int64_t tiles = (h + blur::kTileRows - 1) / blur::kTileRows * ((w * c + blur::kTileColumns - 1) / blur::kTileColumns);
    void* arguments[] = {&b.pixels, &b.sigmas, &b.out, &b.height, &b.width, &b.channels, &b.rows, &b.columns};
    cuda().launch(program(), "blur", images::stream_of(out), static_cast<unsigned>(n * tiles), kThreads, arguments);
  } else {
    blur_on_cpu(b);
  }
  out.unsafeGetTensorImpl()->bump_version();
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  images::define(library, "blur_images(Tensor pixels, Tensor sigmas, int rows, int columns, *, Tensor(a!) out) -> ()", "blur_images", TORCH_FN(blur_batch));
}

}  // namespace
}  // namespace ct
