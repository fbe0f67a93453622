// The likeliest token and the logarithm of a token's probability on the CPU. All operators that end
// a decoder's step tell the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

namespace ct {

// Returns the first of the largest of n logits. A NaN is larger than all numbers.
inline int64_t likeliest_of(const float* logits, int64_t n) {
  const float* const nan = std::find_if(logits, logits + n, [](float v) { return std::isnan(v); });
  return (nan != logits + n ? nan : std::max_element(logits, logits + n)) - logits;
}

// Returns the logarithm of the probability that the softmax of n logits gives a token. If the
// largest logit is not finite, there is none, and the result is NaN.
inline double log_probability(const float* logits, int64_t n, int64_t token) {
  const double largest = *std::max_element(logits, logits + n);
  if (!std::isfinite(largest)) return std::numeric_limits<double>::quiet_NaN();
  const double sum = std::accumulate(logits, logits + n, 0.0, [&](double before, float v) { return before + std::exp(v - largest); });
  return logits[token] - largest - std::log(sum);
}

}  // namespace ct
