// mxfp4_pack and mxfp4_unpack: weights of 4 bits as token_experts reads them, made of what files
// have, and as numbers.
//
//   codes   [..., groups, 16] uint8: 32 codes e2m1 of a group, the first of a byte in the low half
//   scales  [..., groups] uint8: the power of two of each group, e8m0
//   packed  [..., bytes] uint8: rows of segments: mxfp4.h
//
// mxfp4_pack takes codes and scales of whole rows. mxfp4_unpack gives [..., columns] in a floating
// dtype, which for bfloat16 and float32 is exact, unless a number is too small for it. For float64
// on CUDA it waits for the device.
#include "kernels/mxfp4.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "core/device.h"
#include "kernels/images.h"
#include "kernels/variants.h"

namespace ct {
namespace {

at::Tensor pack(const at::Tensor& codes, const at::Tensor& scales) {
  constexpr char kOperator[] = "streamtorch::mxfp4_pack";
  TORCH_CHECK(codes.scalar_type() == at::kByte && scales.scalar_type() == at::kByte && codes.device() == scales.device() && codes.dim() == scales.dim() + 1 &&
                  codes.dim() >= 2 && codes.size(-1) == 16 && codes.numel() == 16 * scales.numel() && scales.size(-1) > 0,
              kOperator, ": codes are ", codes.scalar_type(), " ", codes.sizes(), ", and scales ", scales.scalar_type(), " ", scales.sizes(),
              ", want uint8 [..., groups, 16] and [..., groups] on one device");
  const int64_t groups = scales.size(-1);
  const Segments s(32 * groups);
  const int64_t in_segment = s.columns / 32, padding = s.count * in_segment - groups;
  const at::Tensor all = at::constant_pad_nd(codes.reshape({-1, 16 * groups}), {0, 16 * padding}).view({-1, s.count, 16 * in_segment});
  const at::Tensor powers = at::constant_pad_nd(scales.reshape({-1, groups}), {0, padding}).view({-1, s.count, in_segment});
  const at::Tensor packed = at::constant_pad_nd(at::cat({all, powers}, 2), {0, s.bytes - 17 * in_segment});
  std::vector<int64_t> shape = scales.sizes().vec();
  shape.back() = s.row_bytes();
  return packed.reshape(shape);
}

float number_of(int code, int scale) {
  static constexpr float kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  if (scale == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp((code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7], scale - 127);
}

constexpr char kSource[] = R"cuda(
// A thread writes eight columns of a row.
extern "C" __global__ void mxfp4_unpack(const unsigned char* packed, DTYPE::Raw* out, long long rows, int columns, int in_segment, int segment, int row_bytes) {
  const int eights = (columns + 7) / 8;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * eights; i += static_cast<long long>(gridDim.x) * blockDim.x) {
    const long long row = i / eights;
    const int column = static_cast<int>(i % eights) * 8, at = column % in_segment;
    const unsigned char* const from = packed + row * row_bytes + column / in_segment * segment;
    const unsigned codes = *reinterpret_cast<const unsigned*>(from + at / 2), scale = from[in_segment / 2 + at / 32];
    for (int k = 0; k < 8 && column + k < columns; ++k) {
      const unsigned code = codes >> 4 * k & 15u;
      // Half an odd number, or a power of two and its half: e2m1.
      const float magnitude = (code & 6u) == 0 ? 0.5f * (code & 1u) : (1 + 0.5f * (code & 1u)) * (1 << ((code >> 1 & 3u) - 1));
      const float v = scale == 255 ? __uint_as_float(0x7FC00000u) : ldexpf(magnitude, static_cast<int>(scale) - 127);
      out[row * columns + column + k] = DTYPE::narrow(code & 8u ? -v : v);
    }
  }
}
)cuda";

}  // namespace

at::Tensor mxfp4_numbers(const at::Tensor& packed, int64_t columns, at::ScalarType dtype) {
  constexpr char kOperator[] = "streamtorch::mxfp4_unpack";
  TORCH_CHECK(columns > 0 && columns < INT32_MAX && packed.scalar_type() == at::kByte && packed.dim() > 0 && packed.is_contiguous() &&
                  packed.size(-1) == Segments(columns).row_bytes() && at::isFloatingType(dtype),
              kOperator, ": packed is ", packed.scalar_type(), " ", packed.sizes(), ", want contiguous rows of uint8, each of ", Segments(std::max<int64_t>(columns, 1)).row_bytes(),
              " bytes for ", columns, " columns of a floating dtype");
  std::vector<int64_t> shape = packed.sizes().vec();
  shape.back() = columns;
  const Segments s(columns);
  const int64_t rows = packed.numel() / s.row_bytes();
  if (packed.is_cuda() && dtype != at::kDouble) {
    TORCH_CHECK(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, kOperator, ": it makes float32, float16, bfloat16 and float64, and not ", dtype);
    at::Tensor out = at::empty(shape, packed.options().dtype(dtype));
    const CudaProgram& program = variant_of(std::tuple(dtype), [&] {
      return Variant{std::string("weights of 4 bits as ") + float_name(dtype), "\n" + define("DTYPE", float_name(dtype)), kSource};
    });
    const void* from = packed.const_data_ptr();
    void* to = out.mutable_data_ptr();
    long long count = rows;
    int width = static_cast<int>(columns), in_segment = static_cast<int>(s.columns), segment = static_cast<int>(s.bytes), row_bytes = static_cast<int>(s.row_bytes());
    void* arguments[] = {&from, &to, &count, &width, &in_segment, &segment, &row_bytes};
    const int64_t blocks = std::min<int64_t>((rows * ((columns + 7) / 8) + 255) / 256, 32 * cuda().chip(packed.device().index()).multiprocessors);
    if (rows > 0) cuda().launch(program, "mxfp4_unpack", images::stream_of(packed), static_cast<unsigned>(blocks), 256, arguments, 0);
    return out;
  }
  const at::Tensor bytes = packed.to(at::kCPU);
  at::Tensor out = at::empty({rows, columns}, at::kFloat);
  const uint8_t* from = bytes.const_data_ptr<uint8_t>();
  float* to = out.mutable_data_ptr<float>();
  for (int64_t row = 0; row < rows; ++row, from += s.row_bytes()) {
    for (int64_t column = 0; column < columns; ++column) {
      const uint8_t* const segment = from + column / s.columns * s.bytes;
      const int64_t at = column % s.columns;
      *to++ = number_of(segment[at / 2] >> (at % 2 * 4) & 15, segment[s.columns / 2 + at / 32]);
    }
  }
  return out.to(packed.device(), dtype).view(shape);
}

namespace {

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("mxfp4_pack(Tensor codes, Tensor scales) -> Tensor");
  library.def("mxfp4_unpack(Tensor packed, int columns, ScalarType dtype) -> Tensor");
}

// CompositeExplicitAutograd keeps the operators whole on every device, so the stream checker sees
// what they read and write.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) {
  library.impl("mxfp4_pack", TORCH_FN(pack));
  library.impl("mxfp4_unpack", TORCH_FN(mxfp4_numbers));
}

}  // namespace
}  // namespace ct
