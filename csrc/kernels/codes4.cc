// pack4 and unpack4: weights of 4 bits as the kernels of a token read them, made of what files
// have, and as numbers.
//
//   codes   [..., rows, groups, 16] uint8: 32 codes of a group, the first of a byte in the low
//           half; with int4-128 [..., rows, groups, 64]
//   scales  [..., rows, groups]: mxfp4 has uint8, the power of two of each group as e8m0, and the
//           others have bfloat16
//   packed  [..., segments * rows, bytes] uint8: codes4.h
//
// pack4 takes codes and scales of whole rows. unpack4 gives [..., rows, columns] in a floating
// dtype: for mxfp4 in bfloat16 and float32 that is exact, unless a number is too small for it. For
// float64 on CUDA it waits for the device.

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "core/device.h"
#include "kernels/codes4.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"

namespace ct {
namespace {

// Returns the k-th code of a word.
int code_of(uint32_t word, int k) { return static_cast<int>(word >> 4 * k & 15); }

at::Tensor pack(const at::Tensor& codes, const at::Tensor& scales, c10::string_view name) {
  constexpr char kOperator[] = "streamtorch::pack4";
  const Form4 form = form4_of(kOperator, {name.data(), name.size()});
  const at::ScalarType of_scales = form == kMxfp4 ? at::kByte : at::kBFloat16;
  const int64_t of_group = columns_of_scale(form) / 2;  // bytes of codes
  TORCH_CHECK(codes.scalar_type() == at::kByte && scales.scalar_type() == of_scales && codes.device() == scales.device() && codes.dim() == scales.dim() + 1 &&
                  codes.dim() >= 3 && codes.size(-1) == of_group && codes.sizes().slice(0, codes.dim() - 1) == scales.sizes() && scales.numel() > 0,
              kOperator, ": codes are ", codes.scalar_type(), " ", codes.sizes(), ", and scales ", scales.scalar_type(), " ", scales.sizes(),
              ", want uint8 [..., rows, groups, ", of_group, "] and ", of_scales, " [..., rows, groups] on one device");
  const int64_t rows = scales.size(-2), groups = scales.size(-1), width = bytes_of_scale(form);
  const Segments s(2 * of_group * groups, form);
  const int64_t in_segment = s.columns / (2 * of_group), padding = s.count * in_segment - groups;
  const at::Tensor all = at::constant_pad_nd(codes.reshape({-1, of_group * groups}), {0, of_group * padding}).view({-1, rows, s.count, of_group * in_segment});
  const at::Tensor bytes = at::constant_pad_nd(scales.reshape({-1, groups}), {0, padding}).view(at::kByte).view({-1, rows, s.count, width * in_segment});
  const at::Tensor packed = at::constant_pad_nd(at::cat({all, bytes}, 3), {0, s.bytes - (of_group + width) * in_segment});
  std::vector<int64_t> shape = scales.sizes().vec();
  shape.end()[-2] = s.count * rows;
  shape.back() = s.bytes;
  return packed.transpose(1, 2).reshape(shape);
}

float number_of(int code, const uint8_t* scales, int64_t group, Form4 form) {
  if (form != kMxfp4) {
    c10::BFloat16 scale;
    std::memcpy(&scale, scales + 2 * group, sizeof scale);
    return static_cast<float>(code - 8) * static_cast<float>(scale);
  }
  static constexpr float kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const int scale = scales[group];
  if (scale == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp((code & 8) != 0 ? -kNumbers[code & 7] : kNumbers[code & 7], scale - 127);
}

// FORM is that of Form4.
constexpr char kSource[] = R"cuda(
// Returns the k-th code of a word as a number.
__device__ __forceinline__ float number(unsigned word, int k) {
  const int code = word >> 4 * k & 15u;
#if FORM >= 4
  return code - 8;
#else
  const float magnitude = __uint_as_float((code & 7) << 22) * 8.5070591730234616e37f;  // as float32, the bits of e2m1 are the number times 2^-126
  return code & 8 ? -magnitude : magnitude;
#endif
}

__device__ __forceinline__ float scale_of(const unsigned char* scales, int group) {
#if FORM >= 4
  return __uint_as_float(static_cast<unsigned>(reinterpret_cast<const unsigned short*>(scales)[group]) << 16);
#else
  const unsigned scale = scales[group];
  return __uint_as_float(scale == 255 ? 0x7FC00000u : scale == 0 ? 0x00400000u : scale << 23);
#endif
}

// A block writes rows, and a thread eight columns at a time.
extern "C" __global__ void __launch_bounds__(256) unpack4(const unsigned char* packed, DTYPE::Raw* out, long long matrices, long long rows, int columns, int in_segment, int segments, int bytes) {
  for (long long i = blockIdx.x; i < matrices * rows; i += gridDim.x) {
    const long long matrix = i / rows, row = i % rows;
    for (int column = threadIdx.x * 8; column < columns; column += 8 * 256) {
      const int at = column % in_segment;
      const unsigned char* const from = packed + ((matrix * segments + column / in_segment) * rows + row) * bytes;
      const unsigned codes = *reinterpret_cast<const unsigned*>(from + at / 2);
      const float scale = scale_of(from + in_segment / 2, at / (FORM == 5 ? 128 : 32));
      float all[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) all[k] = number(codes, k) * scale;
      DTYPE::Raw* const to = out + i * columns + column;
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

Form4 form4_of(const char* where, std::string_view name) {
  TORCH_CHECK(name == "mxfp4" || name == "int4" || name == "int4-128", where, ": the form of 4 bits is \"", name, "\", want mxfp4, int4 or int4-128");
  return name == "mxfp4" ? kMxfp4 : name == "int4" ? kInt4 : kInt4By128;
}

at::Tensor numbers4(const at::Tensor& packed, int64_t columns, Form4 form, at::ScalarType dtype) {
  constexpr char kOperator[] = "streamtorch::unpack4";
  const Segments s(std::max<int64_t>(columns, 1), form);
  TORCH_CHECK(columns > 0 && columns < INT32_MAX && packed.scalar_type() == at::kByte && packed.dim() >= 2 && packed.is_contiguous() && is_aligned(packed) && packed.size(-1) == s.bytes &&
                  packed.size(-2) % s.count == 0 && at::isFloatingType(dtype),
              kOperator, ": packed is ", packed.scalar_type(), " ", packed.sizes(), ", want contiguous uint8, aligned to 16 bytes, [..., ", s.count, " * rows, ", s.bytes, "] for ", columns,
              " columns of a floating dtype");
  std::vector<int64_t> shape = packed.sizes().vec();
  const int64_t rows = shape.end()[-2] /= s.count;
  shape.back() = columns;
  const int64_t matrices = rows == 0 ? 0 : packed.numel() / (s.count * rows * s.bytes);
  if (packed.is_cuda() && dtype != at::kDouble) {
    TORCH_CHECK(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16, kOperator, ": it makes float32, float16, bfloat16 and float64, and not ", dtype);
    at::Tensor out = at::empty(shape, packed.options().dtype(dtype));
    const CudaProgram& program = variant_of(std::tuple(dtype, static_cast<int>(form)), [&] {
      return Variant{std::string("weights of 4 bits as ") + float_name(dtype), "\n" + define("DTYPE", float_name(dtype)) + define("FORM", form), kSource};
    });
    const void* from = packed.const_data_ptr();
    void* to = out.mutable_data_ptr();
    long long count = matrices, of_matrix = rows;
    int width = static_cast<int>(columns), in_segment = static_cast<int>(s.columns), segments = static_cast<int>(s.count), bytes = static_cast<int>(s.bytes);
    void* arguments[] = {&from, &to, &count, &of_matrix, &width, &in_segment, &segments, &bytes};
    const int64_t blocks = std::min<int64_t>(matrices * rows, 64 * cuda().chip(packed.device().index()).multiprocessors);
    if (blocks > 0) cuda().launch(program, "unpack4", images::stream_of(packed), static_cast<unsigned>(blocks), 256, arguments, 0);
    return out;
  }
  const at::Tensor all = packed.to(at::kCPU);
  at::Tensor out = at::empty({matrices, rows, columns}, at::kFloat);
  const uint8_t* const from = all.const_data_ptr<uint8_t>();
  float* to = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < matrices * rows; ++i) {
    for (int64_t column = 0; column < columns; ++column) {
      const uint8_t* const segment = from + ((i / rows * s.count + column / s.columns) * rows + i % rows) * s.bytes;
      const int64_t at = column % s.columns;
      uint32_t word = 0;
      std::memcpy(&word, segment + at / 8 * 4, sizeof word);
      *to++ = number_of(code_of(word, static_cast<int>(at % 8)), segment + s.columns / 2, at / columns_of_scale(form), form);
    }
  }
  return out.to(packed.device(), dtype).view(shape);
}

namespace {

at::Tensor unpack(const at::Tensor& packed, int64_t columns, at::ScalarType dtype, c10::string_view form) {
  return numbers4(packed, columns, form4_of("streamtorch::unpack4", {form.data(), form.size()}), dtype);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("pack4(Tensor codes, Tensor scales, str form=\"mxfp4\") -> Tensor");
  library.def("unpack4(Tensor packed, int columns, ScalarType dtype, str form=\"mxfp4\") -> Tensor");
}

// CompositeExplicitAutograd keeps the operators whole on every device, so the stream checker sees
// what they read and write.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) {
  library.impl("pack4", TORCH_FN(pack));
  library.impl("unpack4", TORCH_FN(unpack));
}

}  // namespace
}  // namespace ct
