#include "core/handles_test.h"

namespace {

using ct_test::exec;
using ct_test::Stream;
using ct_test::Tensor;
using BlendTest = ct_test::HandlesTest;

// Blends two images of 1 x 2 pixels with two copies of each. The second image is flipped.
TEST_F(BlendTest, EqualsItsDefinition) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream stream = ct_test::new_stream(device);
    const ct_exec x = exec(stream);
    const auto bytes = [&](const std::vector<uint8_t>& v, int64_t n) { return ct_test::tensor(x, ct_test::kUint8, v, {n, 1, 2, 1}); };
    const Tensor from = bytes({100, 200, 10, 255}, 2), copies = bytes({4, 8, 255, 6, 40, 80, 255, 1}, 4), out = bytes({0, 0, 0, 0}, 2);
    const Tensor flips = ct_test::tensor(x, ct_test::kBool, std::vector<uint8_t>{0, 1}, {2});
    const Tensor weights = ct_test::floats(x, {0.5F, 0.25F, 0.25F, 1, 0.5F, -0.5F}, {2, 3});
    const uint32_t version = ct_test::describe(out).version;
    ct_test::Results none;
    ASSERT_OK(ct_test::call(x, "streamtorch::blend_images", ct_test::Args().t(from).t(flips).t(copies).t(weights).t(out), &none));
    EXPECT_EQ(ct_test::values<uint8_t>(x, out), (std::vector<uint8_t>{61, 122, 255, 12}));
    EXPECT_GT(ct_test::describe(out).version, version);
  }
}

TEST_F(BlendTest, RefusesATensorOfAnotherDevice) {
  SKIP_WITHOUT_CUDA();
  const Stream cpu = ct_test::new_stream(), cuda = ct_test::new_stream(ct_test::kCuda);
  const auto bytes = [](const Stream& s) { return ct_test::tensor(exec(s), ct_test::kUint8, std::vector<uint8_t>(12), {1, 2, 2, 3}); };
  const Tensor weights = ct_test::floats(exec(cuda), {1, 1}, {1, 2});
  ct_test::Results none;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "a tensor lies on cpu",
               ct_test::call(exec(cuda), "streamtorch::blend_images",
                             ct_test::Args().t(bytes(cuda)).t(nullptr).t(bytes(cpu)).t(weights).t(bytes(cuda)), &none));
}

}  // namespace
