// The weights of a Gaussian blur. The CPU and CUDA share this source. It has an exponential of its
// own, because those of the two differ in the last bit.
#pragma once

#include <math.h>

#include "kernels/both_devices.h"

namespace ct::blur {

CT_ON_BOTH_DEVICES(kTapsText,

constexpr int kMaxTaps = 63;  // a tile and its surroundings must fit in a block's shared memory
constexpr int kTileRows = 32;
constexpr int kTileColumns = 64;

// Returns 2^-v for v of at least 0, to about 13 digits.
CT_FUNCTION double power_of_half(double v) {
  if (!(v < 200.0)) return 0.0;
  const double whole = ceil(v);
  const double x = (whole - v) * 0.6931471805599453;  // from 0 to ln 2
  double sum = 1.0;
  for (int i = 14; i > 0; --i) sum = 1.0 + sum * x / i;
  return ldexp(sum, -static_cast<int>(whole));
}

// Returns the weight of tap i before the weights are divided by their sum.
CT_FUNCTION double exact_of(int i, int taps, double sigma) {
  const double distance = i - taps / 2;
  return power_of_half(distance * distance / (2.0 * sigma * sigma) * 1.4426950408889634);
}

// Returns weight i of the taps. If sigma is not above 0, the tap in the middle has all the weight.
CT_FUNCTION float tap_of(int i, int taps, float sigma) {
  if (!(sigma > 0.0f)) return i == taps / 2 ? 1.0f : 0.0f;
  double sum = 0.0;
  for (int k = 0; k < taps; ++k) sum += exact_of(k, taps, sigma);
  return static_cast<float>(exact_of(i, taps, sigma) / sum);
}

)  // CT_ON_BOTH_DEVICES

}  // namespace ct::blur
