// token_likeliest: the end of a decoder's step that takes the likeliest token.
//
// It writes the first token with the largest of the logits, adds one to the position, and writes
// the token and its log probability into the first two elements of `result`. On the CPU, LibTorch's
// operators do the work.
#include <ATen/core/Tensor.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/log_softmax.h>
#include <torch/library.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "core/device.h"
#include "kernels/edges.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/token_best_cuda.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::token_likeliest";
constexpr unsigned kThreads = 1024, kCluster = 8;

constexpr char kSource[] = R"cuda(
extern "C" __global__ void __launch_bounds__(1024) token_likeliest(const float* logits, long long* token, long long* position, double* result, int count) {
  __shared__ Bests shared;
  begin();
  wait();
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
  TORCH_CHECK(logits.scalar_type() == at::kFloat && logits.is_contiguous() && logits.numel() > 0 && logits.numel() < INT32_MAX - 4 * int64_t{kThreads * kCluster}, kOperator,
              ": logits are ", logits.scalar_type(), " ", logits.sizes(), ", want float32 without gaps");
  for (const at::Tensor& t : {token, position}) {
    TORCH_CHECK(t.numel() == 1 && t.scalar_type() == at::kLong && t.device() == logits.device(), kOperator, ": token and position are int64 [1] on ", logits.device());
  }
  TORCH_CHECK(result.numel() >= 2 && result.scalar_type() == at::kDouble && result.is_contiguous() && result.device() == logits.device(), kOperator,
              ": result is ", result.scalar_type(), " ", result.sizes(), ", want float64 of two elements or more on ", logits.device());
  TORCH_CHECK(!token.is_alias_of(position), kOperator, ": token and position share memory");
  TORCH_CHECK(!needs_gradient({logits}), kOperator, ": it has no gradient: call it in NoGrad");
  const Edge edge = edge_of(kOperator, {edge_name.data(), edge_name.size()}, logits.device());
  if (!logits.is_cuda()) {
    const at::Tensor row = logits.view({-1});
    token.copy_(at::argmax(row, 0, /*keepdim=*/true));
    position.add_(1);
    result.select(0, 0).copy_(token.squeeze());
    result.select(0, 1).copy_(at::log_softmax(row, 0).index_select(0, token).squeeze());
    return;
  }
  const c10::DeviceIndex device = logits.device().index();
  const unsigned blocks = cuda().chip(device).capability >= 90 ? kCluster : 1;
  const void* from = logits.const_data_ptr();
  void *to = token.mutable_data_ptr(), *at = position.mutable_data_ptr(), *told = result.mutable_data_ptr();
  int count = static_cast<int>(logits.numel());
  void* arguments[] = {&from, &to, &at, &told, &count};
  cuda().launch(program_of(edge, blocks), "token_likeliest", images::stream_of(logits), blocks, kThreads, arguments, 0, start_of(edge), blocks);
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
