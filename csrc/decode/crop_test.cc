#include "decode/crop.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "decode/samples_test.h"

namespace decode {
namespace {

ctd_options options(int transform, int height, int width) {
  ctd_options o{};
  o.transform = transform;
  o.height = height;
  o.width = width;
  return o;
}

ctd_options resize_center_crop(int resize, int height, int width) {
  ctd_options o = options(CTD_RESIZE_CENTER_CROP, height, width);
  o.resize = resize;
  return o;
}

// The plan must equal the results of torchvision's Resize(int) and CenterCrop.
TEST(Plan, ResizeCenterCrop) {
  const struct {
    int height, width, resize, crop_height, crop_width;
    int resized_height, resized_width, top, left;
  } tests[] = {
      {375, 500, 256, 224, 224, 256, 341, 16, 58},  // (341 - 224) / 2 is 58.5, which rounds to the even 58
      {500, 333, 256, 224, 224, 384, 256, 80, 16},
      {100, 100, 50, 49, 47, 50, 50, 0, 2},      // 0.5 rounds to 0, and 1.5 to 2
      {100, 100, 50, 45, 43, 50, 50, 2, 4},      // 2.5 rounds to 2, and 3.5 to 4
      {10, 20, 10, 13, 14, 10, 20, -1, 3},       // the image has 3 rows fewer than the crop: 1 is missing above and 2 below
      {1, 1000000, 65535, 1, 1, 0, 0, 0, 0},     // too long after the resize
      {7, 3, 5, 5, 5, 11, 5, 3, 0},              // 5 * 7 / 3 is 11.67, which is cut to 11
  };
  for (const auto& t : tests) {
    const ctd_options o = resize_center_crop(t.resize, t.crop_height, t.crop_width);
    if (t.resized_height == 0) {
      EXPECT_EQ(code_of([&] { plan(o, t.height, t.width, 0); }), CTD_TOO_LARGE);
      continue;
    }
    const Plan p = plan(o, t.height, t.width, 0);
    EXPECT_EQ(p.resized_height, t.resized_height) << t.height << "x" << t.width;
    EXPECT_EQ(p.resized_width, t.resized_width) << t.height << "x" << t.width;
    EXPECT_EQ(p.top, t.top) << t.height << "x" << t.width;
    EXPECT_EQ(p.left, t.left) << t.height << "x" << t.width;
  }
}

TEST(Plan, RandomCropReachesEveryPlace) {
  ctd_options o = options(CTD_RANDOM_CROP, 3, 5);
  o.padding = 2;
  int least_top = 9, most_top = -9, least_left = 9, most_left = -9;
  for (uint64_t key = 0; key < 500; ++key) {
    const Plan p = plan(o, 3, 7, key);
    least_top = std::min(least_top, p.top);
    most_top = std::max(most_top, p.top);
    least_left = std::min(least_left, p.left);
    most_left = std::max(most_left, p.left);
  }
  EXPECT_EQ(least_top, -2);
  EXPECT_EQ(most_top, 2);
  EXPECT_EQ(least_left, -2);
  EXPECT_EQ(most_left, 4);
  EXPECT_EQ(code_of([&] { plan(o, 3, 1, 0); }), 0);
  o.width = 6;
  EXPECT_EQ(code_of([&] { plan(o, 3, 1, 0); }), CTD_TOO_SMALL);
}

TEST(Plan, RandomResizedCropStaysInside) {
  const ctd_options o = checked(options(CTD_RANDOM_RESIZED_CROP, 8, 8));
  for (const auto& [height, width] : {std::pair{375, 500}, {1, 1}, {1, 300}, {300, 1}, {2, 3}, {1000000, 1}}) {
    for (uint64_t key = 0; key < 300; ++key) {
      const Box box = plan(o, height, width, key).box;
      ASSERT_GE(box.top, 0);
      ASSERT_GE(box.left, 0);
      ASSERT_GE(box.height, 1);
      ASSERT_GE(box.width, 1);
      ASSERT_LE(box.top + box.height, height);
      ASSERT_LE(box.left + box.width, width);
    }
  }
}

// If no random box fits, the box is in the middle of the image. Its ratio is the allowed ratio
// that is closest to the image's.
TEST(Plan, RandomResizedCropFallsBackToTheMiddle) {
  ctd_options o = options(CTD_RANDOM_RESIZED_CROP, 8, 8);
  o.min_scale = 1;
  o = checked(o);
  Box box = plan(o, 100, 400, 5).box;
  EXPECT_EQ(box.width, 133);
  EXPECT_EQ(box.height, 100);
  EXPECT_EQ(box.left, 133);
  EXPECT_EQ(box.top, 0);
  box = plan(o, 400, 90, 5).box;
  EXPECT_EQ(box.width, 90);
  EXPECT_EQ(box.height, 120);
  EXPECT_EQ(box.top, 140);
}

TEST(Checked, Defaults) {
  const ctd_options o = checked(options(CTD_RANDOM_RESIZED_CROP, 8, 8));
  EXPECT_EQ(o.channels, 3);
  EXPECT_EQ(o.min_scale, 0.08);
  EXPECT_EQ(o.max_scale, 1);
  EXPECT_EQ(o.min_ratio, 0.75);
  EXPECT_EQ(o.max_ratio, 4.0 / 3);
  EXPECT_EQ(o.max_pixels, 100'000'000);
}

TEST(Checked, Refuses) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::pair<const char*, void (*)(ctd_options&, double)> tests[] = {
      {"transform", [](ctd_options& o, double) { o.transform = 0; }},
      {"transform", [](ctd_options& o, double) { o.transform = 5; }},
      {"height", [](ctd_options& o, double) { o.height = 65536; }},
      {"width", [](ctd_options& o, double) { o.width = 0; }},
      {"workers", [](ctd_options& o, double) { o.workers = 1025; }},
      {"channels", [](ctd_options& o, double) { o.channels = 4; }},
      {"scale", [](ctd_options& o, double) { o.max_scale = 0.01; }},
      {"scale", [](ctd_options& o, double v) { o.min_scale = v; }},
      {"ratio", [](ctd_options& o, double v) { o.max_ratio = v; }},
      {"flip", [](ctd_options& o, double v) { o.horizontal_flip = v; }},
      {"flip", [](ctd_options& o, double) { o.horizontal_flip = -0.1; }},
      {"max pixels", [](ctd_options& o, double) { o.max_pixels = -1; }},
  };
  for (const auto& [name, change] : tests) {
    ctd_options o = options(CTD_RANDOM_RESIZED_CROP, 8, 8);
    change(o, nan);
    try {
      checked(o);
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), CTD_INVALID_ARGUMENT);
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace decode
