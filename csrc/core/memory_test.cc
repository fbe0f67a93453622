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
  ct_memory memory{-1, -1, -1, -1, -1};
  EXPECT_OK(ct_memory_stats(device, &memory));
  return memory;
}

Tensor mebibytes(const ct_exec& x, int64_t n) {
  return ct_test::run1(x, "aten::empty.memory_format", Args().is({n * kMiB}).i(ct_test::kUint8).rest());
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

TEST_F(MemoryTest, Stats_Free) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_memory before = stats(device);
    if (device.type == kCpu.type) {
      EXPECT_EQ(before.free, 0);
      continue;
    }
    const ct_test::Tensor t = mebibytes(exec(s), 256);
    const int64_t taken = before.free - stats(device).free;  // other processes take memory too
    EXPECT_GE(taken, 200 * kMiB);
    EXPECT_LE(taken, 2048 * kMiB);
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

}  // namespace
