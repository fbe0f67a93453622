#include "kernels/augment_pixels.h"

#include <algorithm>
#include <random>

#include "core/handles_test.h"

namespace {

using ct_test::exec;
using ct_test::Stream;
using ct_test::Tensor;
using AugmentTest = ct_test::HandlesTest;
namespace augment = ct::augment;

constexpr int kValues = 1 + augment::kStepValues;

// Computes the result that augment.cc gives on a processor without a fused multiply-add. This
// file is compiled for such a processor.
template <int C>
std::vector<uint8_t> expected(const std::vector<uint8_t>& pixels, int height, int width, bool flip, const augment::Step* steps, int count) {
  const augment::Source source{pixels.data(), height, width, flip};
  std::vector<uint8_t> tables(static_cast<size_t>(count) * C * augment::kLevels), out;
  for (int k = 0; k < count; ++k) {
    std::vector<int> histogram(C * augment::kLevels);
    double greys = 0;
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const auto p = augment::after<C>(source, steps, k, tables.data(), y, x);
        greys += augment::grey<C>(p);
        for (int c = 0; c < C; ++c) ++histogram[static_cast<size_t>(c * augment::kLevels + p.channel[c])];
      }
    }
    const float mean = static_cast<float>(greys) / static_cast<float>(height * width);
    for (int c = 0; c < C; ++c) {
      int* mine = histogram.data() + c * augment::kLevels;
      const augment::Summary summary = augment::summarize(mine);
      for (int v = 0; v < augment::kLevels; ++v) {
        tables[static_cast<size_t>((k * C + c) * augment::kLevels + v)] = augment::entry(steps[k], mean, summary, mine, v);
      }
    }
  }
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const auto p = augment::after<C>(source, steps, count, tables.data(), y, x);
      out.insert(out.end(), p.channel, p.channel + C);
    }
  }
  return out;
}

ct_status* augment_images(const ct_exec& x, const Tensor& pixels, ct_tensor* flips, const Tensor& steps, const Tensor& out) {
  ct_test::Results none;
  return ct_test::call(x, "streamtorch::augment_images", ct_test::Args().t(pixels).t(flips).t(steps).t(out), &none);
}

// Processors with a fused multiply-add, processors without one, and CUDA give the same bytes.
TEST_F(AugmentTest, EveryProcessorAlike) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> factors(0, 2), turns(-0.5, 0.5);
  for (const ct_device device : ct_test::devices()) {
    for (int kind = augment::kNothing; kind <= augment::kBilinear + 1; ++kind) {
      for (int round = 0; round < 8; ++round) {
        const int height = 5 + 9 * round, width = 40 - 5 * round, count = 1 + round % 3;
        SCOPED_TRACE(::testing::Message() << device << " kind " << kind << ", " << height << " x " << width);
        std::vector<uint8_t> pixels(static_cast<size_t>(height * width * 3));
        for (uint8_t& p : pixels) p = static_cast<uint8_t>(round % 2 == 0 ? random() : 90 + random() % 50);
        std::vector<augment::Step> steps(static_cast<size_t>(count));
        for (augment::Step& s : steps) {
          const float factor = factors(random);
          s = {static_cast<float>(kind), {factor, 1 - factor, turns(random), turns(random), 1 - turns(random), turns(random), 0}};
          if (augment::moves(kind) && round > 3) s.value[6] = static_cast<float>(1 + random() % (1 << 24));  // a fill
          if (kind == augment::kHue) s.value[0] = turns(random);
          if (kind == augment::kPosterize) s.value[0] = static_cast<float>(round);
          if (kind == augment::kSolarize) s.value[0] = 128 * factor;
        }
        const bool flip = round % 2 == 1;
        const Stream stream = ct_test::new_stream(device);
        const ct_exec x = exec(stream);
        std::vector<float> values;
        for (const augment::Step& s : steps) {
          values.push_back(s.kind);
          values.insert(values.end(), s.value, s.value + augment::kStepValues);
        }
        const Tensor from = ct_test::tensor(x, ct_test::kUint8, pixels, {1, height, width, 3});
        const Tensor out = ct_test::tensor(x, ct_test::kUint8, std::vector<uint8_t>(pixels.size()), {1, height, width, 3});
        const Tensor by = ct_test::floats(x, values, {1, count, kValues});
        const Tensor flips = ct_test::tensor(x, ct_test::kBool, std::vector<uint8_t>{flip}, {1});
        const uint32_t version = ct_test::describe(out).version;
        ASSERT_OK(augment_images(x, from, flips.get(), by, out));
        for (augment::Step& s : steps) s = augment::ready(s, height, width);
        EXPECT_EQ(ct_test::values<uint8_t>(x, out), expected<3>(pixels, height, width, flip, steps.data(), count));
        EXPECT_GT(ct_test::describe(out).version, version);
      }
    }
  }
}

}  // namespace
