// From the planes of a JPEG to its place in the batch: colours, crop and resize. The CPU and CUDA
// share this source. It gives the bytes of libjpeg-turbo and decode/resize.cc, to the bit.
//
// The planes are those of the whole image, as libjpeg's slow integer transform makes them. Of the
// box, only the pixels that the resize reads become RGB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "include/cgotorch_decode.h"
#include "kernels/both_devices.h"
#include "kernels/resample.h"

namespace ct::jpeg {

using namespace resample;

CT_ON_BOTH_DEVICES(kText,

constexpr int kMostTaps = 20;  // taps_of(kMostScale)

// Plane has the samples of one component. The chroma's planes are smaller by 1 << across and
// 1 << down.
struct Plane {
  unsigned char* data;
  int height;
  int width;  // the rows have no gaps
};

struct alignas(4) Rgb {
  unsigned char channel[4];  // the last is not used
};

// Taps has what one result pixel averages along one axis. `first` counts from the first pixel of
// the box.
struct Taps {
  int first;
  int count;
  int weight[kMostTaps];
};

// Frame is one image on its way. `pixels` are the pixels of the box that the resize reads, and
// `between` are the pixels after its first pass.
struct Frame {
  Plane planes[3];  // Y, Cb and Cr
  int across;
  int down;
  int box_top;
  int box_left;
  int box_height;
  int box_width;
  int resized_height;
  int resized_width;
  int top;   // the result's place in the resized box
  int left;
  int height;  // of the result
  int width;
  int part_top;  // the part of the box that the resize reads
  int part_left;
  int part_height;
  int part_width;
  Taps* rows;     // `height` of them
  Taps* columns;  // `width` of them
  Rgb* pixels;    // part_height x part_width
  Rgb* between;   // see between_height and between_width
  unsigned char* to;  // height x width x 3
};

CT_FUNCTION bool goes_down_first(const Frame& f) { return down_first(f.box_height, f.box_width, f.resized_height, f.resized_width); }
CT_FUNCTION int between_height(const Frame& f) { return goes_down_first(f) ? f.height : f.part_height; }
CT_FUNCTION int between_width(const Frame& f) { return goes_down_first(f) ? f.part_width : f.width; }
CT_FUNCTION Axis rows_of(const Frame& f) { return axis_of(f.box_height, 0, f.box_height, f.resized_height); }
CT_FUNCTION Axis columns_of(const Frame& f) { return axis_of(f.box_width, 0, f.box_width, f.resized_width); }

CT_FUNCTION int clamped(int value, int most) { return value < 0 ? 0 : value > most ? most : value; }

// Returns a component's value at a pixel of the frame. The chroma is upsampled as libjpeg's
// "fancy" upsampling does: a sample has three quarters of the weight, and its nearest neighbour
// has one quarter. libjpeg repeats the samples if a row has one or two of them.
CT_FUNCTION int upsampled(const Plane& plane, int across, int down, int y, int x) {
  const int near_x = x >> across;
  const unsigned char* near = plane.data + static_cast<long long>(y >> down) * plane.width;
  if (across == 0 || plane.width <= 2) return near[near_x];
  const int odd = x & 1;
  const int far_x = clamped(near_x + 2 * odd - 1, plane.width - 1);
  if (down == 0) return (3 * near[near_x] + near[far_x] + 1 + odd) >> 2;
  const int far_y = clamped((y >> 1) + 2 * (y & 1) - 1, plane.height - 1);
  const unsigned char* far = plane.data + static_cast<long long>(far_y) * plane.width;
  return (3 * (3 * near[near_x] + far[near_x]) + 3 * near[far_x] + far[far_x] + 8 - odd) >> 4;
}

// Returns the colour of a pixel of the frame. The constants are libjpeg's, in units of 2^-16.
CT_FUNCTION Rgb colour_of(const Frame& f, int y, int x) {
  const int luma = f.planes[0].data[static_cast<long long>(y) * f.planes[0].width + x];
  const int cb = upsampled(f.planes[1], f.across, f.down, y, x) - 128;
  const int cr = upsampled(f.planes[2], f.across, f.down, y, x) - 128;
  Rgb p;
  p.channel[0] = static_cast<unsigned char>(clamped(luma + ((91881 * cr + 32768) >> 16), 255));
  p.channel[1] = static_cast<unsigned char>(clamped(luma + ((-22554 * cb - 46802 * cr + 32768) >> 16), 255));
  p.channel[2] = static_cast<unsigned char>(clamped(luma + ((116130 * cb + 32768) >> 16), 255));
  p.channel[3] = 0;
  return p;
}

// Averages the pixels that lie `stride` apart from `from` on.
CT_FUNCTION Rgb averaged(const Rgb* from, int stride, const Taps& taps) {
  int sum[3] = {kHalf, kHalf, kHalf};
  for (int j = 0; j < taps.count; ++j) {
    const Rgb p = from[static_cast<long long>(j) * stride];
    for (int c = 0; c < 3; ++c) sum[c] += p.channel[c] * taps.weight[j];
  }
  Rgb out;
  for (int c = 0; c < 3; ++c) out.channel[c] = clipped(sum[c]);
  out.channel[3] = 0;
  return out;
}

// Team says which share of a step a thread does. The rows are divided among `blocks`, and the
// pixels of a row among `threads`.
struct Team {
  int block;
  int blocks;
  int thread;
  int threads;
};

// The steps of a frame. Each reads what the steps before it have written. Everything is done when
// every thread of every block has done its share.

CT_FUNCTION void make_taps(const Frame& f, const Team& team) {
  for (int i = team.block * team.threads + team.thread; i < f.height + f.width; i += team.blocks * team.threads) {
    const bool row = i < f.height;
    const Axis axis = row ? rows_of(f) : columns_of(f);
    const Reach reach = reach_of(axis, row ? f.top + i : f.left + i - f.height);
    Taps& taps = row ? f.rows[i] : f.columns[i - f.height];
    double sum = 0;
    for (int j = reach.begin; j < reach.end; ++j) sum += exact_of(axis, reach.centre, j);
    for (int j = reach.begin; j < reach.end; ++j) taps.weight[j - reach.begin] = weight_of(exact_of(axis, reach.centre, j), sum);
    taps.first = reach.begin;
    taps.count = reach.end - reach.begin;
  }
}

CT_FUNCTION void make_pixels(const Frame& f, const Team& team) {
  for (int y = team.block; y < f.part_height; y += team.blocks) {
    Rgb* row = f.pixels + static_cast<long long>(y) * f.part_width;
    for (int x = team.thread; x < f.part_width; x += team.threads) {
      row[x] = colour_of(f, f.box_top + f.part_top + y, f.box_left + f.part_left + x);
    }
  }
}

CT_FUNCTION void make_between(const Frame& f, const Team& team) {
  const bool down = goes_down_first(f);
  const int height = between_height(f);
  const int width = between_width(f);
  for (int y = team.block; y < height; y += team.blocks) {
    Rgb* row = f.between + static_cast<long long>(y) * width;
    for (int x = team.thread; x < width; x += team.threads) {
      const int top = down ? f.rows[y].first - f.part_top : y;
      const int left = down ? x : f.columns[x].first - f.part_left;
      const Rgb* from = f.pixels + static_cast<long long>(top) * f.part_width + left;
      row[x] = down ? averaged(from, f.part_width, f.rows[y]) : averaged(from, 1, f.columns[x]);
    }
  }
}

CT_FUNCTION void make_result(const Frame& f, const Team& team) {
  const bool down = goes_down_first(f);
  const int between = between_width(f);
  for (int y = team.block; y < f.height; y += team.blocks) {
    unsigned char* row = f.to + static_cast<long long>(y) * f.width * 3;
    for (int x = team.thread; x < f.width; x += team.threads) {
      const int top = down ? y : f.rows[y].first - f.part_top;
      const int left = down ? f.columns[x].first - f.part_left : x;
      const Rgb* from = f.between + static_cast<long long>(top) * between + left;
      const Rgb p = down ? averaged(from, 1, f.columns[x]) : averaged(from, between, f.rows[y]);
      for (int c = 0; c < 3; ++c) row[3 * x + c] = p.channel[c];
    }
  }
}

)  // CT_ON_BOTH_DEVICES

constexpr int kMostScale = 8;  // source pixels for a result pixel, at most, along each axis
static_assert(kMostTaps >= 2 * kMostScale + 1);

// Returns whether the frame keeps the promises of ctd_frame that matter to the kernels' memory.
inline bool valid(const ctd_frame& f, int height, int width) {
  const auto inside = [](int64_t begin, int64_t length, int64_t whole) { return begin >= 0 && length >= 1 && begin + length <= whole; };
  return f.data != nullptr && inside(f.box_top, f.box_height, f.height) && inside(f.box_left, f.box_width, f.width) &&
         inside(f.top, height, f.resized_height) && inside(f.left, width, f.resized_width) &&
         f.box_height <= int64_t{kMostScale} * f.resized_height && f.box_width <= int64_t{kMostScale} * f.resized_width;
}

// Returns the frame without its memory. sampling is CTD_444, CTD_422 or CTD_420. height and width
// are those of the result.
inline Frame frame_of(const ctd_frame& from, int sampling, int height, int width) {
  Frame f{};
  f.across = sampling == CTD_444 ? 0 : 1;
  f.down = sampling == CTD_420 ? 1 : 0;
  f.planes[0] = {nullptr, from.height, from.width};
  f.planes[1] = f.planes[2] = {nullptr, (from.height + f.down) >> f.down, (from.width + f.across) >> f.across};
  f.box_top = from.box_top;
  f.box_left = from.box_left;
  f.box_height = from.box_height;
  f.box_width = from.box_width;
  f.resized_height = from.resized_height;
  f.resized_width = from.resized_width;
  f.top = from.top;
  f.left = from.left;
  f.height = height;
  f.width = width;
  const Axis rows = rows_of(f), columns = columns_of(f);
  f.part_top = reach_of(rows, f.top).begin;
  f.part_left = reach_of(columns, f.left).begin;
  f.part_height = reach_of(rows, f.top + height - 1).end - f.part_top;
  f.part_width = reach_of(columns, f.left + width - 1).end - f.part_left;
  return f;
}

// Places the frame's memory from the address `at` on, all but the result. Returns the first
// address after it. Planes come first.
inline uintptr_t place(Frame& f, uintptr_t at) {
  const auto take = [&](auto*& pointer, size_t height, size_t width) {
    constexpr uintptr_t kAligned = 256;
    at = (at + kAligned - 1) / kAligned * kAligned;
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(at);
    at += height * width * sizeof *pointer;
  };
  for (Plane& plane : f.planes) take(plane.data, plane.height, plane.width);
  take(f.rows, f.height, 1);
  take(f.columns, f.width, 1);
  take(f.pixels, f.part_height, f.part_width);
  take(f.between, between_height(f), between_width(f));
  return at;
}

}  // namespace ct::jpeg
