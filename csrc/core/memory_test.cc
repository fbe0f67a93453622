#include <thread>

#include "core/handles_test.h"

namespace {

using ct_test::Args;
using ct_test::exec;
using ct_test::floats;
using ct_test::kCpu;
using ct_test::Stream;
using ct_test::Tensor;
using MemoryTest = ct_test::HandlesTest;

constexpr int64_t kMiB = 1 << 20;

ct_memory stats(ct_device device) {
  ct_memory memory{-1, -1, -1, -1};
  EXPECT_OK(ct_memory_stats(device, &memory));
  return memory;
}

Tensor mebibytes(const ct_exec& x, int64_t n) {
  return ct_test::run1(x, "aten::empty.memory_format", Args().is({n * kMiB}).i(ct_test::kUint8).rest());
}

TEST_F(MemoryTest, Stats_FollowAllocations) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const ct_memory before = stats(device);
    Tensor t = mebibytes(x, 8);
    const ct_memory during = stats(device);
    EXPECT_GE(during.allocated, before.allocated + 8 * kMiB);
    EXPECT_LT(during.allocated, before.allocated + 8 * kMiB + 64 * 1024);
    EXPECT_GE(during.allocations, before.allocations + 1);
    EXPECT_GE(during.reserved, during.allocated);
    const Tensor alias(ct_tensor_alias(t.get()));
    t.reset();
    EXPECT_EQ(stats(device).allocated, during.allocated) << "a second handle holds the memory";
  }
}

TEST_F(MemoryTest, Peak_IsTheMostSinceItsReset) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    EXPECT_OK(ct_memory_reset_peak(device));
    const ct_memory before = stats(device);
    EXPECT_EQ(before.peak_allocated, before.allocated);
    mebibytes(x, 16);
    const ct_memory after = stats(device);
    EXPECT_EQ(after.allocated, before.allocated);
    EXPECT_GE(after.peak_allocated, before.allocated + 16 * kMiB);
    mebibytes(x, 4);
    EXPECT_EQ(stats(device).peak_allocated, after.peak_allocated);
    EXPECT_OK(ct_memory_reset_peak(device));
    EXPECT_EQ(stats(device).peak_allocated, before.allocated);
  }
}

TEST_F(MemoryTest, Free_FromAnotherThreadIsCounted) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const ct_memory before = stats(device);
    ct_tensor* t = mebibytes(x, 2).release();
    std::thread([t] { ct_tensor_free(t); }).join();
    EXPECT_EQ(stats(device).allocated, before.allocated);
  }
}

TEST_F(MemoryTest, Stats_FromManyThreads) {
  const ct_memory before = stats(kCpu);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      const Stream s = ct_test::new_stream();
      const ct_exec x = exec(s);
      for (int k = 0; k < 200; ++k) floats(x, std::vector<float>(1000, 1));
    });
  }
  for (std::thread& t : threads) t.join();
  const ct_memory after = stats(kCpu);
  EXPECT_EQ(after.allocated, before.allocated);
  EXPECT_GE(after.allocations, before.allocations + 1600);
}

TEST_F(MemoryTest, ReleaseCached) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    mebibytes(exec(s), 64);
    EXPECT_OK(ct_device_synchronize(device));
    EXPECT_OK(ct_memory_release_cached(device));
    const ct_memory memory = stats(device);
    EXPECT_LT(memory.reserved, memory.allocated + 64 * kMiB);
  }
}

TEST_F(MemoryTest, Stats_OfNoDevice) {
  ct_memory memory;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "device type 5", ct_memory_stats({5, 0}, &memory));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "device type 5", ct_memory_reset_peak({5, 0}));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "device type 5", ct_memory_release_cached({5, 0}));
  EXPECT_FAILS(CT_NO_DEVICE, "", ct_memory_stats({CT_CUDA, 63}, &memory));
}

}  // namespace
