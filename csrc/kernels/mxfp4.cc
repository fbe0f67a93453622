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
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "core/device.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"

namespace ct {
namespace {

// Where a word has the sign and the magnitude of its codes 0 to 3: the lowest bits.
constexpr int kSigns[] = {15, 7, 8, 0}, kMagnitudes[] = {9, 1, 4, 12};

// Returns words of eight codes, from the first in the lowest bits, in the order of mxfp4.h.
at::Tensor in_order(const at::Tensor& words) {
  at::Tensor made = at::zeros_like(words);
  const auto move = [&](int from, int to, int64_t bits) {
    const at::Tensor moved = to < from ? at::bitwise_right_shift(words, from - to) : at::bitwise_left_shift(words, to - from);
    made.bitwise_or_(at::bitwise_and(moved, at::Scalar(static_cast<int64_t>(static_cast<int32_t>((bits << to) * 0x10001)))));
  };
  for (int i = 0; i < 4; ++i) {
    move(4 * i + 3, kSigns[i], 1);
    move(4 * i, kMagnitudes[i], 7);
  }
  return made;
}

// Returns the k-th code of a word.
int code_of(uint32_t word, int k) {
  const uint32_t half = word >> 16 * (k / 4);
  return static_cast<int>((half >> kSigns[k % 4] & 1) << 3 | (half >> kMagnitudes[k % 4] & 7));
}

at::Tensor pack(const at::Tensor& codes, const at::Tensor& scales) {
  constexpr char kOperator[] = "streamtorch::mxfp4_pack";
  TORCH_CHECK(codes.scalar_type() == at::kByte && scales.scalar_type() == at::kByte && codes.device() == scales.device() && codes.dim() == scales.dim() + 1 &&
                  codes.dim() >= 2 && codes.size(-1) == 16 && codes.sizes().slice(0, codes.dim() - 1) == scales.sizes() && scales.size(-1) > 0,
              kOperator, ": codes are ", codes.scalar_type(), " ", codes.sizes(), ", and scales ", scales.scalar_type(), " ", scales.sizes(),
              ", want uint8 [..., groups, 16] and [..., groups] on one device");
  const int64_t groups = scales.size(-1);
  const Segments s(32 * groups);
  const int64_t in_segment = s.columns / 32, padding = s.count * in_segment - groups;
  const at::Tensor words = at::constant_pad_nd(codes.reshape({-1, 16 * groups}), {0, 16 * padding}).view(at::kInt);
  const at::Tensor all = in_order(words).view(at::kByte).view({-1, s.count, 16 * in_segment});
  const at::Tensor powers = at::constant_pad_nd(scales.reshape({-1, groups}), {0, padding}).view({-1, s.count, in_segment});
  const at::Tensor packed = at::constant_pad_nd(at::cat({all, powers}, 2), {0, s.bytes - 17 * in_segment});
  std::vector<int64_t> shape = scales.sizes().vec();
  shape.back() = s.row_bytes();
  return packed.reshape(shape);
}

float number_of(int code, int scale) {
  static constexpr float kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  if (scale == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp((code & 8) != 0 ? -kNumbers[code & 7] : kNumbers[code & 7], scale - 127);
}

constexpr char kSource[] = R"cuda(
constexpr int kSigns[] = {15, 7, 8, 0}, kMagnitudes[] = {9, 1, 4, 12};  // as in C++

// Returns the codes i and i + 4 of a word as numbers.
template <int i>
__device__ __forceinline__ float2 numbers(unsigned word) {
  constexpr unsigned kMagnitude = 0x0E000E00u, kSign = 0x80008000u;
  const unsigned pair = ((kMagnitudes[i] < 9 ? word << (9 - kMagnitudes[i]) : word >> (kMagnitudes[i] - 9)) & kMagnitude) | (word << (15 - kSigns[i]) & kSign);
  float2 made;  // float16 times 2^14
  asm("{\n.reg .f16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}" : "=f"(made.x), "=f"(made.y) : "r"(pair));
  return make_float2(made.x * 16384, made.y * 16384);
}

// A block writes rows, and a thread eight columns at a time.
extern "C" __global__ void __launch_bounds__(256) mxfp4_unpack(const unsigned char* packed, DTYPE::Raw* out, long long rows, int columns, int in_segment, int segment, int row_bytes) {
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int column = threadIdx.x * 8; column < columns; column += 8 * 256) {
      const int at = column % in_segment;
      const unsigned char* const from = packed + row * row_bytes + column / in_segment * segment;
      const unsigned codes = *reinterpret_cast<const unsigned*>(from + at / 2), scale = from[in_segment / 2 + at / 32];
      const float power = __uint_as_float(scale == 255 ? 0x7FC00000u : scale == 0 ? 0x00400000u : scale << 23);
      const float2 v[] = {numbers<0>(codes), numbers<1>(codes), numbers<2>(codes), numbers<3>(codes)};
      const float all[] = {v[0].x * power, v[1].x * power, v[2].x * power, v[3].x * power, v[0].y * power, v[1].y * power, v[2].y * power, v[3].y * power};
      DTYPE::Raw* const to = out + row * columns + column;
      if (columns % 8 == 0) {
        *reinterpret_cast<Vector<DTYPE, 8>*>(to) = narrow<DTYPE>(all);
      } else {
        for (int k = 0; k < 8 && column + k < columns; ++k) to[k] = DTYPE::narrow(all[k]);
      }
    }
  }
}
)cuda";

}  // namespace

at::Tensor mxfp4_numbers(const at::Tensor& packed, int64_t columns, at::ScalarType dtype) {
  constexpr char kOperator[] = "streamtorch::mxfp4_unpack";
  TORCH_CHECK(columns > 0 && columns < INT32_MAX && packed.scalar_type() == at::kByte && packed.dim() > 0 && packed.is_contiguous() && is_aligned(packed) &&
                  packed.size(-1) == Segments(columns).row_bytes() && at::isFloatingType(dtype),
              kOperator, ": packed is ", packed.scalar_type(), " ", packed.sizes(), ", want contiguous rows of uint8, aligned to 16 bytes, each of ", Segments(std::max<int64_t>(columns, 1)).row_bytes(),
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
    const int64_t blocks = std::min<int64_t>(rows, 64 * cuda().chip(packed.device().index()).multiprocessors);
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
      uint32_t word = 0;
      std::memcpy(&word, segment + at / 8 * 4, sizeof word);
      *to++ = number_of(code_of(word, static_cast<int>(at % 8)), segment[s.columns / 2 + at / 32]);
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
