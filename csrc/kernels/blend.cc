// streamtorch::blend_images blends each image of a batch with changed copies of it.
//
//  out[n] = weights[n, 0] * pixels[n] + weights[n, 1] * copies[n]
//         + weights[n, 2] * copies[N + n] + …
//
// `pixels` and `out` are contiguous uint8 [N, H, W, C], with C from 1 to 4, and share no memory. If
// flips[n] is set, image n of `pixels` is flipped left to right, and the copies are not. `flips` is
// bool [N], or absent. `copies` is contiguous uint8 [K * N, H, W, C]. `weights` is contiguous
// float32 [N, 1 + K]. Each product and each sum is rounded to float32. The result is rounded down.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/images.h"
#include "kernels/level.h"
#include "kernels/variants.h"

namespace ct {
namespace {

CT_ON_BOTH_DEVICES(kBlendText,

struct Blend {
  int images;
  int copies;  // of each image
  int height;
  int width;
  int channels;
};

)  // CT_ON_BOTH_DEVICES

void blend_on_cpu(const uint8_t* pixels, const uint8_t* flips, const uint8_t* copies, const float* weights, uint8_t* out, const Blend& b) {
  const int line = b.width * b.channels;
  const int64_t size = int64_t{b.height} * line;
  std::vector<float> sums(static_cast<size_t>(line));
  float* const sum = sums.data();
  for (int64_t n = 0; n < b.images; ++n, weights += 1 + b.copies) {
    const bool flip = flips != nullptr && flips[n] != 0;
    for (int y = 0; y < b.height; ++y, pixels += line, out += line) {
      for (int x = 0; x < b.width; ++x) {
        const uint8_t* from = pixels + (flip ? b.width - 1 - x : x) * b.channels;
        for (int c = 0; c < b.channels; ++c) sum[x * b.channels + c] = weights[0] * static_cast<float>(from[c]);
      }
      for (int k = 0; k < b.copies; ++k) {
        const uint8_t* copy = copies + (k * int64_t{b.images} + n) * size + int64_t{y} * line;
        for (int i = 0; i < line; ++i) sum[i] += weights[1 + k] * static_cast<float>(copy[i]);
      }
      for (int i = 0; i < line; ++i) out[i] = clamped(sum[i]);
    }
  }
}

constexpr int kThreads = 256;
constexpr int kElementsOfAThread = 8;
constexpr char kSource[] = R"cuda(
extern "C" __global__ void blend(const unsigned char* pixels, const unsigned char* flips, const unsigned char* copies, const float* weights,
                                 unsigned char* out, Blend b) {
  const int line = b.width * b.channels;
  const long long all = static_cast<long long>(b.images) * b.height * line;
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += threads) {
    const int n = static_cast<int>(i / line) / b.height;
    const int place = static_cast<int>(i % line);
    const bool flip = flips != nullptr && flips[n] != 0;
    const int from = flip ? (b.width - 1 - place / b.channels) * b.channels + place % b.channels : place;
    const float* weight = weights + static_cast<long long>(n) * (1 + b.copies);
    float sum = weight[0] * static_cast<float>(pixels[i - place + from]);
    for (int k = 0; k < b.copies; ++k) sum += weight[1 + k] * static_cast<float>(copies[k * all + i]);
    out[i] = clamped(sum);
  }
}
)cuda";

const CudaProgram& program() {
  return variant_of(0, [] { return Variant{"blend", std::string(kLevelText).append(kBlendText), kSource}; });
}

void blend_images(const at::Tensor& pixels, const std::optional<at::Tensor>& flips, const at::Tensor& copies, const at::Tensor& weights,
                  const at::Tensor& out) {
  images::check_device(out, {&pixels, images::pointer(flips), &copies, &weights});
  images::check_pixels(pixels, flips);
  images::check_pixels(copies, std::nullopt);
  const int64_t n = pixels.size(0), c = pixels.size(3);
  TORCH_CHECK(c >= 1 && c <= images::kMaxChannels, "pixels must have 1 to ", images::kMaxChannels, " channels; got ", pixels.sizes());
  TORCH_CHECK(weights.scalar_type() == at::kFloat && weights.dim() == 2 && weights.size(0) == n && weights.size(1) >= 1 && weights.is_contiguous(),
              "weights must be contiguous Float [", n, ", 1 + copies of an image]; got ", weights.scalar_type(), " ", weights.sizes());
  const int64_t k = weights.size(1) - 1;
  TORCH_CHECK(copies.sizes() == at::IntArrayRef({k * n, pixels.size(1), pixels.size(2), c}), "copies must be ", k, " for each image of ",
              pixels.sizes(), "; got ", copies.sizes());
  images::check_bytes(out, pixels.sizes(), pixels);
  images::check_bytes(out, pixels.sizes(), copies);
  if (out.numel() == 0) return;
  Blend b{static_cast<int>(n), static_cast<int>(k), static_cast<int>(pixels.size(1)), static_cast<int>(pixels.size(2)), static_cast<int>(c)};
  const auto* from = static_cast<const uint8_t*>(pixels.const_data_ptr());
  const uint8_t* flip_data = images::data_of<uint8_t>(flips);
  const auto* others = static_cast<const uint8_t*>(copies.const_data_ptr());
  const auto* shares = static_cast<const float*>(weights.const_data_ptr());
  auto* to = static_cast<uint8_t*>(out.mutable_data_ptr());
  if (out.is_cuda()) {
    constexpr int64_t of_a_block = int64_t{kThreads} * kElementsOfAThread;
    void* arguments[] = {&from, &flip_data, &others, &shares, &to, &b};
    cuda().launch(program(), "blend", images::stream_of(out), static_cast<unsigned>((out.numel() + of_a_block - 1) / of_a_block), kThreads, arguments);
  } else {
    blend_on_cpu(from, flip_data, others, shares, to, b);
  }
  out.unsafeGetTensorImpl()->bump_version();
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  images::define(library, "blend_images(Tensor pixels, Tensor? flips, Tensor copies, Tensor weights, *, Tensor(a!) out) -> ()", "blend_images",
                 TORCH_FN(blend_images));
}

}  // namespace
}  // namespace ct
