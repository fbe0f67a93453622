#include <algorithm>
#include <cmath>

#include "core/handles_test.h"
#include "kernels/blur_taps.h"

namespace {

using ct_test::exec;
using ct_test::Stream;
using ct_test::Tensor;
using BlurTest = ct_test::HandlesTest;
namespace blur = ct::blur;

TEST_F(BlurTest, PowersOfHalf) {
  for (const double v : {0.0, 1e-9, 0.3, 0.5, 0.999999, 1.0, 7.25, 63.0, 199.5}) {
    EXPECT_NEAR(blur::power_of_half(v) / std::exp2(-v), 1, 1e-12) << v;
  }
  EXPECT_EQ(blur::power_of_half(HUGE_VAL), 0);
  EXPECT_EQ(blur::power_of_half(NAN), 0);
}

TEST_F(BlurTest, TapsOfAGaussian) {
  for (const int taps : {1, 3, 23, blur::kMaxTaps}) {
    for (const float sigma : {0.1F, 0.7F, 2.0F, 30.0F}) {
      SCOPED_TRACE(::testing::Message() << taps << " taps, sigma " << sigma);
      double sum = 0, exact = 0;
      for (int i = 0; i < taps; ++i) exact += std::exp(-std::pow((i - taps / 2) / static_cast<double>(sigma), 2) / 2);
      for (int i = 0; i < taps; ++i) {
        const float tap = blur::tap_of(i, taps, sigma);
        EXPECT_NEAR(tap, std::exp(-std::pow((i - taps / 2) / static_cast<double>(sigma), 2) / 2) / exact, 1e-7);
        EXPECT_EQ(tap, blur::tap_of(taps - 1 - i, taps, sigma));
        sum += tap;
      }
      EXPECT_NEAR(sum, 1, 1e-6);
    }
  }
  EXPECT_EQ(blur::tap_of(2, 5, 0), 1);
  EXPECT_EQ(blur::tap_of(1, 5, NAN), 0);
}

// Returns image [height, width, channels] after the blur. The two passes go over the whole image.
std::vector<uint8_t> expected(const std::vector<uint8_t>& pixels, int height, int width, int channels, const float* sigmas, int rows, int columns) {
  const auto reflected = [](int i, int n) { return i < 0 ? -i : i < n ? i : 2 * (n - 1) - i; };
  std::vector<float> middle(pixels.size());
  std::vector<uint8_t> out(pixels.size());
  const auto at = [&](int y, int x, int c) { return static_cast<size_t>((y * width + x) * channels + c); };
  const auto each = [&](const auto& fn) {
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        for (int c = 0; c < channels; ++c) fn(y, x, c);
  };
  each([&](int y, int x, int c) {
    for (int i = 0; i < columns; ++i) middle[at(y, x, c)] += blur::tap_of(i, columns, sigmas[1]) * pixels[at(y, reflected(x + i - columns / 2, width), c)];
  });
  each([&](int y, int x, int c) {
    float sum = 0;
    for (int i = 0; i < rows; ++i) sum += blur::tap_of(i, rows, sigmas[0]) * middle[at(reflected(y + i - rows / 2, height), x, c)];
    out[at(y, x, c)] = static_cast<uint8_t>(std::clamp(std::rint(sum), 0.0F, 255.0F));
  });
  return out;
}

TEST_F(BlurTest, EqualsItsDefinition) {
  constexpr struct {
    int height, width, channels, rows, columns;
  } kCases[] = {{1, 1, 1, 1, 1}, {7, 9, 3, 5, 3}, {33, 65, 1, 9, 1}, {40, 31, 3, 1, 61}, {64, 22, 4, 63, 23}};
  for (const ct_device device : ct_test::devices()) {
    for (const auto& c : kCases) {
      SCOPED_TRACE(::testing::Message() << device << " " << c.height << " x " << c.width << " x " << c.channels);
      const Stream stream = ct_test::new_stream(device);
      const ct_exec x = exec(stream);
      const size_t size = static_cast<size_t>(c.height * c.width * c.channels);
      std::vector<uint8_t> pixels(2 * size), want;
      for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * i * 31 + i / 7);
      const std::vector<float> sigmas = {1.5F, 0.4F, 9, 0};
      for (size_t n = 0; n < 2; ++n) {
        const auto begin = pixels.begin() + static_cast<ptrdiff_t>(n * size);
        const auto one = expected({begin, begin + static_cast<ptrdiff_t>(size)}, c.height, c.width, c.channels, &sigmas[2 * n], c.rows, c.columns);
        want.insert(want.end(), one.begin(), one.end());
      }
      const Tensor from = ct_test::tensor(x, ct_test::kUint8, pixels, {2, c.height, c.width, c.channels});
      const Tensor out = ct_test::tensor(x, ct_test::kUint8, std::vector<uint8_t>(pixels.size()), {2, c.height, c.width, c.channels});
      const Tensor by = ct_test::floats(x, sigmas, {2, 2});
      const uint32_t version = ct_test::describe(out).version;
      ct_test::Results none;
      ASSERT_OK(ct_test::call(x, "streamtorch::blur_images", ct_test::Args().t(from).t(by).i(c.rows).i(c.columns).t(out), &none));
      EXPECT_EQ(ct_test::values<uint8_t>(x, out), want);
      EXPECT_GT(ct_test::describe(out).version, version);
    }
  }
}

}  // namespace
