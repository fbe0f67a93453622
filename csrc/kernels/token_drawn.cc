// token_drawn: the end of a decoder's step that draws the token.
//
//   logits    [rows, n] float32
//   changed   [rows, n] float32: what is drawn from, logits after penalties; or logits itself
//   numbers   [rows, 4 or more] float32: temperature, top-p, min-p and top-k
//   uniforms  [rows, m] float32: a number from 0 up to 1 for each position
//   token     [rows] int64, gets the drawn token
//   position  [rows] int64, is increased by one, and is then below m, which the device does not
//             check
//   result    [rows, 2 or more] float64, gets the token and the logarithm of its probability in
//             `logits`
//   top       whether tokens are drawn among the top-k
//   filter    whether top-p and min-p count
//
// One row may have any shape. Several rows do not look at `top` and `filter`: a row has a top-k if
// its top-k is 1 or more, and filters if its top-p is below 1 or its min-p above 0. So a row draws
// the same token beside any others. With a top-k of 1 it is the likeliest. A row whose position is
// below 0 is padded: nothing of it is written.
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
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "core/device.h"
#include "kernels/edges.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/on_threads.h"
#include "kernels/token_best_cuda.h"
#include "kernels/token_drawn_cuda.h"
#include "kernels/token_probability.h"
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

  int64_t rows() const { return token.numel(); }
  int64_t count() const { return logits.numel() / rows(); }

  void check() const {
    constexpr int64_t kMost = INT32_MAX - int64_t{4} * kThreads * kCluster;
    const auto check = [&](const at::Tensor& t, const char* name, int64_t least, int64_t most, at::ScalarType dtype) {
      check_rows(kOperator, t, name, rows(), least, most, dtype, logits.device());
    };
    check_row_numbers(kOperator, token, "token", rows(), logits.device());
    check_row_numbers(kOperator, position, "position", rows(), logits.device());
    check(logits, "logits", 1, kMost, at::kFloat);
    check(changed, "changed", count(), count(), at::kFloat);
    check(numbers, "numbers", 4, kMost, at::kFloat);
    check(uniforms, "uniforms", 1, kMost, at::kFloat);
    check(result, "result", 2, kMost, at::kDouble);
    TORCH_CHECK(!token.is_alias_of(position), kOperator, ": token and position share memory");
  }
};

// Returns a number by which a token is sorted: likelier ones have smaller ones.
uint64_t place_of(float logit, int64_t token) {
  const float v = logit + 0.0f;  // -0 becomes 0
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  return static_cast<uint64_t>(bits >> 31 != 0 ? bits : bits ^ 0x7FFFFFFFu) << 32 | static_cast<uint64_t>(token);
}

// Returns the token that the CPU draws from logits, by these numbers.
int64_t drawn_on_cpu(const float* logits, int64_t n, const float* numbers, bool top, bool filter, double uniform) {
  const int64_t likeliest = likeliest_of(logits, n);
  const float largest = logits[likeliest];
  if (!std::isfinite(largest)) return likeliest;
  const auto share = [&](int64_t i) {
    const double v = std::exp((static_cast<double>(logits[i]) - largest) / numbers[0]);
    return v < 0x1p-31 ? 0 : v;
  };
  struct Token {
    int64_t number;
    double share;
  };
  std::vector<Token> kept;
  if (!top && !filter) {
    for (int64_t i = 0; i < n; ++i) kept.push_back({i, share(i)});
  } else {
    std::vector<uint64_t> order(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = place_of(logits[i], i);
    const auto number = [](uint64_t place) { return static_cast<int64_t>(place & 0xFFFFFFFFu); };
    // Sorts the places behind the first `from`, up to `to`.
    const auto sort = [&](size_t from, size_t to) {
      const auto at = [&](size_t i) { return order.begin() + static_cast<ptrdiff_t>(i); };
      if (to < order.size()) std::nth_element(at(from), at(to), order.end());
      std::sort(at(from), at(to));
    };
    size_t sorted = 0;
    if (top) {
      const auto most = static_cast<size_t>(std::fmin(std::fmax(numbers[3], 1), static_cast<double>(n)));
      sort(0, most);
      order.resize(sorted = most);
    }
    double most = std::numeric_limits<double>::infinity(), before = 0;
    if (filter && numbers[1] < 1) most = numbers[1] * std::accumulate(order.begin(), order.end(), 0.0, [&](double sum, uint64_t p) { return sum + share(number(p)); });
    for (size_t i = 0; i < order.size(); ++i) {
      if (i == sorted) sort(i, sorted = std::min(order.size(), 4 * i + 256));  // the likeliest ones are few
      const Token next{number(order[i]), share(number(order[i]))};
      if (filter && (before >= most || next.share < numbers[2])) break;
      before += next.share;
      kept.push_back(next);
    }
  }
  const double target = uniform * std::accumulate(kept.begin(), kept.end(), 0.0, [](double sum, const Token& t) { return sum + t.share; });
  double running = 0;
  for (const Token& t : kept) {
    if ((running += t.share) > target) return t.number;
  }
  return likeliest;
}

void on_cpu(const Inputs& of, int64_t row) {
  const int64_t rows = of.rows(), n = of.count(), uniforms = of.uniforms.numel() / rows, position = of.position.const_data_ptr<int64_t>()[row] + 1;
  if (rows > 1 && position <= 0) return;
  TORCH_CHECK(position >= 0 && position < uniforms, kOperator, ": the position is ", position, ", and there are ", uniforms, " uniforms");
  const float* const numbers = of.numbers.const_data_ptr<float>() + row * (of.numbers.numel() / rows);
  const bool top = rows > 1 ? numbers[3] >= 1 : of.top, filter = rows > 1 ? numbers[1] < 1 || numbers[2] > 0 : of.filter;
  const float uniform = of.uniforms.const_data_ptr<float>()[row * uniforms + position];
  const int64_t token = drawn_on_cpu(of.changed.const_data_ptr<float>() + row * n, n, numbers, top, filter, uniform);
  const float* const logits = of.logits.const_data_ptr<float>() + row * n;
  of.token.mutable_data_ptr<int64_t>()[row] = token;
  of.position.mutable_data_ptr<int64_t>()[row] = position;
  double* const result = of.result.mutable_data_ptr<double>() + row * (of.result.numel() / rows);
  result[0] = static_cast<double>(token);
  result[1] = log_probability(logits, n, token);
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
  int of_numbers;
  int of_uniforms;
  int of_result;
};

void token_drawn(const at::Tensor& logits, const at::Tensor& changed, const at::Tensor& numbers, const at::Tensor& uniforms, at::Tensor& token,
                 at::Tensor& position, at::Tensor& result, bool top, bool filter, c10::string_view edge_name) {
  const Inputs of{logits, changed, numbers, uniforms, token, position, result, top, filter};
  of.check();
  const Edge edge = edge_of(kOperator, {edge_name.data(), edge_name.size()}, logits.device());
  const int64_t rows = of.rows();
  if (!logits.is_cuda()) {
    on_threads(token.view({-1}), 64 * logits.numel(), [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; ++row) on_cpu(of, row);
    });
    return;
  }
  const c10::DeviceIndex device = logits.device().index();
  const CudaChip chip = cuda().chip(device);
  const unsigned blocks = chip.capability >= 90 ? kCluster : 1;
  const int64_t items = (of.count() + blocks * kThreads - 1) / (blocks * kThreads), bytes = items * kThreads * 4;
  const bool one = rows == 1, by_top = one && top, by_filter = one && filter;
  const bool kept = bytes <= chip.shared_memory - 16384;  // besides there are less than 16 KB
  const CudaProgram& program = variant_of(std::tuple(static_cast<int>(edge), blocks, items, kept, by_top, by_filter, one), [&] {
    return Variant{"a drawn token",
                   "\n" + define("EDGE", edge) + define("BLOCKS", blocks) + define("ITEMS", items) + define("KEEP", kept) + define("TOP", by_top) +
                       define("FILTER", by_filter) + define("ROWS", !one) + kEdgesText + kTokenBestText,
                   kTokenDrawnText, /*fused_multiply_add=*/true};
  });
  Drawn d{logits.const_data_ptr(), changed.const_data_ptr(), numbers.const_data_ptr(), uniforms.const_data_ptr(), token.mutable_data_ptr(),
          position.mutable_data_ptr(), result.mutable_data_ptr(), static_cast<int>(of.count()), static_cast<int>(numbers.numel() / rows),
          static_cast<int>(uniforms.numel() / rows), static_cast<int>(result.numel() / rows)};
  void* arguments[] = {&d};
  cuda().launch(program, "token_drawn", images::stream_of(logits), blocks, kThreads, arguments, kept ? static_cast<int>(bytes) : 0, start_of(edge), blocks,
                static_cast<unsigned>(rows));
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
