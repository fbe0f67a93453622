// token_likeliest: the end of a decoder's step that takes the likeliest token.
//
//   logits    [rows, n] float32
//   token     [rows] int64
//   position  [rows] int64
//   result    [rows, 2 or more] float64
//
// For each row it writes the first token with the largest of the logits, adds one to the position,
// and writes the token and its log probability into the first two elements of `result`. One row may
// have any shape. Of several rows, those whose position is below 0 are padded: nothing of them is
// written.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "core/device.h"
#include "kernels/edges.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/on_threads.h"
#include "kernels/token_best_cuda.h"
#include "kernels/token_probability.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::token_likeliest";
constexpr unsigned kThreads = 1024, kCluster = 8;

constexpr char kSource[] = R"cuda(
extern "C" __global__ void __launch_bounds__(1024) token_likeliest(const float* logits, long long* token, long long* position, double* result, int count,
                                                                  int told) {
  __shared__ Bests shared;
  begin();
  wait();
  if (gridDim.y > 1) {
    const size_t row = blockIdx.y;
    if (__ldcg(position + row) < 0) return;  // all blocks of the cluster do
    logits += row * count, token += row, position += row, result += row * told;
  }
  const Best best = best_of(logits, count, shared);
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  *token = best.token;
  *position += 1;
  result[0] = best.token;
  // Logits of which the largest is NaN, +Inf or -Inf have no probabilities.
  result[1] = best.logit - best.logit == 0 ? -logf(best.sum) : __int_as_float(0x7FC00000);
}
)cuda";

const CudaProgram& program_of(Edge edge, unsigned blocks) {
  return variant_of(std::tuple(static_cast<int>(edge), blocks), [&] {
    return Variant{"the likeliest token", "\n" + define("EDGE", edge) + define("BLOCKS", blocks) + kEdgesText + kTokenBestText, kSource,
                   /*fused_multiply_add=*/true};
  });
}

void token_likeliest(const at::Tensor& logits, at::Tensor& token, at::Tensor& position, at::Tensor& result, c10::string_view edge_name) {
  constexpr int64_t kMost = INT32_MAX - int64_t{4} * kThreads * kCluster;
  const int64_t rows = token.numel();
  check_row_numbers(kOperator, token, "token", rows, logits.device());
  check_row_numbers(kOperator, position, "position", rows, logits.device());
  const int64_t n = check_rows(kOperator, logits, "logits", rows, 1, kMost, at::kFloat, logits.device());
  const int64_t told_of_row = check_rows(kOperator, result, "result", rows, 2, kMost, at::kDouble, logits.device());
  TORCH_CHECK(!token.is_alias_of(position), kOperator, ": token and position share memory");
  TORCH_CHECK(!needs_gradient({logits}), kOperator, ": it has no gradient: call it in NoGrad");
  const Edge edge = edge_of(kOperator, {edge_name.data(), edge_name.size()}, logits.device());
  if (!logits.is_cuda()) {
    const float* const all = logits.const_data_ptr<float>();
    int64_t *const tokens = token.mutable_data_ptr<int64_t>(), *const positions = position.mutable_data_ptr<int64_t>();
    double* const results = result.mutable_data_ptr<double>();
    on_threads(token.view({-1}), 16 * rows * n, [&](int64_t from, int64_t to) {
      for (int64_t r = from; r < to; ++r) {
        if (rows > 1 && positions[r] < 0) continue;
        tokens[r] = likeliest_of(all + r * n, n);
        ++positions[r];
        results[r * told_of_row] = static_cast<double>(tokens[r]);
        results[r * told_of_row + 1] = log_probability(all + r * n, n, tokens[r]);
      }
    });
    return;
  }
  const c10::DeviceIndex device = logits.device().index();
  const unsigned blocks = cuda().chip(device).capability >= 90 ? kCluster : 1;
  const void* from = logits.const_data_ptr();
  void *to = token.mutable_data_ptr(), *at = position.mutable_data_ptr(), *told = result.mutable_data_ptr();
  int count = static_cast<int>(n), step = static_cast<int>(told_of_row);
  void* arguments[] = {&from, &to, &at, &told, &count, &step};
  cuda().launch(program_of(edge, blocks), "token_likeliest", images::stream_of(logits), blocks, kThreads, arguments, 0, start_of(edge), blocks,
                static_cast<unsigned>(rows));
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("token_likeliest(Tensor logits, Tensor(a!) token, Tensor(b!) position, Tensor(c!) result, str edge=\"full\") -> ()");
  declare_early_reads(kOperator, {});
}

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("token_likeliest", TORCH_FN(token_likeliest)); }

}  // namespace
}  // namespace ct
