#include "decode/transform.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "decode/jpeg.h"
#include "decode/orient.h"
#include "decode/png.h"
#include "decode/reader.h"
#include "decode/status.h"

namespace decode {
namespace {

constexpr int kOutside = -1;

// Returns which of the pixels 0 to n-1 shows at position i of a padded row. Returns kOutside
// where the padding is constant.
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
// The 8x8 coefficients of a JPEG block can be transformed to 4x4, 2x2 or 1x1 pixels. That saves
// work where the box is much larger than the result. The shrunk pixels are then resized as
// always. The region to resize may begin and end inside a pixel.
//
// The shrunk box must still be kStillLarger times the size of the result. Measured on
// photographs, the mean difference to an image that is decoded whole is then 0.5 (at 1/2) to 0.8
// (at 1/8) of 255. If kStillLarger were 1, the difference would be 0.9 to 2.0.
constexpr int kStillLarger = 2;

int shrink_of(const Plan& p) {
  for (const int by : {8, 4, 2}) {
    const int64_t least = int64_t{by} * kStillLarger;
    if (p.box.height >= least * p.resized_height && p.box.width >= least * p.resized_width) return by;
  }
  return 1;
}

// Returns the region of an image that shows `box`. `box` is in the stored pixels. The image has
// the pixels of shrunk(box, shrink), turned upright. Its size is height x width.
Region region_of(const Box& box, int shrink, int orientation, int height, int width) {
  if (shrink == 1) return {{0, static_cast<double>(height)}, {0, static_cast<double>(width)}};
  const Box grid = shrunk(box, shrink);
  const Box inner = shown({box.top - grid.top * shrink, box.left - grid.left * shrink, box.height, box.width}, orientation,
                          grid.height * shrink, grid.width * shrink);
  const double by = shrink;
  return {{inner.top / by, inner.height / by}, {inner.left / by, inner.width / by}};
}

bool resizes(const Plan& p) { return p.resized_height != p.box.height || p.resized_width != p.box.width; }

// Returns the part of the plan's window where the resized image has pixels.
Box window_of(const Plan& p, const ctd_options& o) {
  Box window;
  window.top = std::max(p.top, 0);
  window.left = std::max(p.left, 0);
  window.height = std::min(p.top + o.height, p.resized_height) - window.top;
  window.width = std::min(p.left + o.width, p.resized_width) - window.left;
  return window;
}

void report(const Plan& p, ctd_result& result) {
  result.top = p.cropped.top;
  result.left = p.cropped.left;
  result.crop_height = p.cropped.height;
  result.crop_width = p.cropped.width;
  result.flip = p.flip ? 1 : 0;
}

// Returns a number that differs, most probably, for other bytes. It is not 0.
uint64_t fingerprint(Bytes file) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;
  uint64_t sums[4] = {file.size(), 1, 2, 3}, word = 0;
  size_t at = 0;
  for (; at + sizeof sums <= file.size(); at += sizeof sums) {
    for (size_t k = 0; k < 4; ++k) {
      std::memcpy(&word, file.data() + at + k * sizeof word, sizeof word);
      sums[k] = std::rotl((sums[k] ^ word) * kFactor, 29);
    }
  }
  for (; at < file.size(); ++at) sums[0] = std::rotl((sums[0] ^ file[at]) * kFactor, 29);
  uint64_t all = 0;
  for (const uint64_t sum : sums) all = std::rotl((all ^ sum) * kFactor, 29);
  return std::max<uint64_t>(all, 1);
}

Bytes file_of(const ctd_image& image) { return {image.data, image.data ? image.size : 0}; }

}  // namespace

// Computes grey as Pillow does: ITU-R 601 luma with 16-bit weights.
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

Need Transform::held() const {
  Need out = resizer_.held(), reading = scratch_.held();
  out.vectors += reading.vectors;
  reading.vectors = 0;
  out = out.with(reading);
  out.turned = turned_.size();
  out.grey = grey_.size();
  out.result = result_.size();
  return out;
}

void Transform::free() {
  for (Buffer* buffer : {&turned_, &grey_, &result_}) buffer->free();
  scratch_.free();
  resizer_.free();
}

// Trim frees the memory that the thread must not keep. It does so when an image is done or
// refused.
struct Transform::Trim {
  Transform& of;

  ~Trim() {
    if (of.held().sum() > of.own_) of.free();
  }
};

Need Transform::need(const Work& work, const Reader* reader) const {
  const Box grid = shrunk(work.box, work.shrink);
  const size_t area = static_cast<size_t>(grid.height) * grid.width;
  View upright{nullptr, grid.height, grid.width, options_.channels == 1 ? 1 : work.channels, 0};
  if (swaps_sides(work.orientation)) std::swap(upright.height, upright.width);
  Need need = reader ? reader->need(work.box, work.shrink) : Need{};
  if (resizes(work.plan)) {
    const Region region = region_of(work.box, work.shrink, work.orientation, upright.height, upright.width);
    need = need.with(Resizer::need(upright, region, work.plan.resized_height, work.plan.resized_width, window_of(work.plan, options_)));
  }
  if (work.orientation != 1) need.turned = area * work.channels;
  if (upright.channels != work.channels) need.grey = area;
  if (upright.channels != options_.channels) need.result = static_cast<size_t>(options_.height) * options_.width;
  return need;
}

Memory::Share Transform::share_for(const Need& need) {
  if (need.sum() > own_) return memory_.take(need.at_a_time());
  if (held().with(need).sum() > own_) free();
  return {};
}

size_t Transform::most(const ctd_options& o) {
  const auto most = [&](const Need& reading, int64_t side) {
    const int64_t area = std::min(o.max_pixels, side * side), sides = std::min(area + 1, 2 * side);
    // The bound is for three channels. Grey and its copies take less.
    Need need = reading.with(Resizer::most(area, sides, 3, o.height, o.width));
    need.turned = 3 * area;
    need.result = static_cast<size_t>(o.height) * o.width;
    return need.at_a_time();
  };
  return std::max(most(Jpeg::most(o.max_pixels), kLongestJpegSide), most(Png::most(o.max_pixels), kLongestImageSide));
}

// Returns what is to be done for an image. Without a reader the image has pixels.
Transform::Work Transform::work_for(const ctd_image& image, const Reader* reader, ctd_result& result) const {
  Work work;
  int width = image.width, height = image.height;
  if (reader) {
    width = reader->info().width;
    height = reader->info().height;
    work.orientation = reader->info().orientation;
    work.channels = reader->info().color_space == CTD_GREY ? 1 : 3;
  } else {
    if (width < 1 || height < 1 || (image.channels != 1 && image.channels != 3)) {
      throw Error(CTD_INVALID_ARGUMENT, "pixels of " + std::to_string(width) + "x" + std::to_string(height) + "x" +
                                            std::to_string(image.channels));
    }
    work.orientation = orientation_of(file_of(image));
    work.channels = image.channels;
  }
  if (swaps_sides(work.orientation)) std::swap(width, height);
  result.width = width;
  result.height = height;
  check_size(width, height, options_.max_pixels);

  const Plan& p = work.plan = plan(options_, height, width, image.key);
  work.box = stored(p.box, work.orientation, height, width);
  if (reader && reader->shrinks() && !options_.no_shrink) work.shrink = shrink_of(p);
  return work;
}

void Transform::run(const ctd_image& image, uint8_t* to, ctd_result& result) {
  // These three variables are destroyed in reverse order, so their order matters. A reader frees
  // its part of the scratch before the scratch is freed. All memory is freed before the share is
  // given back.
  Memory::Share share;
  const Trim trim{*this};
  std::unique_ptr<Reader> reader = image.pixels ? nullptr : open(file_of(image));
  const Work work = work_for(image, reader.get(), result);
  share = share_for(need(work, reader.get()));
  const View whole{image.pixels, image.height, image.width, image.channels,
                   static_cast<size_t>(image.width) * image.channels};
  View pixels = reader ? reader->read(work.box, work.shrink, scratch_) : whole.part(work.box);
  reader.reset();
  if (share.bytes() > 0) scratch_.free_codec();
  pixels = turn(pixels, work.orientation);
  if (options_.channels == 1 && pixels.channels == 3) pixels = grey(pixels);
  place(pixels, region_of(work.box, work.shrink, work.orientation, pixels.height, pixels.width), work.plan, to);
  report(work.plan, result);
}

int32_t Transform::frame(const ctd_image& image, int64_t most, FrameFile& file, ctd_frame& out, ctd_result& result) {
  constexpr int64_t kSmallest = 8;  // the result may have an eighth of the box's rows and columns
  if (image.pixels || options_.channels != 3) return 0;
  const Trim trim{*this};
  const std::unique_ptr<Reader> reader = open(file_of(image));
  const Work work = work_for(image, reader.get(), result);
  const Plan& p = work.plan;
  const Box window = window_of(p, options_);
  if (work.shrink != 1 || work.orientation != 1 || !resizes(p) || window.height != options_.height || window.width != options_.width ||
      p.box.height > p.resized_height * kSmallest || p.box.width > p.resized_width * kSmallest || int64_t{result.width} * result.height > most) {
    return 0;
  }
  const Need needed = need(work, reader.get());
  if (needed.sum() > own_) return 0;
  if (held().with(needed).sum() > own_) free();
  const int32_t sampling = reader->frame(file);
  if (sampling == 0) return 0;
  out = {nullptr, 0, nullptr, 0, result.width, result.height, p.box.top, p.box.left, p.box.height, p.box.width,
         p.resized_height, p.resized_width, p.top, p.left, nullptr, 0};
  result.sound = fingerprint(file_of(image));
  if (image.sound != result.sound) reader->check(scratch_);
  report(p, result);
  return sampling;
}

// Writes the plan's window to `to`. Grey becomes RGB last, because three equal channels would
// otherwise be resized three times.
void Transform::place(const View& from, const Region& region, const Plan& plan, uint8_t* to) {
  const size_t pixels = static_cast<size_t>(options_.height) * options_.width;
  uint8_t* out = from.channels == options_.channels ? to : result_.bytes(pixels * from.channels);
  if (resizes(plan)) {
    resize(from, region, plan, out);
  } else {
    copy(from, plan, out);
  }
  if (out != to) rgb_from_grey(out, to, pixels);
}

void Transform::copy(const View& from, const Plan& plan, uint8_t* to) {
  const size_t channels = from.channels;
  const int mode = options_.padding_mode;
  // The columns from `begin` to end-1 show pixels of the image. In a row, these pixels lie side by
  // side.
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
  const Box window = window_of(plan, options_);
  if (window.height < options_.height || window.width < options_.width) std::memset(to, 0, stride * options_.height);
  uint8_t* begin = to + (window.top - plan.top) * stride + static_cast<size_t>(window.left - plan.left) * from.channels;
  resizer_.resize(from, region, plan.resized_height, plan.resized_width, window, begin, stride);
}

}  // namespace decode
