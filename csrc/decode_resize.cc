#include "decode_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace decode {
namespace {

// Weights are fixed-point: 8 bits for the pixel, 2 for sums that leave 0..255, the rest for the weight.
constexpr int kBits = 32 - 8 - 2;
constexpr int32_t kHalf = 1 << (kBits - 1);

uint8_t clipped(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kBits, 0, 255)); }

}  // namespace

void Axis::set(int in, int out, int from, int many) {
  const double scale = static_cast<double>(in) / out;
  const double spread = std::max(scale, 1.0);  // a smaller result averages more source pixels; a larger one still two
  taps = static_cast<int>(std::ceil(spread)) * 2 + 1;
  first.resize(many);
  count.resize(many);
  weights.assign(static_cast<size_t>(many) * taps, 0);
  std::vector<double> exact(taps);
  const double shrink = 1.0 / spread;
  for (int i = 0; i < many; ++i) {
    const double centre = (from + i + 0.5) * scale;
    const int begin = std::max(static_cast<int>(centre - spread + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + spread + 0.5), in);
    double sum = 0;
    for (int j = begin; j < end; ++j) {
      const double distance = std::abs((j - centre + 0.5) * shrink);
      exact[j - begin] = distance < 1 ? 1 - distance : 0;
      sum += exact[j - begin];
    }
    int32_t* w = &weights[static_cast<size_t>(i) * taps];
    for (int j = 0; j < end - begin; ++j) {
      const double share = sum != 0 ? exact[j] / sum : exact[j];
      w[j] = static_cast<int32_t>(share * (1 << kBits) + 0.5);
    }
    first[i] = begin;
    count[i] = end - begin;
  }
}

namespace {

// across writes `rows` rows of x.first.size() pixels.
template <int C>
void across(const uint8_t* in, size_t in_stride, int rows, const Axis& x, uint8_t* out, size_t out_stride) {
  const size_t many = x.first.size();
  for (int y = 0; y < rows; ++y, in += in_stride, out += out_stride) {
    const int32_t* w = x.weights.data();
    for (size_t i = 0; i < many; ++i, w += x.taps) {
      const uint8_t* p = in + static_cast<size_t>(x.first[i]) * C;
      int32_t sum[C];
      for (int c = 0; c < C; ++c) sum[c] = kHalf;
      for (int j = 0; j < x.count[i]; ++j, p += C) {
        for (int c = 0; c < C; ++c) sum[c] += p[c] * w[j];
      }
      for (int c = 0; c < C; ++c) out[i * C + c] = clipped(sum[c]);
    }
  }
}

// down writes y.first.size() rows of `row` bytes.
void down(const uint8_t* in, size_t in_stride, size_t row, const Axis& y, uint8_t* out, size_t out_stride) {
  const int32_t* w = y.weights.data();
  for (size_t i = 0; i < y.first.size(); ++i, w += y.taps, out += out_stride) {
    const uint8_t* p = in + y.first[i] * in_stride;
    for (size_t b = 0; b < row; ++b) {
      int32_t sum = kHalf;
      for (int j = 0; j < y.count[i]; ++j) sum += p[j * in_stride + b] * w[j];
      out[b] = clipped(sum);
    }
  }
}

// The source pixels that an axis reads.
int begin_of(const Axis& axis) { return axis.first.front(); }
int end_of(const Axis& axis) { return axis.first.back() + axis.count.back(); }

}  // namespace

void Resizer::resize(const View& from, int height, int width, const Box& window, uint8_t* to, size_t stride) {
  const int c = from.channels;
  const auto horizontally = c == 1 ? across<1> : across<3>;
  x_.set(from.width, width, window.left, window.width);
  y_.set(from.height, height, window.top, window.height);
  // Pillow rounds to 8 bits between the passes, so their order shows. It begins with the vertical pass where that leaves
  // much less to do; older versions never did.
  if (from.height > height && from.height - height > 2 * (from.width - width)) {
    const size_t row = static_cast<size_t>(from.width) * c;
    uint8_t* const flat = between_.bytes(row * window.height);
    const size_t left = static_cast<size_t>(begin_of(x_)) * c, right = static_cast<size_t>(end_of(x_)) * c;
    down(from.data + left, from.stride, right - left, y_, flat + left, row);
    horizontally(flat, row, window.height, x_, to, stride);
    return;
  }
  const size_t row = static_cast<size_t>(window.width) * c;
  const int top = begin_of(y_), bottom = end_of(y_);
  uint8_t* const narrow = between_.bytes(row * (bottom - top));
  horizontally(from.row(top), from.stride, bottom - top, x_, narrow, row);
  for (int& first : y_.first) first -= top;
  down(narrow, row, row, y_, to, stride);
}

void Resizer::trim(size_t most) { between_.trim(most); }

}  // namespace decode
