// Antialiased bilinear resize of uint8 pixels: Pillow's algorithm, bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "decode_raster.h"

namespace decode {

// Axis holds, for each result pixel along one axis, the source pixels it averages and their weights.
struct Axis {
  int taps = 0;                 // weights stored for each result pixel; those after the last source pixel are 0
  std::vector<int> first;       // first source pixel
  std::vector<int> count;       // number of source pixels
  std::vector<int32_t> weights; // taps each, in units of 2^-22

  // set resizes `in` pixels to `out` and keeps `many` of those, from `from` on.
  void set(int in, int out, int from, int many);
};

// Resizer resizes one image after another and keeps its memory between them.
class Resizer {
 public:
  // resize writes the window of `to` (top, left, height, width) of `from` resized to height x width. The result's rows
  // are `stride` bytes apart and have from.channels channels, 1 or 3.
  void resize(const View& from, int height, int width, const Box& window, uint8_t* to, size_t stride);
  void trim(size_t most);

 private:
  Axis x_, y_;
  Buffer between_;  // after the first pass
};

}  // namespace decode
