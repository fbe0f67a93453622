// The arithmetic of a resize that is antialiased and bilinear. The CPU and CUDA share this source,
// so they give the same bytes. The algorithm and its rounding are Pillow's.
#pragma once

#include <math.h>

#include "kernels/both_devices.h"

namespace ct::resample {

CT_ON_BOTH_DEVICES(kText,

// Weights are fixed-point numbers of 22 fractional bits. Of the 32 bits of a product, 8 are for
// the pixel, and 2 are for sums that leave the range 0 to 255.
constexpr int kWeightBits = 32 - 8 - 2;
constexpr int kHalf = 1 << (kWeightBits - 1);

CT_FUNCTION unsigned char clipped(int sum) {
  const int value = sum >> kWeightBits;
  return static_cast<unsigned char>(value < 0 ? 0 : value > 255 ? 255 : value);
}

// For a smaller result, each pixel averages more source pixels. For a larger result, each pixel
// still averages two.
CT_FUNCTION double spread_of(double scale) { return scale > 1.0 ? scale : 1.0; }

// Returns room for the weights of a result pixel: at least its source pixels, and a multiple of 4.
CT_FUNCTION int taps_of(double scale) { return (static_cast<int>(ceil(spread_of(scale))) * 2 + 5) / 4 * 4; }

// Axis is the resize along one axis.
struct Axis {
  double begin;   // where the part begins that is resized, in source pixels
  double scale;   // source pixels for each result pixel
  double spread;  // how many source pixels a result pixel reaches to each side
  double shrink;  // 1 / spread
  int least;      // the first source pixel of the part
  int last;       // one more than the last source pixel of the part
};

// Returns the resize of a part of `in` source pixels to `out` result pixels.
CT_FUNCTION Axis axis_of(int in, double begin, double length, int out) {
  Axis a;
  a.begin = begin;
  a.scale = length / out;
  a.spread = spread_of(a.scale);
  a.shrink = 1.0 / a.spread;
  a.least = static_cast<int>(begin);
  const int last = static_cast<int>(ceil(begin + length));
  a.last = last < in ? last : in;
  return a;
}

// Reach says which source pixels a result pixel averages.
struct Reach {
  double centre;
  int begin;
  int end;
};

CT_FUNCTION Reach reach_of(const Axis& a, int i) {
  Reach r;
  r.centre = a.begin + (i + 0.5) * a.scale;
  const int begin = static_cast<int>(r.centre - a.spread + 0.5);
  const int end = static_cast<int>(r.centre + a.spread + 0.5);
  r.begin = begin > a.least ? begin : a.least;
  r.end = end < a.last ? end : a.last;
  return r;
}

// Returns the weight of source pixel j, before the weights are divided by their sum.
CT_FUNCTION double exact_of(const Axis& a, double centre, int j) {
  const double distance = fabs((j - centre + 0.5) * a.shrink);
  return distance < 1 ? 1 - distance : 0;
}

CT_FUNCTION int weight_of(double exact, double sum) {
  const double share = sum != 0 ? exact / sum : exact;
  return static_cast<int>(share * (1 << kWeightBits) + 0.5);
}

// Returns whether the vertical pass is first. Pillow rounds to 8 bits between the passes, so the
// order of the passes changes the result. Pillow begins with the vertical pass if the second pass
// then has much less to do. Older versions of Pillow always began with the horizontal pass.
CT_FUNCTION bool down_first(int from_height, int from_width, int height, int width) {
  return from_height > height && from_height - height > 2 * (from_width - width);
}

)  // CT_ON_BOTH_DEVICES

}  // namespace ct::resample
