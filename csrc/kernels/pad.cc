// streamtorch::pad_images adds pixels around each image of a batch.
//
// `pixels` is contiguous uint8 [N, H, W, C] with C from 1 to 4. `out` is contiguous uint8
// [N, top + H + bottom, left + W + right, C], and shares no memory with `pixels`. If flips[n] is
// set, image n is first flipped left to right. `flips` is bool [N], or absent. `padding` is left,
// top, right and bottom. `mode` is one of border.h. With kConstant the new pixels are `fill`: one
// level, or one for each channel, or none for 0.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/border.h"
#include "kernels/images.h"
#include "kernels/variants.h"

namespace ct {
namespace {

CT_ON_BOTH_DEVICES(kPadText,

struct Pad {
  int images;
  int height;
  int width;
  int channels;
  int left;
  int top;
  int out_height;
  int out_width;
  int mode;
  unsigned char fill[4];  // the level of each channel
};

)  // CT_ON_BOTH_DEVICES

void pad_on_cpu(const uint8_t* pixels, const uint8_t* flips, uint8_t* out, const Pad& p) {
  std::vector<int> columns(static_cast<size_t>(p.out_width));  // the source of each column
  for (int x = 0; x < p.out_width; ++x) columns[static_cast<size_t>(x)] = border::source_of(x - p.left, p.width, p.mode);
  for (int64_t n = 0; n < p.images; ++n) {
    const bool flip = flips != nullptr && flips[n] != 0;
    for (int y = 0; y < p.out_height; ++y) {
      const int row = border::source_of(y - p.top, p.height, p.mode);
      const uint8_t* from = row < 0 ? nullptr : pixels + (n * p.height + row) * p.width * p.channels;
      for (const int column : columns) {
        const uint8_t* pixel = from == nullptr || column < 0 ? p.fill : from + (flip ? p.width - 1 - column : column) * p.channels;
        out = std::copy(pixel, pixel + p.channels, out);
      }
    }
  }
}

constexpr int kThreads = 256;
constexpr int kElementsOfAThread = 8;
constexpr char kSource[] = R"cuda(
extern "C" __global__ void pad(const unsigned char* pixels, const unsigned char* flips, unsigned char* out, Pad p) {
  const int row_elements = p.out_width * p.channels;
  const long long elements = static_cast<long long>(p.images) * p.out_height * row_elements;
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += threads) {
    const int line = static_cast<int>(i / row_elements);
    const int place = static_cast<int>(i % row_elements);
    const int n = line / p.out_height;
    const int channel = place % p.channels;
    const int row = source_of(line % p.out_height - p.top, p.height, p.mode);
    const int column = source_of(place / p.channels - p.left, p.width, p.mode);
    // Not p.fill[channel]: the levels would go to local memory.
    unsigned char value = channel == 0 ? p.fill[0] : channel == 1 ? p.fill[1] : channel == 2 ? p.fill[2] : p.fill[3];
    if (row >= 0 && column >= 0) {
      const int from = flips != nullptr && flips[n] != 0 ? p.width - 1 - column : column;
      value = pixels[((static_cast<long long>(n) * p.height + row) * p.width + from) * p.channels + channel];
    }
    out[i] = value;
  }
}
)cuda";

const CudaProgram& program() {
  return variant_of(0, [] { return Variant{"pad", std::string(border::kBorderText).append(kPadText), kSource}; });
}

// Checks the padding at one side of images whose height or width is `size`.
void check_padding(const char* side, int64_t padding, int64_t size, int64_t mode) {
  const int64_t most = mode == border::kConstant || (mode == border::kEdge && size > 0) ? INT16_MAX
                       : mode == border::kReflect                                       ? std::max<int64_t>(size - 1, 0)
                                                                                        : size;
  TORCH_CHECK(padding >= 0 && padding <= most, side, " must be from 0 to ", most, " for images of this size and mode; got ", padding);
}

void pad_images(const at::Tensor& pixels, const std::optional<at::Tensor>& flips, at::IntArrayRef padding, int64_t mode, at::IntArrayRef fill,
                const at::Tensor& out) {
  images::check_device(out, {&pixels, images::pointer(flips)});
  images::check_pixels(pixels, flips);
  const int64_t n = pixels.size(0), h = pixels.size(1), w = pixels.size(2), c = pixels.size(3);
  TORCH_CHECK(c >= 1 && c <= images::kMaxChannels, "pixels must have 1 to ", images::kMaxChannels, " channels; got ", pixels.sizes());
  TORCH_CHECK(mode >= border::kConstant && mode <= border::kSymmetric, "mode must be from 0 to ", int{border::kSymmetric}, "; got ", mode);
  TORCH_CHECK(padding.size() == 4, "padding must be left, top, right and bottom; got ", padding);
  check_padding("left", padding[0], w, mode);
  check_padding("top", padding[1], h, mode);
  check_padding("right", padding[2], w, mode);
  check_padding("bottom", padding[3], h, mode);
  TORCH_CHECK(fill.size() <= 1 || static_cast<int64_t>(fill.size()) == c, "fill must have one level, or one for each channel of ", pixels.sizes(),
              "; got ", fill);
  Pad p{static_cast<int>(n), static_cast<int>(h), static_cast<int>(w), static_cast<int>(c), static_cast<int>(padding[0]), static_cast<int>(padding[1]),
        0, 0, static_cast<int>(mode), {}};
  for (size_t i = 0; i < static_cast<size_t>(c) && !fill.empty(); ++i) {
    const int64_t level = fill[fill.size() == 1 ? 0 : i];
    TORCH_CHECK(level >= 0 && level < images::kLevels, "fill must be from 0 to 255; got ", fill);
    p.fill[i] = static_cast<uint8_t>(level);
  }
  const int64_t height = padding[1] + h + padding[3], width = padding[0] + w + padding[2];
  images::check_bytes(out, {n, height, width, c}, pixels);
  p.out_height = static_cast<int>(height);
  p.out_width = static_cast<int>(width);
  if (out.numel() == 0) return;
  const auto* from = static_cast<const uint8_t*>(pixels.const_data_ptr());
  const uint8_t* flip_data = images::data_of<uint8_t>(flips);
  auto* to = static_cast<uint8_t*>(out.mutable_data_ptr());
  if (out.is_cuda()) {
    constexpr int64_t of_a_block = int64_t{kThreads} * kElementsOfAThread;
    void* arguments[] = {&from, &flip_data, &to, &p};
    cuda().launch(program(), "pad", images::stream_of(out), static_cast<unsigned>((out.numel() + of_a_block - 1) / of_a_block), kThreads, arguments);
  } else {
    pad_on_cpu(from, flip_data, to, p);
  }
  out.unsafeGetTensorImpl()->bump_version();
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  images::define(library, "pad_images(Tensor pixels, Tensor? flips, int[] padding, int mode, int[] fill, *, Tensor(a!) out) -> ()", "pad_images",
                 TORCH_FN(pad_images));
}

}  // namespace
}  // namespace ct
