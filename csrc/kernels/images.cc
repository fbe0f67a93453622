#include "kernels/images.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>

namespace ct::images {

void check_device(const at::Tensor& out, std::initializer_list<const at::Tensor*> others) {
  for (const at::Tensor* tensor : others) {
    TORCH_CHECK(tensor == nullptr || tensor->device() == out.device(), "a tensor lies on ", tensor->device(), ", out on ", out.device());
  }
}

void check_pixels(const at::Tensor& pixels, const std::optional<at::Tensor>& flips) {
  TORCH_CHECK(pixels.scalar_type() == at::kByte && pixels.dim() == 4 && pixels.is_contiguous(),
              "pixels must be contiguous uint8 [N, H, W, C]; got ", pixels.scalar_type(), " ", pixels.sizes());
  TORCH_CHECK(pixels.numel() <= INT32_MAX, "pixels may have 2^31 - 1 elements; got ", pixels.sizes());
  TORCH_CHECK(!flips || (flips->scalar_type() == at::kBool && flips->numel() == pixels.size(0) && flips->is_contiguous()),
              "flips must be contiguous bool [", pixels.size(0), "]; got ", flips->scalar_type(), " ", flips->sizes());
}

void check_bytes(const at::Tensor& out, at::IntArrayRef shape, const at::Tensor& pixels) {
  TORCH_CHECK(out.scalar_type() == at::kByte && out.sizes() == shape && out.is_contiguous(), "out must be contiguous Byte ", shape, "; got ",
              out.scalar_type(), " ", out.sizes());
  TORCH_CHECK(out.numel() <= INT32_MAX, "out may have 2^31 - 1 elements; got ", out.sizes());
  const auto* from = static_cast<const uint8_t*>(pixels.const_data_ptr());
  const auto* to = static_cast<const uint8_t*>(out.const_data_ptr());
  TORCH_CHECK(pixels.numel() == 0 || from + pixels.numel() <= to || to + out.numel() <= from, "out and pixels share memory");
}

void check(const at::Tensor& pixels, const std::optional<at::Tensor>& flips, const at::Tensor& table, const at::Tensor& out) {
  check_device(out, {&pixels, pointer(flips), &table});
  check_pixels(pixels, flips);
  const int64_t n = pixels.size(0), h = pixels.size(1), w = pixels.size(2), c = pixels.size(3);
  TORCH_CHECK(c >= 1 && c <= kMaxChannels, "pixels must have 1 to ", kMaxChannels, " channels; got ", pixels.sizes());
  TORCH_CHECK((out.scalar_type() == at::kFloat || out.scalar_type() == at::kDouble || out.scalar_type() == at::kHalf ||
               out.scalar_type() == at::kBFloat16) &&
                  out.sizes() == at::IntArrayRef({n, c, h, w}),
              "out must be of a floating-point dtype of 16 bits or more and [", n, ", ", c, ", ", h, ", ", w, "]; got ", out.scalar_type(), " ",
              out.sizes());
  TORCH_CHECK(out.is_non_overlapping_and_dense() || out.numel() == 0, "out must be dense; got strides ", out.strides());
  TORCH_CHECK(!out.requires_grad(), "out must not require a gradient");
  TORCH_CHECK(table.scalar_type() == out.scalar_type() && table.is_contiguous() && table.sizes() == at::IntArrayRef({c, kLevels}),
              "table must be contiguous ", out.scalar_type(), " [", c, ", ", kLevels, "]; got ", table.scalar_type(), " ", table.sizes());
}

Geometry geometry(const at::Tensor& pixels, const at::Tensor& out) {
  return {static_cast<int>(pixels.size(0)), static_cast<int>(pixels.size(1)), static_cast<int>(pixels.size(2)),
          static_cast<int>(pixels.size(3)), out.stride(0), out.stride(1), out.stride(2), out.stride(3)};
}

c10::Stream stream_of(const at::Tensor& tensor) { return c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()); }

void launch(const CudaProgram& program, const char* kernel, const at::Tensor& out, const Geometry& g, void** arguments) {
  const int64_t blocks = int64_t{g.images} * ((g.height + kRows - 1) / kRows);
  cuda().launch(program, kernel, stream_of(out), static_cast<unsigned>(blocks), static_cast<unsigned>(kThreads / g.channels * g.channels), arguments);
}

}  // namespace ct::images
