// token_embedding: what a decoder needs before its first layer, for one token of each sequence.
//
// The first result has the rows of the table for the tokens, in float32 times `factor`, [rows,
// width]. For each rotation follow the cosines and the sines of position * frequencies, times its
// scale, each [rows, 1, n]. Of several rows, those whose position is below 0 are padded: they are
// zeros, and their tokens may be any number. On the CPU, LibTorch's operators do the work.
#include <ATen/core/Tensor.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sin.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/both_devices.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::token_embedding";

CT_ON_BOTH_DEVICES(kText,

constexpr int kMostRotations = 4;

// One rotation. The sines of all rows lie behind the cosines.
struct Rotation {
  const float* frequencies;
  float* cosines;
  float scale;
  int count;
};

struct Rotations {
  Rotation all[kMostRotations];
  int count;
};

)  // CT_ON_BOTH_DEVICES

constexpr char kSource[] = R"cuda(
extern "C" __global__ void __launch_bounds__(256) token_embedding(const DTYPE::Raw* __restrict__ table, const long long* __restrict__ token,
                                                                  const long long* __restrict__ position, float* __restrict__ out, int width, float factor,
                                                                  const Rotations rotations) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  const size_t number = blockIdx.y;
  out += number * width;
  const bool padded = gridDim.y > 1 && position[number] < 0;
  const DTYPE::Raw* const row = table + (padded ? 0 : token[number]) * width;
  for (int i = thread; i < width; i += threads) out[i] = padded ? 0 : DTYPE::widen(row[i]) * factor;
  const float at = static_cast<float>(position[number]);
  for (int r = 0; r < rotations.count; ++r) {
    const Rotation& rotation = rotations.all[r];
    for (int i = thread; i < rotation.count; i += threads) {
      const float angle = at * rotation.frequencies[i];
      float* const to = rotation.cosines + number * rotation.count + i;
      to[0] = padded ? 0 : cosf(angle) * rotation.scale;
      to[static_cast<size_t>(gridDim.y) * rotation.count] = padded ? 0 : sinf(angle) * rotation.scale;
    }
  }
}
)cuda";

const CudaProgram& program_of(at::ScalarType dtype) {
  return variant_of(dtype, [=] {
    Variant made{"the embedding of a token in " + float_name(dtype), kText, kSource};
    made.head += "\n#define DTYPE " + float_name(dtype) + "\n";
    return made;
  });
}

// Returns the parts of `all`, which lie behind each other: the embedding, and two of each rotation.
std::vector<at::Tensor> parts_of(const at::Tensor& all, int64_t rows, int64_t width, at::TensorList frequencies) {
  std::vector<at::Tensor> parts{all.narrow(0, 0, rows * width).view({rows, width})};
  int64_t at = rows * width;
  for (const at::Tensor& f : frequencies) {
    for (int i = 0; i < 2; ++i, at += rows * f.numel()) parts.push_back(all.narrow(0, at, rows * f.numel()).view({rows, 1, f.numel()}));
  }
  return parts;
}

std::vector<at::Tensor> token_embedding(const at::Tensor& table, const at::Tensor& token, const at::Tensor& position, at::TensorList frequencies,
                                        at::ArrayRef<double> scales, double factor) {
  TORCH_CHECK(table.dim() == 2 && table.is_contiguous() && is_floating(table.scalar_type()), kOperator, ": table is ", table.scalar_type(), " ",
              table.sizes(), ", want a contiguous matrix of float32, bfloat16 or float16");
  const int64_t rows = token.numel();
  check_row_numbers(kOperator, token, "token", rows, table.device());
  check_row_numbers(kOperator, position, "position", rows, table.device());
  TORCH_CHECK(frequencies.size() == scales.size() && frequencies.size() <= size_t{kMostRotations}, kOperator, ": ", frequencies.size(), " frequencies and ",
              scales.size(), " scales, want one scale for each, and at most ", kMostRotations);
  int64_t width = table.size(1), all = width;
  for (const at::Tensor& f : frequencies) {
    TORCH_CHECK(f.scalar_type() == at::kFloat && f.is_contiguous() && f.device() == table.device(), kOperator, ": frequencies are contiguous float32 on ", table.device());
    all += 2 * f.numel();
  }
  const at::Tensor out = at::empty({rows * all}, table.options().dtype(at::kFloat));
  const std::vector<at::Tensor> parts = parts_of(out, rows, width, frequencies);
  if (!table.is_cuda()) {
    const at::Tensor padded = position.view({-1}).lt(rows > 1 ? 0 : std::numeric_limits<int64_t>::min());
    parts[0].copy_(at::index_select(table, 0, token.view({-1}).masked_fill(padded, 0))).mul_(factor);
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const at::Tensor angles = at::mul(position.to(at::kFloat).view({-1, 1, 1}), frequencies[i].view({1, 1, -1}));
      parts[1 + 2 * i].copy_(at::cos(angles)).mul_(scales[i]);
      parts[2 + 2 * i].copy_(at::sin(angles)).mul_(scales[i]);
    }
    for (const at::Tensor& part : parts) part.view({rows, -1}).masked_fill_(padded.unsqueeze(1), 0);
    return parts;
  }
  TORCH_CHECK(all < INT32_MAX, kOperator, ": a row of ", all, " elements is too long");
  Rotations rotations{};
  for (size_t i = 0; i < frequencies.size(); ++i) {
    rotations.all[i] = {frequencies[i].const_data_ptr<float>(), parts[1 + 2 * i].mutable_data_ptr<float>(), static_cast<float>(scales[i]),
                        static_cast<int>(frequencies[i].numel())};
  }
  rotations.count = static_cast<int>(frequencies.size());
  const void *from = table.const_data_ptr(), *which = token.const_data_ptr(), *where = position.const_data_ptr();
  void* to = out.mutable_data_ptr();
  int columns = static_cast<int>(width);
  auto by = static_cast<float>(factor);
  void* arguments[] = {&from, &which, &where, &to, &columns, &by, &rotations};
  cuda().launch(program_of(table.scalar_type()), "token_embedding", images::stream_of(table), std::min<int64_t>((width + 255) / 256, 32), 256, arguments,
                0, CudaStart::kBehind, 1, static_cast<unsigned>(rows));
  return parts;
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("token_embedding(Tensor table, Tensor token, Tensor position, Tensor[] frequencies, float[] scales, float factor) -> Tensor[]");
}

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("token_embedding", TORCH_FN(token_embedding)); }

}  // namespace
}  // namespace ct
