#include "decode/transform.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <tuple>

#include "decode/samples_test.h"
#include "decode/status.h"

namespace decode {
namespace {

Memory memory(SIZE_MAX);

ctd_options random_crop(int height, int width, int padding, int mode) {
  ctd_options o{};
  o.transform = CTD_RANDOM_CROP;
  o.height = height;
  o.width = width;
  o.padding = padding;
  o.padding_mode = mode;
  o.channels = 1;
  return o;
}

// The row "abc" is padded in each mode. The crop is the whole padded row.
TEST(Transform, PaddingModes) {
  const struct {
    int mode, padding;
    const char* want;
  } tests[] = {{CTD_PAD_CONSTANT, 2, "..abc.."},      {CTD_PAD_EDGE, 2, "aaabccc"},
               {CTD_PAD_REFLECT, 2, "cbabcba"},       {CTD_PAD_SYMMETRIC, 2, "baabccb"},
               {CTD_PAD_REFLECT, 5, "babcbabcbabcb"}, {CTD_PAD_SYMMETRIC, 5, "bccbaabccbaab"}};
  for (const auto& t : tests) {
    const int width = 3 + 2 * t.padding, height = 1 + 2 * t.padding;
    Transform transform(checked(random_crop(height, width, t.padding, t.mode)), memory);
    ctd_image image{};
    image.pixels = reinterpret_cast<const uint8_t*>("abc");
    image.height = 1;
    image.width = 3;
    image.channels = 1;
    std::string out(static_cast<size_t>(height) * width, '?');
    ctd_result result{};
    transform.run(image, reinterpret_cast<uint8_t*>(out.data()), result);
    std::string row = out.substr(static_cast<size_t>(t.padding) * width, width);
    for (char& c : row) c = c == 0 ? '.' : c;
    EXPECT_EQ(row, t.want);
    EXPECT_EQ(result.top, -t.padding);
    EXPECT_EQ(result.left, -t.padding);
    const std::string above = out.substr(0, width);
    EXPECT_EQ(above, t.mode == CTD_PAD_CONSTANT ? std::string(width, '\0') : out.substr(static_cast<size_t>(t.padding) * width, width));
  }
}

TEST(Transform, GreyFromRgbAndRgbFromGrey) {
  const uint8_t rgb[] = {255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 20, 30};
  ctd_options o = random_crop(1, 4, 0, 0);
  ctd_image image{};
  image.pixels = rgb;
  image.height = 1;
  image.width = 4;
  image.channels = 3;
  ctd_result result{};
  uint8_t grey[4];
  Transform(checked(o), memory).run(image, grey, result);
  EXPECT_EQ(grey[0], 76);
  EXPECT_EQ(grey[1], 150);
  EXPECT_EQ(grey[2], 29);
  EXPECT_EQ(grey[3], 18);
  o.channels = 3;
  image.pixels = grey;
  image.channels = 1;
  uint8_t back[12];
  Transform(checked(o), memory).run(image, back, result);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(back[i], grey[i / 3]);
}

TEST(Transform, RefusesPixelsWithoutAShape) {
  Transform transform(checked(random_crop(1, 1, 0, 0)), memory);
  const uint8_t pixels[12] = {};
  for (const auto& [height, width, channels] : {std::tuple{0, 2, 3}, {2, -1, 3}, {2, 2, 2}, {2, 2, 0}}) {
    ctd_image image{};
    image.pixels = pixels;
    image.height = height;
    image.width = width;
    image.channels = channels;
    uint8_t out;
    ctd_result result{};
    EXPECT_EQ(code_of([&] { transform.run(image, &out, result); }), CTD_INVALID_ARGUMENT);
  }
}

// For an image that is stored sideways, the box of the upright image is decoded and turned.
TEST(Transform, CropOfATurnedImage) {
  const Pixels image = scene(40, 60, 3);
  const File plain = jpeg_of(image);
  const File turned = oriented(plain, 6);
  ctd_options o{};
  o.transform = CTD_RANDOM_RESIZED_CROP;
  o.height = 12;
  o.width = 10;
  o.no_shrink = 1;
  o = checked(o);
  // The result must equal the result of three steps: the whole image is decoded, the test turns it,
  // and its pixels are cropped and resized.
  ctd_options full{};
  full.transform = CTD_RESIZE;
  full.height = 40;
  full.width = 60;
  File stored(40 * 60 * 3), upright(40 * 60 * 3), want(12 * 10 * 3), got(12 * 10 * 3);
  ctd_result result{};
  Transform(checked(full), memory).run({plain.data(), plain.size(), 0, nullptr, 0, 0, 0, 0}, stored.data(), result);
  for (int y = 0; y < 60; ++y) {
    for (int x = 0; x < 40; ++x) {
      for (int c = 0; c < 3; ++c) upright[(y * 40 + x) * 3 + c] = stored[((39 - x) * 60 + y) * 3 + c];
    }
  }
  Transform transform(o, memory);
  for (uint64_t key = 0; key < 20; ++key) {
    ctd_result a{}, b{};
    transform.run({nullptr, 0, key, upright.data(), 40, 60, 3, 0}, want.data(), a);
    transform.run({turned.data(), turned.size(), key, nullptr, 0, 0, 0, 0}, got.data(), b);
    EXPECT_EQ(got, want) << key;
    EXPECT_EQ(b.width, 40);
    EXPECT_EQ(b.height, 60);
    EXPECT_EQ(a.top, b.top);
    EXPECT_EQ(a.crop_width, b.crop_width);
  }
}

// Returns a smooth picture, for which shrinking and resizing give almost the same pixels. A box
// that is wrong by half a pixel of the source still makes a difference.
Pixels waves(int height, int width) {
  Pixels out{height, width, 3, {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (const double v : {std::sin(x / 40.0), std::sin(y / 40.0), std::sin((x + 2 * y) / 90.0)}) {
        out.bytes.push_back(static_cast<uint8_t>(std::lround(128 + 100 * v)));
      }
    }
  }
  return out;
}

TEST(Transform, ShrunkIsNearlyTheSame) {
  const File plain = jpeg_of(waves(403, 605), {2, 2});
  int shrunk_ones = 0;
  for (uint8_t orientation = 1; orientation <= 8; ++orientation) {
    const File file = oriented(plain, orientation);
    for (const int size : {10, 20, 40}) {
      ctd_options o{};
      o.transform = CTD_RANDOM_RESIZED_CROP;
      o.height = size;
      o.width = size + 1;
      Transform shrinking(checked(o), memory);
      o.no_shrink = 1;
      Transform exact(checked(o), memory);
      for (uint64_t key = 0; key < 20; ++key) {
        const ctd_image image{file.data(), file.size(), key, nullptr, 0, 0, 0, 0};
        File got(static_cast<size_t>(size) * (size + 1) * 3), want(got.size());
        ctd_result a{}, b{};
        shrinking.run(image, got.data(), a);
        exact.run(image, want.data(), b);
        EXPECT_EQ(std::tie(a.top, a.left, a.crop_height, a.crop_width), std::tie(b.top, b.left, b.crop_height, b.crop_width));
        int64_t sum = 0;
        for (size_t i = 0; i < got.size(); ++i) sum += std::abs(got[i] - want[i]);
        const double mean = static_cast<double>(sum) / static_cast<double>(got.size());
        EXPECT_LT(mean, 1.0) << int{orientation} << " " << size << " " << key;
        const bool may = a.crop_height >= 4 * size && a.crop_width >= 4 * (size + 1);
        EXPECT_TRUE(may || got == want) << "shrunk, with a box of " << a.crop_height << "x" << a.crop_width;
        shrunk_ones += got != want;
      }
    }
  }
  EXPECT_GT(shrunk_ones, 100);
}

}  // namespace
}  // namespace decode
