// Antialiased bilinear resize of uint8 pixels: Pillow's algorithm, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "decode/need.h"
#include "decode/pages.h"
#include "decode/raster.h"

namespace decode {

// Weights are fixed-point: of 32 bits, 8 are the pixel's and 2 are for sums that leave 0 to 255.
constexpr int kWeightBits = 32 - 8 - 2;
constexpr int kLowBits = 15;  // of them, the low half of a weight. See Note [Weights in halves]

// Span is a part of an axis, in pixels. It may begin and end within a pixel.
struct Span {
  double begin, length;
};

// Region is a part of an image.
struct Region {
  Span rows, columns;

  static Region all(const View& of) { return {{0, static_cast<double>(of.height)}, {0, static_cast<double>(of.width)}}; }
};

// Axis holds, for each result pixel along one axis, the source pixels it averages and their
// weights.
struct Axis {
  int source = 0;                // source pixels
  // Weights stored for each result pixel, a multiple of 4. Those after `count` are 0.
  int taps = 0;
  int most = 0;                  // the largest count
  std::vector<int, Pages<int>> first;            // first source pixel
  std::vector<int, Pages<int>> count;            // number of source pixels
  std::vector<int32_t, Pages<int32_t>> weights;  // taps each, in units of 2^-22

  // The same weights in halves. For taps 2i and 2i + 1 there is first a word with both low halves,
  // then a word with both high halves.
  std::vector<int32_t, Pages<int32_t>> halves;

  // set resizes the part of `in` pixels to `out` and keeps `many` of those, from `from` on.
  void set(int in, Span part, int out, int from, int many);

  // need returns the bytes that set takes.
  static size_t need(Span part, int out, int many);
  size_t size() const;
  void free();

  int begin() const { return first.front(); }  // of all source pixels that are read
  int end() const { return first.back() + count.back(); }

 private:
  std::vector<double, Pages<double>> exact_;
};

// Pass is the source and the target of one pass. Strides are in bytes.
struct Pass {
  const uint8_t* in;
  size_t in_stride;
  uint8_t* out;
  size_t out_stride;
};

// Resizer resizes one image after another and keeps its memory between them.
class Resizer {
 public:
  explicit Resizer(bool portable = false);  // portable: without AVX2, with the same result

  // resize writes the window of `to` (top, left, height, width) of a region of `from` resized to
  // height x width. It reads nothing outside of the pixels that hold the region. The result's rows
  // are `stride` bytes apart and have from.channels channels, 1 or 3.
  void resize(const View& from, const Region& region, int height, int width, const Box& window, uint8_t* to, size_t stride);

  // need returns the most memory that resize takes for a `from` of that shape.
  static Need need(const View& from, const Region& region, int height, int width, const Box& window);
  // most returns a bound of the need of any image of up to so many pixels, for windows of up to
  // height x width. The image's two sides are together no more than `sides`.
  static Need most(int64_t pixels, int64_t sides, int channels, int height, int width);
  Need held() const;
  void free();

 private:
  void (*across_grey_)(const Pass&, const Axis&, size_t rows);
  void (*across_rgb_)(const Pass&, const Axis&, size_t rows);
  void (*down_)(const Pass&, const Axis&, size_t row);
  Axis x_, y_;
  Buffer between_;  // after the first pass
};

}  // namespace decode
