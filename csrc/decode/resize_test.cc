#include "decode/resize.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "decode/random.h"
#include "decode/samples_test.h"

namespace decode {
namespace {

Pixels resized(Resizer& resizer, const View& from, int height, int width, Box window) {
  Pixels out{window.height, window.width, from.channels, {}};
  out.bytes.resize(static_cast<size_t>(window.height) * window.width * from.channels, 0xEE);
  resizer.resize(from, Region::all(from), height, width, window, out.bytes.data(), static_cast<size_t>(window.width) * from.channels);
  return out;
}

const struct Size {
  int from_height, from_width, height, width;
} kSizes[] = {{50, 70, 20, 30}, {50, 70, 120, 130}, {50, 70, 50, 30}, {90, 40, 20, 40}, {7, 5, 224, 224}, {300, 200, 3, 2},
              {1, 1, 5, 5},     {5, 5, 1, 1},       {64, 64, 32, 32}, {200, 9, 17, 8},  {1, 300, 1, 7},   {300, 1, 7, 1},
              {33, 65, 33, 65}};

#ifdef __x86_64__
TEST(Resizer, Avx2EqualsPortable) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this processor has no AVX2";
  Resizer fast, portable(true);
  for (const int channels : {1, 3}) {
    for (const auto& s : kSizes) {
      const Pixels from = scene(s.from_height, s.from_width, channels);
      const Box all{0, 0, s.height, s.width};
      EXPECT_EQ(resized(fast, from.view(), s.height, s.width, all).bytes,
                resized(portable, from.view(), s.height, s.width, all).bytes)
          << s.from_height << "x" << s.from_width << " to " << s.height << "x" << s.width << "x" << channels;
    }
  }
}

// AVX2 and the portable code give equal results for rows of all lengths. The last blocks of taps
// then reach beyond the row's end by different distances.
TEST(Resizer, Avx2EqualsPortable_RandomSizes) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this processor has no AVX2";
  Resizer fast, portable(true);
  for (int i = 0; i < 400; ++i) {
    const Draw from_size = draw(3, i), size = draw(4, i);
    const Pixels from = scene(1 + below(from_size.first, 40), 1 + below(from_size.second, i % 2 ? 12 : 200), 3);
    const Box all{0, 0, 1 + below(size.first, 40), 1 + below(size.second, i % 4 < 2 ? 10 : 300)};
    ASSERT_EQ(resized(fast, from.view(), all.height, all.width, all).bytes,
              resized(portable, from.view(), all.height, all.width, all).bytes)
        << from.height << "x" << from.width << " to " << all.height << "x" << all.width;
  }
}
#endif

TEST(Resizer, WindowEqualsPartOfWhole) {
  Resizer resizer;
  for (const auto& s : kSizes) {
    const Pixels from = scene(s.from_height, s.from_width, 3);
    const Pixels whole = resized(resizer, from.view(), s.height, s.width, {0, 0, s.height, s.width});
    const Box window{s.height / 3, s.width / 4, (s.height + 2) / 3, (s.width + 1) / 2};
    const Pixels part = resized(resizer, from.view(), s.height, s.width, window);
    EXPECT_TRUE(same(part.view(), whole.view(), window.top, window.left)) << s.height << "x" << s.width;
  }
}

TEST(Resizer, SameSizeIsTheSameImage) {
  Resizer resizer;
  const Pixels from = scene(31, 45, 3);
  EXPECT_EQ(resized(resizer, from.view(), 31, 45, {0, 0, 31, 45}).bytes, from.bytes);
}

TEST(Resizer, OneColourStaysOneColour) {
  Resizer resizer;
  for (const auto& s : kSizes) {
    for (const int value : {0, 1, 128, 255}) {
      Pixels from{s.from_height, s.from_width, 3, {}};
      from.bytes.assign(static_cast<size_t>(s.from_height) * s.from_width * 3, static_cast<uint8_t>(value));
      const Pixels out = resized(resizer, from.view(), s.height, s.width, {0, 0, s.height, s.width});
      EXPECT_TRUE(std::all_of(out.bytes.begin(), out.bytes.end(), [&](int v) { return v == value; })) << value;
    }
  }
}

// A resized part of an image must not depend on the pixels around the part.
TEST(Resizer, PartOfALargerImage) {
  Resizer resizer;
  const Pixels whole = scene(60, 80, 3);
  const Box box{11, 13, 30, 40};
  Pixels cut{box.height, box.width, 3, {}};
  for (int y = 0; y < box.height; ++y) {
    const uint8_t* row = whole.view().part(box).row(y);
    cut.bytes.insert(cut.bytes.end(), row, row + box.width * 3);
  }
  const Box all{0, 0, 16, 17};
  EXPECT_EQ(resized(resizer, whole.view().part(box), 16, 17, all).bytes, resized(resizer, cut.view(), 16, 17, all).bytes);
}

TEST(Resizer, WritesNothingBesideItsRows) {
  Resizer resizer;
  const Pixels from = scene(40, 40, 3);
  constexpr size_t kStride = 40;
  File out(kStride * 7, 0xEE);
  resizer.resize(from.view(), Region::all(from.view()), 7, 11, {0, 0, 7, 11}, out.data(), kStride);
  for (size_t i = 0; i < out.size(); ++i) {
    if (i % kStride >= 33) {
      EXPECT_EQ(out[i], 0xEE) << i;
    }
  }
}

TEST(Axis, WeightsAddUpToOne) {
  Axis axis;
  for (const auto& [in, out] : {std::pair{100, 7}, {7, 100}, {640, 224}, {1, 9}, {9, 1}}) {
    axis.set(in, {0, static_cast<double>(in)}, out, 0, out);
    for (int i = 0; i < out; ++i) {
      int64_t sum = 0;
      for (int j = 0; j < axis.taps; ++j) sum += axis.weights[static_cast<size_t>(i) * axis.taps + j];
      EXPECT_NEAR(static_cast<double>(sum), 1 << kWeightBits, axis.taps);
      EXPECT_GE(axis.first[i], 0);
      EXPECT_GE(axis.count[i], 1);
      EXPECT_LE(axis.first[i] + axis.count[i], in);
    }
  }
}

}  // namespace
}  // namespace decode
