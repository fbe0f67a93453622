#include "core/handles_test.h"

namespace {

using ct_test::kCpu;
using ct_test::kCuda;
using DeviceTest = ct_test::HandlesTest;

TEST_F(DeviceTest, Check_OfTheCPU) { EXPECT_OK(ct_device_check(kCpu)); }

TEST_F(DeviceTest, Check_RefusesWhatIsNoDevice) {
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "device type 7 is neither CPU nor CUDA", ct_device_check({7, 0}));
  EXPECT_FAILS(CT_NO_DEVICE, "cuda:-1 is not a device number", ct_device_check({CT_CUDA, -1}));
  EXPECT_FAILS(CT_NO_DEVICE, "cuda:64 is not a device number", ct_device_check({CT_CUDA, 64}));
}

TEST_F(DeviceTest, Check_OfAbsentCUDA_SaysWhy) {
  if (ct_test::has_cuda()) GTEST_SKIP() << "CUDA is there";
  char* why = nullptr;
  EXPECT_EQ(ct_cuda_count(&why), 0);
  const ct_test::Text text(why);
  ASSERT_NE(why, nullptr);
  EXPECT_FALSE(std::string(why).empty());
  EXPECT_FAILS(CT_NO_DEVICE, why, ct_device_check(kCuda));
  EXPECT_FAILS(CT_NO_DEVICE, "CUDA is not available", ct_device_synchronize(kCuda));
  EXPECT_EQ(ct_cuda_count(nullptr), 0);
}

TEST_F(DeviceTest, Check_OfCUDA_KnowsItsCount) {
  SKIP_WITHOUT_CUDA();
  char* why = reinterpret_cast<char*>(uintptr_t{1});
  const int32_t count = ct_cuda_count(&why);
  EXPECT_EQ(why, nullptr);
  EXPECT_OK(ct_device_check({CT_CUDA, count - 1}));
  EXPECT_FAILS(CT_NO_DEVICE, "cuda:" + std::to_string(count) + " is not there", ct_device_check({CT_CUDA, count}));
}

TEST_F(DeviceTest, Synchronize) {
  for (const ct_device device : ct_test::devices()) EXPECT_OK(ct_device_synchronize(device)) << device;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "device type 7", ct_device_synchronize({7, 0}));
}

}  // namespace
