#include "core/handles_test.h"

namespace {

using ct_test::exec;
using ct_test::Stream;
using ct_test::Tensor;
using PadTest = ct_test::HandlesTest;

// Pads two images of 2 x 3 pixels and one channel. The second image is flipped.
TEST_F(PadTest, EachMode) {
  const std::vector<uint8_t> want[] = {
      {9, 1, 2, 3, 9, 9, 4, 5, 6, 9, 9, 9, 9, 9, 9, 9, 9, 8, 7, 9, 9, 12, 11, 10, 9, 9, 9, 9, 9, 9},
      {1, 1, 2, 3, 3, 4, 4, 5, 6, 6, 4, 4, 5, 6, 6, 9, 9, 8, 7, 7, 12, 12, 11, 10, 10, 12, 12, 11, 10, 10},
      {2, 1, 2, 3, 2, 5, 4, 5, 6, 5, 2, 1, 2, 3, 2, 8, 9, 8, 7, 8, 11, 12, 11, 10, 11, 8, 9, 8, 7, 8},
      {1, 1, 2, 3, 3, 4, 4, 5, 6, 6, 4, 4, 5, 6, 6, 9, 9, 8, 7, 7, 12, 12, 11, 10, 10, 12, 12, 11, 10, 10}};
  for (const ct_device device : ct_test::devices()) {
    for (int mode = 0; mode < 4; ++mode) {
      SCOPED_TRACE(::testing::Message() << device << " mode " << mode);
      const Stream stream = ct_test::new_stream(device);
      const ct_exec x = exec(stream);
      const Tensor from = ct_test::tensor(x, ct_test::kUint8, std::vector<uint8_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {2, 2, 3, 1});
      const Tensor flips = ct_test::tensor(x, ct_test::kBool, std::vector<uint8_t>{0, 1}, {2});
      const Tensor out = ct_test::tensor(x, ct_test::kUint8, std::vector<uint8_t>(30), {2, 3, 5, 1});
      const uint32_t version = ct_test::describe(out).version;
      ct_test::Results none;
      ASSERT_OK(ct_test::call(x, "streamtorch::pad_images", ct_test::Args().t(from).t(flips).is({1, 0, 1, 1}).i(mode).is({9}).t(out), &none));
      EXPECT_EQ(ct_test::values<uint8_t>(x, out), want[mode]);
      EXPECT_GT(ct_test::describe(out).version, version);
    }
  }
}

TEST_F(PadTest, RefusesATensorOfAnotherDevice) {
  SKIP_WITHOUT_CUDA();
  const Stream cpu = ct_test::new_stream(), cuda = ct_test::new_stream(ct_test::kCuda);
  const auto bytes = [](const Stream& s) { return ct_test::tensor(exec(s), ct_test::kUint8, std::vector<uint8_t>(12), {1, 2, 2, 3}); };
  ct_test::Results none;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "a tensor lies on cpu",
               ct_test::call(exec(cuda), "streamtorch::pad_images",
                             ct_test::Args().t(bytes(cpu)).t(nullptr).is({0, 0, 0, 0}).i(0).is({}).t(bytes(cuda)), &none));
}

}  // namespace
