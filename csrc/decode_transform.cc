#include "decode_transform.h"

#include <algorithm>
#include <cstring>

#include "decode_orient.h"
#include "decode_reader.h"
#include "decode_status.h"

namespace decode {
namespace {

// What a worker keeps of its memory after a large image.
constexpr size_t kKeep = 16 << 20;

constexpr int kOutside = -1;

// The pixel of 0 .. n-1 that shows at position i of a padded row; kOutside where that is the constant.
int padded(int i, int n, int mode) {
  if (i >= 0 && i < n) return i;
  switch (mode) {
    case CTD_PAD_EDGE:
      return std::clamp(i, 0, n - 1);
    case CTD_PAD_REFLECT: {
      if (n == 1) return 0;
      const int period = 2 * (n - 1), k = ((i % period) + period) % period;
      return k < n ? k : period - k;
    }
    case CTD_PAD_SYMMETRIC: {
      const int period = 2 * n, k = ((i % period) + period) % period;
      return k < n ? k : period - 1 - k;
    }
    default:
      return kOutside;
  }
}

void rgb_from_grey(const uint8_t* in, uint8_t* out, size_t pixels) {
  for (size_t i = 0; i < pixels; ++i, out += 3) out[0] = out[1] = out[2] = in[i];
}

// Note [Shrinking]
// A JPEG's blocks can be transformed to 4x4, 2x2 or 1x1 pixels in place of 8x8, which saves work where the box is far larger
// than the result. What remains is resized as always, from a region whose edges may lie within pixels. The shrunk box must
// still be kStillLarger times the result's size: with 2, photographs differ from those decoded whole by 0.5 (1/2) to
// 0.8 (1/8) of 255 on average; with 1, by 0.9 to 2.0.
constexpr int kStillLarger = 2;

int shrink_of(const Plan& p) {
  for (const int by : {8, 4, 2}) {
    const int64_t least = int64_t{by} * kStillLarger;
    if (p.box.height >= least * p.resized_height && p.box.width >= least * p.resized_width) return by;
  }
  return 1;
}

// The region of `upright`, which shows shrunk(box, shrink) of the stored image, that is the box.
Region region_of(const Box& box, int shrink, int orientation, const View& upright) {
  if (shrink == 1) return Region::all(upright);
  const Box grid = shrunk(box, shrink);
  const int height = grid.height * shrink, width = grid.width * shrink;
  const Box inner = shown({box.top - grid.top * shrink, box.left - grid.left * shrink, box.height, box.width}, orientation,
                          height, width);
  const double by = shrink;
  return {{inner.top / by, inner.height / by}, {inner.left / by, inner.width / by}};
}

}  // namespace

// Grey as Pillow computes it: ITU-R 601 luma with 16-bit weights.
View Transform::grey(const View& rgb) {
  const size_t width = rgb.width;
  uint8_t* out = grey_.bytes(width * rgb.height);
  for (int y = 0; y < rgb.height; ++y) {
    const uint8_t* in = rgb.row(y);
    for (size_t x = 0; x < width; ++x, in += 3) {
      out[y * width + x] = static_cast<uint8_t>((in[0] * 19595 + in[1] * 38470 + in[2] * 7471 + 0x8000) >> 16);
    }
  }
  return {out, rgb.height, rgb.width, 1, width};
}

View Transform::turn(const View& stored, int orientation) {
  if (orientation == 1) return stored;
  const size_t size = static_cast<size_t>(stored.height) * stored.width * stored.channels;
  return upright(stored, orientation, turned_.bytes(size));
}

void Transform::run(const ctd_image& image, uint8_t* to, ctd_result& result) {
  const Bytes file(image.data, image.data ? image.size : 0);
  std::unique_ptr<Reader> reader;
  int width = image.width, height = image.height, orientation = 1;
  if (image.pixels) {
    if (width < 1 || height < 1 || (image.channels != 1 && image.channels != 3)) {
      throw Error(CTD_INVALID_ARGUMENT, "pixels of " + std::to_string(width) + "x" + std::to_string(height) + "x" +
                                            std::to_string(image.channels));
    }
    orientation = orientation_of(file);
  } else {
    reader = open(file);
    width = reader->info().width;
    height = reader->info().height;
    orientation = reader->info().orientation;
  }
  if (swaps_sides(orientation)) std::swap(width, height);
  result.width = width;
  result.height = height;
  check_size(width, height, options_.max_pixels);

  const Plan p = plan(options_, height, width, image.key);
  const Box box = stored(p.box, orientation, height, width);
  const View whole{image.pixels, image.height, image.width, image.channels,
                   static_cast<size_t>(image.width) * image.channels};
  const int shrink = reader && reader->shrinks() && !options_.no_shrink ? shrink_of(p) : 1;
  View pixels = turn(reader ? reader->read(box, shrink, scratch_) : whole.part(box), orientation);
  if (options_.channels == 1 && pixels.channels == 3) pixels = grey(pixels);
  place(pixels, region_of(box, shrink, orientation, pixels), p, to);
  result.top = p.cropped.top;
  result.left = p.cropped.left;
  result.crop_height = p.cropped.height;
  result.crop_width = p.cropped.width;
  result.flip = p.flip ? 1 : 0;
  for (Buffer* buffer : {&turned_, &grey_, &result_}) buffer->trim(kKeep);
  scratch_.trim(kKeep);
  resizer_.trim(kKeep);
}

// place writes the plan's window. Grey becomes RGB last: three equal channels would be resized three times.
void Transform::place(const View& from, const Region& region, const Plan& plan, uint8_t* to) {
  const size_t pixels = static_cast<size_t>(options_.height) * options_.width;
  uint8_t* out = from.channels == options_.channels ? to : result_.bytes(pixels * from.channels);
  if (plan.resized_height == plan.box.height && plan.resized_width == plan.box.width) {
    copy(from, plan, out);
  } else {
    resize(from, region, plan, out);
  }
  if (out != to) rgb_from_grey(out, to, pixels);
}

void Transform::copy(const View& from, const Plan& plan, uint8_t* to) {
  const size_t channels = from.channels;
  const int mode = options_.padding_mode;
  // Of the columns, those from begin to end are the image's, and lie side by side.
  const int begin = std::clamp(-plan.left, 0, options_.width);
  const int end = std::clamp(from.width - plan.left, begin, options_.width);
  for (int y = 0; y < options_.height; ++y, to += options_.width * channels) {
    const int row = padded(plan.top + y, from.height, mode);
    if (row == kOutside) {
      std::memset(to, 0, options_.width * channels);
      continue;
    }
    const uint8_t* in = from.row(row);
    const auto pad = [&](int x) {
      const int column = padded(plan.left + x, from.width, mode);
      for (size_t c = 0; c < channels; ++c) to[x * channels + c] = column == kOutside ? 0 : in[column * channels + c];
    };
    for (int x = 0; x < begin; ++x) pad(x);
    if (begin < end) std::memcpy(to + begin * channels, in + (plan.left + begin) * channels, (end - begin) * channels);
    for (int x = end; x < options_.width; ++x) pad(x);
  }
}

void Transform::resize(const View& from, const Region& region, const Plan& plan, uint8_t* to) {
  const size_t stride = static_cast<size_t>(options_.width) * from.channels;
  Box window;  // of the resized image, as far as it has pixels
  window.top = std::max(plan.top, 0);
  window.left = std::max(plan.left, 0);
  window.height = std::min(plan.top + options_.height, plan.resized_height) - window.top;
  window.width = std::min(plan.left + options_.width, plan.resized_width) - window.left;
  if (window.height < options_.height || window.width < options_.width) std::memset(to, 0, stride * options_.height);
  uint8_t* begin = to + (window.top - plan.top) * stride + static_cast<size_t>(window.left - plan.left) * from.channels;
  resizer_.resize(from, region, plan.resized_height, plan.resized_width, window, begin, stride);
}

}  // namespace decode
