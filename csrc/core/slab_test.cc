#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "core/handles_test.h"

namespace {

using ct_test::Slab;
using SlabTest = ct_test::HandlesTest;

Slab new_slab(int64_t bytes) {
  ct_slab* slab = nullptr;
  EXPECT_OK(ct_slab_new(bytes, &slab));
  return Slab(slab);
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

TEST_F(SlabTest, Null_HasNoMemory) {
  EXPECT_EQ(ct_slab_data(nullptr), nullptr);
  EXPECT_EQ(ct_slab_pinned(nullptr), 0);
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

}  // namespace
