#include "decode/resize.h"

#include <algorithm>

#include "decode/resize_avx2.h"
#include "kernels/resample.h"

namespace decode {
namespace {

using namespace ct::resample;

constexpr int32_t kLow = (1 << kLowBits) - 1;

}  // namespace

size_t Axis::need(Span part, int out, int many) {
  const size_t taps = taps_of(part.length / out);
  return many * taps * 2 * sizeof(int32_t) + taps * sizeof(double) + many * 2 * sizeof(int);
}

size_t Axis::size() const {
  return (weights.capacity() + halves.capacity()) * sizeof(int32_t) + exact_.capacity() * sizeof(double) +
         (first.capacity() + count.capacity()) * sizeof(int);
}

void Axis::free() { *this = Axis(); }

void Axis::set(int in, Span part, int out, int from, int many) {
  const ct::resample::Axis axis = axis_of(in, part.begin, part.length, out);
  source = in;
  taps = taps_of(axis.scale);
  most = 0;
  // assign is used because it grows a vector to no more than the size it needs.
  first.assign(many, 0);
  count.assign(many, 0);
  weights.assign(static_cast<size_t>(many) * taps, 0);
  halves.assign(weights.size(), 0);
  exact_.assign(taps, 0);
  for (int i = 0; i < many; ++i) {
    const auto [centre, begin, end] = reach_of(axis, from + i);
    double sum = 0;
    for (int j = begin; j < end; ++j) sum += exact_[j - begin] = exact_of(axis, centre, j);
    int32_t* w = &weights[static_cast<size_t>(i) * taps];
    for (int j = 0; j < end - begin; ++j) w[j] = weight_of(exact_[j], sum);
    first[i] = begin;
    count[i] = end - begin;
    most = std::max(most, count[i]);
    int32_t* h = &halves[static_cast<size_t>(i) * taps];
    for (int j = 0; j < taps; j += 2) {
      h[j] = (w[j] & kLow) | (w[j + 1] & kLow) << 16;
      h[j + 1] = w[j] >> kLowBits | w[j + 1] >> kLowBits << 16;
    }
  }
}

namespace {

// The horizontal pass. Writes `rows` rows of x.first.size() pixels.
template <int C>
void across(const Pass& pass, const Axis& x, size_t rows) {
  for (size_t y = 0; y < rows; ++y) {
    const uint8_t* in = pass.in + y * pass.in_stride;
    uint8_t* out = pass.out + y * pass.out_stride;
    const int32_t* w = x.weights.data();
    for (size_t i = 0; i < x.first.size(); ++i, w += x.taps, out += C) {
      const uint8_t* p = in + static_cast<size_t>(x.first[i]) * C;
      int32_t sum[C];
      for (int c = 0; c < C; ++c) sum[c] = kHalf;
      for (int j = 0; j < x.count[i]; ++j, p += C) {
        for (int c = 0; c < C; ++c) sum[c] += p[c] * w[j];
      }
      for (int c = 0; c < C; ++c) out[c] = clipped(sum[c]);
    }
  }
}

// The vertical pass. Writes y.first.size() rows of `row` bytes.
void down(const Pass& pass, const Axis& y, size_t row) {
  const int32_t* w = y.weights.data();
  for (size_t i = 0; i < y.first.size(); ++i, w += y.taps) {
    const uint8_t* in = pass.in + y.first[i] * pass.in_stride;
    uint8_t* out = pass.out + i * pass.out_stride;
    for (size_t b = 0; b < row; ++b) {
      int32_t sum = kHalf;
      for (int j = 0; j < y.count[i]; ++j) sum += in[j * pass.in_stride + b] * w[j];
      out[b] = clipped(sum);
    }
  }
}

}  // namespace

Resizer::Resizer([[maybe_unused]] bool portable) : across_grey_(across<1>), across_rgb_(across<3>), down_(down) {
#ifdef __x86_64__
  if (portable || !__builtin_cpu_supports("avx2")) return;
  across_rgb_ = across_rgb_avx2;
  down_ = down_avx2;
#endif
}

void Resizer::resize(const View& from, const Region& region, int height, int width, const Box& window, uint8_t* to,
                     size_t stride) {
  const size_t c = from.channels;
  const auto across = c == 1 ? across_grey_ : from.width < kLeastWidthAvx2 ? decode::across<3> : across_rgb_;
  x_.set(from.width, region.columns, width, window.left, window.width);
  y_.set(from.height, region.rows, height, window.top, window.height);
  if (down_first(from.height, from.width, height, width)) {
    const size_t row = from.width * c;
    uint8_t* const flat = between_.bytes(row * window.height);
    const size_t left = x_.begin() * c, right = x_.end() * c;
    down_({from.data + left, from.stride, flat + left, row}, y_, right - left);
    across({flat, row, to, stride}, x_, window.height);
    return;
  }
  const size_t row = window.width * c;
  const int top = y_.begin(), bottom = y_.end();
  uint8_t* const narrow = between_.bytes(row * (bottom - top));
  across({from.row(top), from.stride, narrow, row}, x_, bottom - top);
  for (int& first : y_.first) first -= top;
  down_({narrow, row, to, stride}, y_, row);
}

Need Resizer::need(const View& from, const Region& region, int height, int width, const Box& window) {
  const double scale = region.rows.length / height;
  // The number of source rows that are read.
  const double rows = std::min<double>(window.height * scale + 2 * spread_of(scale) + 1, from.height);
  Need need;
  need.between = down_first(from.height, from.width, height, width) ? static_cast<size_t>(from.width) * window.height
                                                                    : static_cast<size_t>(rows) * window.width;
  need.between *= from.channels;
  need.vectors = Axis::need(region.columns, width, window.width) + Axis::need(region.rows, height, window.height);
  return need;
}

// The first pass makes at most as many pixels as it reads, unless it makes the image wider. If it
// makes the image wider, the second pass makes the image higher. The window then needs at most
// three more source rows than it has rows itself. The number of taps is at most twice the source
// pixels, plus nine for each result pixel.
Need Resizer::most(int64_t pixels, int64_t sides, int channels, int height, int width) {
  const int64_t window = int64_t{height} + width, taps = 2 * sides + 9 * window;
  Need need;
  need.between = channels * std::max(pixels, int64_t{width} * (height + 3));
  need.vectors = taps * 2 * sizeof(int32_t) + (2 * sides + 18) * sizeof(double) + window * 2 * sizeof(int);
  return need;
}

Need Resizer::held() const {
  Need held;
  held.between = between_.size();
  held.vectors = x_.size() + y_.size();
  return held;
}

void Resizer::free() {
  between_.free();
  x_.free();
  y_.free();
}

}  // namespace decode
