#include "decode/crop.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "decode/random.h"
#include "decode/status.h"

namespace decode {
namespace {

// draw takes a number and gives random values. These are the numbers for each purpose. They must
// never change, because a saved run must resume with the same crops.
enum Choice : uint32_t { kFlip = 0, kCropPlace = 1, kBoxShape = 16, kBoxPlace = 32 };

constexpr int kTries = 10;
constexpr int kLongestSide = 65535;
constexpr int kMostWorkers = 1024;
constexpr int64_t kMostPixels = 100'000'000;
constexpr int64_t kMemory = 512 << 20;

[[noreturn]] void refuse(const std::string& text) { throw Error(CTD_INVALID_ARGUMENT, text); }

void in_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most) {
    refuse(std::string(name) + " is " + std::to_string(value) + "; it must be " + std::to_string(least) + " to " +
           std::to_string(most));
  }
}

void interval(const char* name, double& least, double& most, double default_least, double default_most, double limit) {
  if (least == 0) least = default_least;
  if (most == 0) most = default_most;
  if (!(least > 0 && least <= most && most <= limit)) {
    refuse(std::string(name) + " is " + std::to_string(least) + " to " + std::to_string(most) +
           "; the first must be above 0, and the second no less than the first and no more than " +
           std::to_string(limit));
  }
}

// Computes Python's round(v / 2): a half goes to the even neighbour.
int half_to_even(int v) {
  const int down = v / 2;
  return v % 2 != 0 && down % 2 != 0 ? down + 1 : down;
}

// Computes Python's int(round(v)).
int rounded(double v) { return static_cast<int>(std::nearbyint(v)); }

Plan resize(const ctd_options& o, int height, int width) {
  const Box all{0, 0, height, width};
  return {all, o.height, o.width, 0, 0, all, false};
}

// Returns where a centred window of `want` pixels begins in `have` pixels. The result is negative
// if the window is larger.
int centred(int have, int want) { return want > have ? -((want - have) / 2) : half_to_even(have - want); }

Plan resize_center_crop(const ctd_options& o, int height, int width) {
  const int shorter = std::min(height, width), longer = std::max(height, width);
  const int64_t stretched = static_cast<int64_t>(o.resize) * longer / shorter;
  if (stretched > std::numeric_limits<int32_t>::max()) {
    throw Error(CTD_TOO_LARGE, std::to_string(width) + "x" + std::to_string(height) + " resized to a shorter side of " +
                                   std::to_string(o.resize) + " is " + std::to_string(stretched) + " pixels long");
  }
  Plan p;
  p.box = {0, 0, height, width};
  p.resized_height = height <= width ? o.resize : static_cast<int>(stretched);
  p.resized_width = height <= width ? static_cast<int>(stretched) : o.resize;
  p.top = centred(p.resized_height, o.height);
  p.left = centred(p.resized_width, o.width);
  p.cropped = {p.top, p.left, o.height, o.width};
  return p;
}

Plan random_crop(const ctd_options& o, int height, int width, uint64_t key) {
  const int padded_height = height + 2 * o.padding, padded_width = width + 2 * o.padding;
  if (padded_height < o.height || padded_width < o.width) {
    throw Error(CTD_TOO_SMALL, std::to_string(width) + "x" + std::to_string(height) +
                                   (o.padding ? " with a padding of " + std::to_string(o.padding) : "") +
                                   " is smaller than the crop of " + std::to_string(o.width) + "x" +
                                   std::to_string(o.height) + " (width x height)");
  }
  const Draw place = draw(key, kCropPlace);
  Plan p;
  p.box = {0, 0, height, width};
  p.resized_height = height;
  p.resized_width = width;
  p.top = below(place.first, padded_height - o.height + 1) - o.padding;
  p.left = below(place.second, padded_width - o.width + 1) - o.padding;
  p.cropped = {p.top, p.left, o.height, o.width};
  return p;
}

// Returns the largest box in the middle of the image whose ratio of width to height is allowed.
Box middle(const ctd_options& o, int height, int width) {
  const double ratio = static_cast<double>(width) / height;
  Box box{0, 0, height, width};
  if (ratio < o.min_ratio) {
    box.height = std::clamp(rounded(width / o.min_ratio), 1, height);
  } else if (ratio > o.max_ratio) {
    box.width = std::clamp(rounded(height * o.max_ratio), 1, width);
  }
  box.top = (height - box.height) / 2;
  box.left = (width - box.width) / 2;
  return box;
}

Box random_box(const ctd_options& o, int height, int width, uint64_t key) {
  const double area = static_cast<double>(height) * width;
  const double least = std::log(o.min_ratio), most = std::log(o.max_ratio);
  for (uint32_t i = 0; i < kTries; ++i) {
    const Draw shape = draw(key, kBoxShape + i);
    const double target = area * (o.min_scale + (o.max_scale - o.min_scale) * uniform(shape.first));
    const double ratio = std::exp(least + (most - least) * uniform(shape.second));
    const double w = std::nearbyint(std::sqrt(target * ratio)), h = std::nearbyint(std::sqrt(target / ratio));
    if (w < 1 || w > width || h < 1 || h > height) continue;
    const Draw place = draw(key, kBoxPlace + i);
    Box box{0, 0, static_cast<int>(h), static_cast<int>(w)};
    box.top = below(place.first, height - box.height + 1);
    box.left = below(place.second, width - box.width + 1);
    return box;
  }
  return middle(o, height, width);
}

Plan random_resized_crop(const ctd_options& o, int height, int width, uint64_t key) {
  const Box box = random_box(o, height, width, key);
  return {box, o.height, o.width, 0, 0, box, false};
}

}  // namespace

ctd_options checked(const ctd_options& options) {
  ctd_options o = options;
  in_range("workers", o.workers, 0, kMostWorkers);
  if (o.channels == 0) o.channels = 3;
  if (o.channels != 1 && o.channels != 3) refuse("channels is " + std::to_string(o.channels) + "; it must be 3 (RGB) or 1 (grey)");
  in_range("transform", o.transform, CTD_RESIZE, CTD_RANDOM_RESIZED_CROP);
  in_range("height", o.height, 1, kLongestSide);
  in_range("width", o.width, 1, kLongestSide);
  if (o.transform == CTD_RESIZE_CENTER_CROP) in_range("resize", o.resize, 1, kLongestSide);
  if (o.transform == CTD_RANDOM_CROP) {
    in_range("padding", o.padding, 0, kLongestSide);
    in_range("padding mode", o.padding_mode, CTD_PAD_CONSTANT, CTD_PAD_SYMMETRIC);
  }
  if (o.transform == CTD_RANDOM_RESIZED_CROP) {
    interval("scale", o.min_scale, o.max_scale, 0.08, 1.0, 1.0);
    interval("ratio", o.min_ratio, o.max_ratio, 3.0 / 4.0, 4.0 / 3.0, 1e6);
  }
  if (!(o.horizontal_flip >= 0 && o.horizontal_flip <= 1)) {
    refuse("horizontal flip is " + std::to_string(o.horizontal_flip) + "; it is a probability, 0 to 1");
  }
  if (o.max_pixels < 0) refuse("max pixels is " + std::to_string(o.max_pixels) + "; it must not be less than 0");
  if (o.max_pixels == 0) o.max_pixels = kMostPixels;
  if (o.memory < 0) refuse("memory is " + std::to_string(o.memory) + "; it must not be less than 0");
  if (o.memory == 0) o.memory = kMemory;
  if (const ctd_device* d = o.device; d && (d->lanes < 1 || d->most_frames < 1 || d->most_pixels < 2 || !d->prepare || !d->decode || !d->retain || !d->release)) {
    refuse("device is not a ctd_device with lanes, limits and functions");
  }
  return o;
}

Plan plan(const ctd_options& o, int height, int width, uint64_t key) {
  Plan p;
  switch (o.transform) {
    case CTD_RESIZE: p = resize(o, height, width); break;
    case CTD_RESIZE_CENTER_CROP: p = resize_center_crop(o, height, width); break;
    case CTD_RANDOM_CROP: p = random_crop(o, height, width, key); break;
    default: p = random_resized_crop(o, height, width, key); break;
  }
  p.flip = uniform(draw(key, kFlip).first) < o.horizontal_flip;
  return p;
}

}  // namespace decode
