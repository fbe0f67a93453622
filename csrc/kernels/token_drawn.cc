// token_drawn: the end of a decoder's step that draws the token.
//
//   logits    [1, n] float32
//   changed   [1, n] float32: what is drawn from, logits after penalties; or logits itself
//   numbers   [4 or more] float32: temperature, top-p, min-p and top-k
//   uniforms  [m] float32: a number from 0 up to 1 for each position
//   token     [1] int64, gets the drawn token
//   position  [1] int64, is increased by one, and is then below m, which the device does not check
//   result    [2 or more] float64, gets the token and the logarithm of its probability in `logits`
//   top       whether tokens are drawn among the top-k
//   filter    whether top-p and min-p count
//
// With `top` or `filter` likelier tokens come first, and of equally likely ones those with smaller
// numbers; else tokens come by their numbers. The token is the first at which the running sum of
// the kept probabilities exceeds uniforms[position] times their sum. On a device, logits less than
// 2^-27 of the temperature apart count as equal. Probabilities below 2^-31 of the largest count as
// none. If the largest of `changed` is not finite, its token is taken. If that of `logits` is not,
// the logarithm is NaN. The kernel: token_drawn_cuda.h.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "core/device.h"
#include "kernels/edges.h"
#include "kernels/images.h"
#include "kernels/token_best_cuda.h"
#include "kernels/token_drawn_cuda.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr char kOperator[] = "streamtorch::token_drawn";
constexpr unsigned kThreads = 1024, kCluster = 8;

struct Inputs {
  const at::Tensor& logits;
  const at::Tensor& changed;
  const at::Tensor& numbers;
  const at::Tensor& uniforms;
  at::Tensor& token;
  at::Tensor& position;
  at::Tensor& result;
  bool top;
  bool filter;

  void check(const at::Tensor& t, const char* name, at::ScalarType dtype, int64_t least, int64_t most) const {
    TORCH_CHECK(t.scalar_type() == dtype && t.is_contiguous() && t.numel() >= least && t.numel() <= most && t.device() == logits.device(), kOperator, ": ",
                name, " is ", t.scalar_type(), " ", t.sizes(), " on ", t.device(), ", want ", least, " elements or more of ", dtype, " without gaps, at most ",
                most, ", on ", logits.device());
  }

  void check() const {
    constexpr int64_t kMost = INT32_MAX - int64_t{4} * kThreads * kCluster;
    check(logits, "logits", at::kFloat, 1, kMost);
    check(changed, "changed", at::kFloat, logits.numel(), logits.numel());
    check(numbers, "numbers", at::kFloat, 4, kMost);
    check(uniforms, "uniforms", at::kFloat, 1, kMost);
    check(token, "token", at::kLong, 1, 1);
    check(position, "position", at::kLong, 1, 1);
    check(result, "result", at::kDouble, 2, kMost);
    TORCH_CHECK(!token.is_alias_of(position), kOperator, ": token and position share memory");
  }
};

// Returns the token that the CPU draws.
int64_t drawn_on_cpu(const Inputs& of, double uniform) {
  const int64_t n = of.changed.numel();
  const float* const logits = of.changed.const_data_ptr<float>();
  const float* const numbers = of.numbers.const_data_ptr<float>();
  const auto nan = std::find_if(logits, logits + n, [](float v) { return std::isnan(v); });
  const int64_t likeliest = nan != logits + n ? nan - logits : std::max_element(logits, logits + n) - logits;
  const float largest = logits[likeliest];
  if (!std::isfinite(largest)) return likeliest;
  const auto share = [&](int64_t i) {
    const double v = std::exp((static_cast<double>(logits[i]) - largest) / numbers[0]);
    return v < 0x1p-31 ? 0 : v;
  };
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (of.top || of.filter) {
    const auto before = [&](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
    const int64_t kept = of.top ? static_cast<int64_t>(std::fmin(std::fmax(numbers[3], 1), static_cast<double>(n))) : n;
    std::nth_element(order.begin(), order.begin() + (kept - 1), order.end(), before);
    order.resize(static_cast<size_t>(kept));
    std::sort(order.begin(), order.end(), before);
  }
  const auto sum = [&] { return std::accumulate(order.begin(), order.end(), 0.0, [&](double before, int64_t i) { return before + share(i); }); };
  if (of.filter) {
    const double most = numbers[1] * sum();
    double before = 0;
    const auto rare = [&](int64_t i) {
      const bool drop = (numbers[1] < 1 && before >= most) || share(i) < numbers[2];
      before += share(i);
      return drop;
    };
    order.erase(std::remove_if(order.begin(), order.end(), rare), order.end());
  }
  const double target = uniform * sum();
  double running = 0;
  for (const int64_t i : order) {
    if ((running += share(i)) > target) return i;
  }
  return likeliest;
}

void on_cpu(const Inputs& of) {
  const int64_t position = of.position.const_data_ptr<int64_t>()[0] + 1, n = of.logits.numel();
  TORCH_CHECK(position >= 0 && position < of.uniforms.numel(), kOperator, ": the position is ", position, ", and there are ", of.uniforms.numel(), " uniforms");
  const int64_t token = drawn_on_cpu(of, of.uniforms.const_data_ptr<float>()[position]);
  const float* const logits = of.logits.const_data_ptr<float>();
  const double largest = *std::max_element(logits, logits + n);
  const double sum = std::accumulate(logits, logits + n, 0.0, [&](double before, float v) { return before + std::exp(v - largest); });
  of.token.mutable_data_ptr<int64_t>()[0] = token;
  of.position.mutable_data_ptr<int64_t>()[0] = position;
  double* const result = of.result.mutable_data_ptr<double>();
  result[0] = static_cast<double>(token);
  result[1] = std::isfinite(largest) ? logits[token] - largest - std::log(sum) : std::numeric_limits<double>::quiet_NaN();
}

// As the struct Drawn of the CUDA text.
struct Drawn {
  const void* logits;
  const void* changed;
  const void* numbers;
  const void* uniforms;
  void* token;
  void* position;
  void* result;
  int count;
};

void token_drawn(const at::Tensor& logits, const at::Tensor& changed, const at::Tensor& numbers, const at::Tensor& uniforms, at::Tensor& token,
                 at::Tensor& position, at::Tensor& result, bool top, bool filter, c10::string_view edge_name) {
  const Inputs of{logits, changed, numbers, uniforms, token, position, result, top, filter};
  of.check();
  const Edge edge = edge_of(kOperator, {edge_name.data(), edge_name.size()}, logits.device());
  if (!logits.is_cuda()) return on_cpu(of);
  const c10::DeviceIndex device = logits.device().index();
  const CudaChip chip = cuda().chip(device);
  const unsigned blocks = chip.capability >= 90 ? kCluster : 1;
  const int64_t items = (logits.numel() + blocks * kThreads - 1) / (blocks * kThreads), bytes = items * kThreads * 4;
  const bool kept = bytes <= chip.shared_memory - 16384;  // besides there are less than 16 KB
  const CudaProgram& program = variant_of(std::tuple(static_cast<int>(edge), blocks, items, kept, top, filter), [&] {
    return Variant{"a drawn token", "\n" + define("EDGE", edge) + define("BLOCKS", blocks) + define("ITEMS", items) + define("KEEP", kept) + define("TOP", top) +
                                        define("FILTER", filter) + kEdgesText + kTokenBestText,
                   kTokenDrawnText, /*fused_multiply_add=*/true};
  });
  Drawn d{logits.const_data_ptr(), changed.const_data_ptr(), numbers.const_data_ptr(), uniforms.const_data_ptr(), token.mutable_data_ptr(),
          position.mutable_data_ptr(), result.mutable_data_ptr(), static_cast<int>(logits.numel())};
  void* arguments[] = {&d};
  cuda().launch(program, "token_drawn", images::stream_of(logits), blocks, kThreads, arguments, kept ? static_cast<int>(bytes) : 0, start_of(edge), blocks);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def(
      "token_drawn(Tensor logits, Tensor changed, Tensor numbers, Tensor uniforms, Tensor(a!) token, Tensor(b!) position, Tensor(c!) result, bool top, "
      "bool filter, str edge=\"full\") -> ()");
  declare_early_reads(kOperator, {});
}

// CompositeExplicitAutograd keeps the operator whole on every device, so the stream checker sees
// what it reads and writes.
TORCH_LIBRARY_IMPL(streamtorch, CompositeExplicitAutograd, library) { library.impl("token_drawn", TORCH_FN(token_drawn)); }

}  // namespace
}  // namespace ct
