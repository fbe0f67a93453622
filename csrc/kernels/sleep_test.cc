#include <chrono>

#include "core/handles_test.h"

namespace {

using SleepTest = ct_test::HandlesTest;

TEST_F(SleepTest, HoldsTheStreamAndNotTheHost) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const ct_test::Stream s = ct_test::new_stream(device);
    ASSERT_OK(ct_test::sleep(ct_test::exec(s), 1));  // compiles the kernel
    ASSERT_OK(ct_stream_synchronize(s.get()));
    const auto began = std::chrono::steady_clock::now();
    ASSERT_OK(ct_test::sleep(ct_test::exec(s), 100'000'000));
    int32_t done = 0;
    EXPECT_OK(ct_stream_query(s.get(), &done));
    EXPECT_EQ(done, device.type == CT_CPU);
    EXPECT_OK(ct_stream_synchronize(s.get()));
    EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(99));
  }
}

}  // namespace
