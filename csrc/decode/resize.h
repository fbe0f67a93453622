// Resizes uint8 pixels: antialiased and bilinear, with Pillow's algorithm. The results are equal
// to Pillow's bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "decode/need.h"
#include "decode/pages.h"
#include "decode/raster.h"
#include "kernels/resample.h"

namespace decode {

using ct::resample::kWeightBits;
constexpr int kLowBits = 15;  // the bits of the low half of a weight; see Note [Weights in halves]

// Span is a part of an axis, in pixels. It may begin and end inside a pixel.
struct Span {
  double begin, length;
};

// Region is a part of an image.
struct Region {
  Span rows, columns;

  static Region all(const View& of) { return {{0, static_cast<double>(of.height)}, {0, static_cast<double>(of.width)}}; }
};

// Axis holds what the resize along one axis needs. For each result pixel, it has the source
// pixels to average and their weights.
struct Axis {
  int source = 0;                // the number of source pixels of the axis
  // How many weights are stored for each result pixel, a multiple of 4. A result pixel uses only
  // the first `count` of its weights. Its further weights are 0.
  int taps = 0;
  int most = 0;                  // the largest value in `count`
  std::vector<int, Pages<int>> first;            // for each result pixel: its first source pixel
  std::vector<int, Pages<int>> count;            // for each result pixel: how many source pixels it averages
  std::vector<int32_t, Pages<int32_t>> weights;  // `taps` for each result pixel, in units of 2^-22

  // The same weights, each cut into a low half and a high half. Two words hold the taps 2i and
  // 2i+1. The first word has the low halves of both weights. The second word has the high halves.
  std::vector<int32_t, Pages<int32_t>> halves;

  // set prepares the resize along one axis. The span `part` of `in` source pixels becomes `out`
  // result pixels. Of the result pixels, `many` are kept, beginning with number `from`.
  void set(int in, Span part, int out, int from, int many);

  // Returns the bytes that the function `set` takes.
  static size_t need(Span part, int out, int many);
  size_t size() const;
  void free();

  int begin() const { return first.front(); }  // the first source pixel that any result pixel reads
  int end() const { return first.back() + count.back(); }

 private:
  std::vector<double, Pages<double>> exact_;
};

// Pass has the source and the target of one pass. Strides are in bytes.
struct Pass {
  const uint8_t* in;
  size_t in_stride;
  uint8_t* out;
  size_t out_stride;
};

// Resizer resizes images one after another. It keeps its memory from one image to the next.
class Resizer {
 public:
  explicit Resizer(bool portable = false);  // portable: without AVX2, with the same result

  // Resizes a region of `from` to height x width, and writes the part `window` of the result to
  // `to`. Reads no pixel outside the region, except those that the region's edges cut. The result's
  // rows are `stride` bytes apart and have from.channels channels, 1 or 3.
  void resize(const View& from, const Region& region, int height, int width, const Box& window, uint8_t* to, size_t stride);

  // Returns the most memory that the function `resize` takes for a view of the shape of `from`.
  static Need need(const View& from, const Region& region, int height, int width, const Box& window);
  // Returns an upper bound of the need of one image of at most `pixels` pixels, with a window of at
  // most height x width. The two sides of the image, added, are at most `sides`.
  static Need most(int64_t pixels, int64_t sides, int channels, int height, int width);
  Need held() const;
  void free();

 private:
  void (*across_grey_)(const Pass&, const Axis&, size_t rows);
  void (*across_rgb_)(const Pass&, const Axis&, size_t rows);
  void (*down_)(const Pass&, const Axis&, size_t row);
  Axis x_, y_;
  Buffer between_;  // the pixels after the first pass
};

}  // namespace decode
