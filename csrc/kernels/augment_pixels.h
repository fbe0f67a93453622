// The arithmetic of an augmentation on one pixel. The CPU and CUDA share this source, so they
// give the same bytes. Every float operation rounds its result: csrc/CMakeLists.txt and
// cuda/program.cc forbid the compilers to fuse operations.
//
// The arithmetic is torchvision's on uint8 tensors (v2.functional), step by step in float32. It
// has a fused multiply-add where PyTorch's add(alpha=...) has one. On the CPU all bytes equal
// torchvision's (tests/fixtures/augment).
#pragma once

#include <math.h>

#include "kernels/both_devices.h"
#include "kernels/level.h"

namespace ct::augment {

CT_ON_BOTH_DEVICES(kPixelsText,

// The kinds have the numbers of cgotorch/images/step.go.
enum Kind { kNothing, kBrightness, kContrast, kSaturation, kHue, kPosterize, kSolarize, kAutoContrast, kEqualize, kSharpness, kAffine, kBilinear };

constexpr int kLevels = 256;
constexpr int kMaxSteps = 8;
constexpr int kStepValues = 7;

// Step is one row of the tensor of steps.
struct Step {
  float kind;
  float value[kStepValues];
};

CT_FUNCTION int kind_of(const Step& step) { return static_cast<int>(step.kind); }
// moves reports whether the step moves pixels. Value 6 of such a step is its fill: 0 for none, else
// 1 + red + 256 * green + 65,536 * blue. kAffine takes the nearest pixel. kBilinear weighs the four
// pixels around a place.
CT_FUNCTION bool moves(int kind) { return kind == kAffine || kind == kBilinear; }
// has_table reports whether a table of 256 entries for each channel gives the result. It does if
// the new value of a channel does not depend on the other channels.
CT_FUNCTION bool has_table(int kind) {
  return kind == kBrightness || kind == kContrast || kind == kPosterize || kind == kSolarize || kind == kAutoContrast || kind == kEqualize;
}
// needs_image reports whether the step's table depends on the whole image before the step. If
// needs_histogram is true, the table depends on the image's histograms. Else it depends on the
// sum of the image's grey values.
CT_FUNCTION bool needs_histogram(int kind) { return kind == kAutoContrast || kind == kEqualize; }
CT_FUNCTION bool needs_image(int kind) { return kind == kContrast || needs_histogram(kind); }

struct Source {
  const unsigned char* pixels;
  int height;
  int width;
  bool flip;
};

template <int C>
struct Pixel {
  unsigned char channel[C];
};

template <int C>
CT_FUNCTION Pixel<C> read(const Source& s, int y, int x) {
  const unsigned char* from = s.pixels + (static_cast<long long>(y) * s.width + (s.flip ? s.width - 1 - x : x)) * C;
  Pixel<C> p;
  for (int c = 0; c < C; ++c) p.channel[c] = from[c];
  return p;
}

// Returns the sharpened value. `sum` is the sum of the value's eight neighbours and five times
// the value. The blurred value is sum / 13. It is never halfway between two integers, so it can
// be rounded without floats.
CT_FUNCTION unsigned char sharpened(int value, int sum, const Step& step) {
  const float blurred = static_cast<float>((2 * sum + 13) / 26);
  return clamped(fmaf(step.value[1], blurred - static_cast<float>(value), static_cast<float>(value)));
}

template <int C>
CT_FUNCTION Pixel<C> sharpened(const Source& s, const Step& step, int y, int x) {
  Pixel<C> p = read<C>(s, y, x);
  if (y == 0 || x == 0 || y == s.height - 1 || x == s.width - 1) return p;
  int sum[C];
  for (int c = 0; c < C; ++c) sum[c] = 4 * p.channel[c];
  for (int dy = -1; dy <= 1; ++dy) {
    for (int dx = -1; dx <= 1; ++dx) {
      const Pixel<C> q = read<C>(s, y + dy, x + dx);
      for (int c = 0; c < C; ++c) sum[c] += q.channel[c];
    }
  }
  for (int c = 0; c < C; ++c) p.channel[c] = sharpened(p.channel[c], sum[c], step);
  return p;
}

// Prepares a step of the tensor for the size of an image. For an affine step, the result has the
// inverse matrix. The matrix maps a pixel, counted from the middle of the image, to coordinates
// from -1 to 1.
CT_FUNCTION Step ready(Step step, int height, int width) {
  if (moves(kind_of(step))) {
    for (int i = 0; i < 3; ++i) {
      step.value[i] /= 0.5f * static_cast<float>(width);
      step.value[3 + i] /= 0.5f * static_cast<float>(height);
    }
  }
  return step;
}

// Returns the fill of a step that moves pixels, which is 0 if the step has none.
CT_FUNCTION int fill_of(const Step& step, int channel) {
  const int fill = static_cast<int>(step.value[6]) - 1;
  return fill < 0 ? 0 : (fill >> (8 * channel)) & 255;
}

// Returns the pixel at a place between four pixels. A pixel outside the image counts as 0. With a
// fill, the share of the image is then filled up, as in torchvision.
template <int C>
CT_FUNCTION Pixel<C> between(const Source& s, const Step& step, float from_y, float from_x) {
  Pixel<C> p;
  const bool filled = step.value[6] >= 1.0f;
  if (!(from_x > -1.0f && from_x < s.width && from_y > -1.0f && from_y < s.height)) {
    for (int c = 0; c < C; ++c) p.channel[c] = static_cast<unsigned char>(fill_of(step, c));
    return p;
  }
  const float left = floorf(from_x);
  const float top = floorf(from_y);
  const float west = from_x - left;
  const float east = 1.0f - west;
  const float north = from_y - top;
  const float south = 1.0f - north;
  const float weights[4] = {east * south, west * south, east * north, west * north};
  float sum[C];
  float inside = 0.0f;
  for (int c = 0; c < C; ++c) sum[c] = 0.0f;
  for (int i = 0; i < 4; ++i) {
    const int y = static_cast<int>(top) + i / 2;
    const int x = static_cast<int>(left) + i % 2;
    if (y < 0 || y >= s.height || x < 0 || x >= s.width) continue;
    const Pixel<C> q = read<C>(s, y, x);
    for (int c = 0; c < C; ++c) sum[c] = fmaf(q.channel[c], weights[i], sum[c]);
    inside = inside + weights[i];
  }
  for (int c = 0; c < C; ++c) {
    const float fill = static_cast<float>(fill_of(step, c));
    p.channel[c] = clamped(rintf(filled ? (sum[c] - fill) * inside + fill : sum[c]));
  }
  return p;
}

template <int C>
CT_FUNCTION Pixel<C> moved(const Source& s, const Step& step, int y, int x) {
  const float from_middle_x = x - 0.5f * (s.width - 1);
  const float from_middle_y = y - 0.5f * (s.height - 1);
  const float grid_x = (from_middle_x * step.value[0] + from_middle_y * step.value[1]) + step.value[2];
  const float grid_y = (from_middle_x * step.value[3] + from_middle_y * step.value[4]) + step.value[5];
  const float exact_x = fmaf(grid_x + 1.0f, 0.5f * s.width, -0.5f);
  const float exact_y = fmaf(grid_y + 1.0f, 0.5f * s.height, -0.5f);
  if (kind_of(step) == kBilinear) return between<C>(s, step, exact_y, exact_x);
  const float from_x = rintf(exact_x);
  const float from_y = rintf(exact_y);
  if (from_x >= 0.0f && from_x < s.width && from_y >= 0.0f && from_y < s.height) {
    return read<C>(s, static_cast<int>(from_y), static_cast<int>(from_x));
  }
  Pixel<C> outside;
  for (int c = 0; c < C; ++c) outside.channel[c] = static_cast<unsigned char>(fill_of(step, c));
  return outside;
}

// Returns the pixel before the first step. If the first step looks at other pixels, returns the
// pixel after the first step instead. Only the first step may look at other pixels.
template <int C>
CT_FUNCTION Pixel<C> first(const Source& s, const Step& step, int y, int x) {
  const int kind = kind_of(step);
  if (kind == kSharpness) return sharpened<C>(s, step, y, x);
  if (moves(kind)) return moved<C>(s, step, y, x);
  return read<C>(s, y, x);
}

template <int C>
CT_FUNCTION float grey(const Pixel<C>& p) {
  if constexpr (C == 1) {
    return p.channel[0];
  } else {
    return floorf(fmaf(p.channel[2], 0.114f, fmaf(p.channel[1], 0.587f, p.channel[0] * 0.2989f)));
  }
}

template <int C>
CT_FUNCTION Pixel<C> saturated(Pixel<C> p, const Step& step) {
  if constexpr (C == 3) {
    const float without = grey<C>(p);
    for (int c = 0; c < C; ++c) p.channel[c] = clamped(fmaf(without, step.value[1], p.channel[c] * step.value[0]));
  }
  return p;
}

CT_FUNCTION float unit(float v) { return v < 0.0f ? 0.0f : v > 1.0f ? 1.0f : v; }

// Turns the hue of a pixel. Converts RGB to hue, saturation and value, and back.
template <int C>
CT_FUNCTION Pixel<C> turned(Pixel<C> p, const Step& step) {
  if constexpr (C == 3) {
    constexpr float scale = static_cast<float>(1.0 / 255);
    const float r = p.channel[0] * scale;
    const float g = p.channel[1] * scale;
    const float b = p.channel[2] * scale;
    const float redder = r > g ? r : g;
    const float least_of_two = r > g ? g : r;
    const float most = redder > b ? redder : b;
    const float least = least_of_two < b ? least_of_two : b;
    const float range = most - least;
    const bool grey_pixel = most == least;
    const float saturation = range / (grey_pixel ? 1.0f : most);
    const float divisor = grey_pixel ? 1.0f : range;
    const float from_r = (most - r) / divisor;
    const float from_g = (most - g) / divisor;
    const float from_b = (most - b) / divisor;
    const float sector = most == r ? from_b - from_g : most == g ? (from_r + 2.0f) - from_b : (from_g + 4.0f) - from_r;
    float hue = sector * static_cast<float>(1.0 / 6.0) + 1.0f;
    hue = hue - truncf(hue);
    hue = hue + step.value[0];
    hue = hue - truncf(hue);
    if (hue < 0.0f) hue = hue + 1.0f;
    const float six = hue * 6.0f;
    const float whole = floorf(six);
    const float within = saturation * (six - whole);
    const float without = 1.0f - saturation;
    const float high = most;
    const float falling = unit((1.0f - within) * most);
    const float rising = unit((within + without) * most);
    const float low = unit(without * most);
    const int which = static_cast<int>(whole) % 6;
    const float red = which == 0 || which == 5 ? high : which == 1 ? falling : which == 4 ? rising : low;
    const float green = which == 1 || which == 2 ? high : which == 0 ? rising : which == 3 ? falling : low;
    const float blue = which == 3 || which == 4 ? high : which == 2 ? rising : which == 5 ? falling : low;
    constexpr float back = static_cast<float>(255.0 + 1.0 - 1e-3);
    p.channel[0] = clamped(red * back);
    p.channel[1] = clamped(green * back);
    p.channel[2] = clamped(blue * back);
  }
  return p;
}

// Does a step that looks at no other pixels. If the step has a table, `table` is [C][256].
template <int C>
CT_FUNCTION Pixel<C> stepped(Pixel<C> p, const Step& step, const unsigned char* table) {
  const int kind = kind_of(step);
  if (has_table(kind)) {
    for (int c = 0; c < C; ++c) p.channel[c] = table[c * kLevels + p.channel[c]];
  } else if (kind == kSaturation) {
    p = saturated<C>(p, step);
  } else if (kind == kHue) {
    p = turned<C>(p, step);
  }
  return p;
}

// Returns the pixel after the first `count` steps. The function `ready` has prepared the steps.
// `tables` is [steps][C][256].
template <int C>
CT_FUNCTION Pixel<C> after(const Source& s, const Step* steps, int count, const unsigned char* tables, int y, int x) {
  Pixel<C> p = count > 0 ? first<C>(s, steps[0], y, x) : read<C>(s, y, x);
  for (int k = 0; k < count; ++k) p = stepped<C>(p, steps[k], tables + k * C * kLevels);
  return p;
}

// Summary holds what a table needs to know of one channel's histogram. The function `summarize`
// computes it, and turns the histogram into a cumulative histogram: for each value, the number of
// pixels with at most that value.
struct Summary {
  int low;
  int high;
  int unit;  // for equalize: the number of pixels for each step of the result
};

CT_FUNCTION Summary summarize(int* histogram) {
  Summary s;
  s.low = -1;
  s.high = 0;
  int pixels = 0;
  int last = 0;
  for (int v = 0; v < kLevels; ++v) {
    const int here = histogram[v];
    if (here > 0) {
      if (s.low < 0) s.low = v;
      s.high = v;
      last = here;
    }
    pixels += here;
    histogram[v] = pixels;
  }
  s.unit = (pixels - last) / 255;
  return s;
}

// Returns one entry of a step's table. `mean` is the mean of the grey values. `s` and
// `cumulative` belong to one channel. Each of these three is set only if the step needs it.
CT_FUNCTION unsigned char entry(const Step& step, float mean, const Summary& s, const int* cumulative, int value) {
  const float v = static_cast<float>(value);
  switch (kind_of(step)) {
    case kBrightness: return clamped(v * step.value[0]);
    case kContrast: return clamped(fmaf(mean, step.value[1], v * step.value[0]));
    case kPosterize: {
      const int bits = static_cast<int>(step.value[0]);
      return static_cast<unsigned char>(value & (((1 << bits) - 1) << (8 - bits)));
    }
    case kSolarize: return static_cast<unsigned char>(v >= step.value[0] ? 255 - value : value);
    case kAutoContrast: {
      if (s.high == s.low) return static_cast<unsigned char>(value);
      return clamped((v - s.low) / (static_cast<float>(s.high - s.low) * static_cast<float>(1.0 / 255)));
    }
    case kEqualize: {
      if (s.unit == 0) return static_cast<unsigned char>(value);
      if (value == 0) return 0;
      const int level = (cumulative[value - 1] + s.unit / 2) / s.unit;
      return static_cast<unsigned char>(level > 255 ? 255 : level);
    }
    default: return static_cast<unsigned char>(value);
  }
}

)  // CT_ON_BOTH_DEVICES

}  // namespace ct::augment
