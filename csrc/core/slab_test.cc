#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/handles_test.h"

namespace {

using ct_test::Slab;
using SlabTest = ct_test::HandlesTest;

Slab new_slab(int64_t bytes) {
  ct_slab* slab = nullptr;
  EXPECT_OK(ct_slab_new(bytes, &slab));
  return Slab(slab);
}

TEST_F(SlabTest, New_IsAlignedZeroAndCounted) {
  ct_live before, during;
  ct_live_handles(&before);
  for (const int64_t bytes : {int64_t{1}, int64_t{4096}, int64_t{100001}}) {
    const Slab slab = new_slab(bytes);
    auto* data = static_cast<uint8_t*>(ct_slab_data(slab.get()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), 0U);
    EXPECT_EQ(std::accumulate(data, data + bytes, 0), 0);
    std::memset(data, 0xff, static_cast<size_t>(bytes));
    EXPECT_EQ(ct_slab_pinned(slab.get()), 0);
    ct_live_handles(&during);
    EXPECT_EQ(during.slabs, before.slabs + 1);
    EXPECT_EQ(during.slab_bytes, before.slab_bytes + bytes);
    EXPECT_EQ(during.pinned_bytes, before.pinned_bytes);
  }
}

TEST_F(SlabTest, New_Refused) {
  ct_slab* slab = nullptr;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "a slab of 0 bytes", ct_slab_new(0, &slab));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "a slab of -5 bytes", ct_slab_new(-5, &slab));
  EXPECT_FAILS(CT_OUT_OF_MEMORY, "no host memory for a slab of", ct_slab_new(int64_t{1} << 60, &slab));
  EXPECT_FAILS(CT_OUT_OF_MEMORY, "no host memory for a slab of", ct_slab_new(std::numeric_limits<int64_t>::max(), &slab));
  EXPECT_EQ(slab, nullptr);
}

// A page and a half of memory that no slab allocated.
class Foreign {
 public:
  Foreign() : data_(static_cast<uint8_t*>(std::aligned_alloc(page(), 2 * page()))) { std::memset(data_, 7, 2 * page()); }
  ~Foreign() { std::free(data_); }
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;
  uint8_t* data() const { return data_; }
  static size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
  static int64_t bytes() { return static_cast<int64_t>(page() + page() / 2); }

 private:
  uint8_t* const data_;
};

TEST_F(SlabTest, Over_LeavesTheMemoryToItsOwner) {
  const Foreign memory;
  ct_live before, during;
  ct_live_handles(&before);
  for (int i = 0; i < 2; ++i) {  // the same memory may be a slab again after the first slab is freed
    ct_slab* over = nullptr;
    ASSERT_OK(ct_slab_over(memory.data(), Foreign::bytes(), &over));
    const Slab slab(over);
    EXPECT_EQ(ct_slab_data(slab.get()), memory.data());
    ct_live_handles(&during);
    EXPECT_EQ(during.slabs, before.slabs + 1);
    EXPECT_EQ(during.slab_bytes, before.slab_bytes + Foreign::bytes());
  }
  EXPECT_EQ(std::accumulate(memory.data(), memory.data() + Foreign::bytes(), int64_t{0}), 7 * Foreign::bytes());
}

TEST_F(SlabTest, Over_Refused) {
  const Foreign memory;
  ct_slab* over = nullptr;
  const auto page = static_cast<int64_t>(Foreign::page());
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "a slab of 0 bytes", ct_slab_over(memory.data(), 0, &over));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "begins inside a page", ct_slab_over(memory.data() + 8, page, &over));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "begins inside a page", ct_slab_over(nullptr, page, &over));
  EXPECT_EQ(over, nullptr);
  {
    ASSERT_OK(ct_slab_over(memory.data() + page, page, &over));
    const Slab slab(over);
    ct_slab* second = nullptr;
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "another slab's", ct_slab_over(memory.data() + page, 1, &second));
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "another slab's", ct_slab_over(memory.data(), page + 1, &second));
    EXPECT_EQ(second, nullptr);
    EXPECT_OK(ct_slab_over(memory.data(), page, &second));  // two slabs that do not overlap are allowed
    const Slab beside(second);
  }
}

TEST_F(SlabTest, Over_PinnedIsUnlocked) {
  SKIP_WITHOUT_CUDA();
  const Foreign memory;
  for (int i = 0; i < 2; ++i) {  // the second lock fails unless the first slab unlocked the memory
    ct_slab* over = nullptr;
    ASSERT_OK(ct_slab_over(memory.data(), Foreign::bytes(), &over));
    const Slab slab(over);
    EXPECT_OK(ct_slab_pin(slab.get()));
    EXPECT_EQ(ct_slab_pinned(slab.get()), 1);
  }
}

TEST_F(SlabTest, Null_HasNoMemory) {
  EXPECT_EQ(ct_slab_data(nullptr), nullptr);
  EXPECT_EQ(ct_slab_pinned(nullptr), 0);
}

TEST_F(SlabTest, Pin_WithoutCUDA) {
  if (ct_test::has_cuda()) GTEST_SKIP() << "CUDA is there";
  const Slab slab = new_slab(4096);
  EXPECT_FAILS(CT_NO_DEVICE, "CUDA is not available", ct_slab_pin(slab.get()));
  EXPECT_EQ(ct_slab_pinned(slab.get()), 0);
}

TEST_F(SlabTest, Pin_IsCountedAndMayBeRepeated) {
  SKIP_WITHOUT_CUDA();
  ct_live before, during;
  ct_live_handles(&before);
  const Slab slab = new_slab(100001);
  EXPECT_OK(ct_slab_pin(slab.get()));
  EXPECT_OK(ct_slab_pin(slab.get()));
  EXPECT_EQ(ct_slab_pinned(slab.get()), 1);
  ct_live_handles(&during);
  EXPECT_EQ(during.pinned_bytes, before.pinned_bytes + 100001);
}

TEST_F(SlabTest, Pinned_CopiesAndReadsBeforeReturnWhereThatIsPromised) {
  SKIP_WITHOUT_CUDA();
  const auto s = ct_test::new_stream(ct_test::kCuda);
  const ct_exec x = ct_test::exec(s);
  constexpr size_t n = 64 << 20;
  const Slab slab = new_slab(n);
  EXPECT_OK(ct_slab_pin(slab.get()));
  auto* data = static_cast<uint8_t*>(ct_slab_data(slab.get()));
  std::memset(data, 1, n);
  // ct_tensor_from_host has read the memory when it returns, also if the memory is pinned.
  ct_tensor* out = nullptr;
  const int64_t shape[] = {n};
  ASSERT_OK(ct_tensor_from_host(x, data, n, ct_test::kUint8, shape, 1, &out));
  std::memset(data, 2, n);
  const ct_test::Tensor t(out);
  const auto smallest = ct_test::run1(x, "aten::max", ct_test::Args().t(t));
  EXPECT_EQ(ct_test::values<uint8_t>(x, smallest)[0], 1);
  EXPECT_OK(ct_tensor_copy_from(x, out, data, n));
  const auto e = ct_test::record(s);
  EXPECT_OK(ct_event_synchronize(e.get()));
  EXPECT_EQ(ct_test::values<uint8_t>(x, t), std::vector<uint8_t>(n, 2));
}

}  // namespace
