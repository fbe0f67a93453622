#include "decode/pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "decode/raster.h"

namespace decode {
namespace {

TEST(Pages, SmallAndLarge) {
  for (const size_t size : {size_t{1}, kLarge - 1, kLarge, size_t{10} << 20}) {
    auto* const bytes = static_cast<uint8_t*>(map(size));
    if (size >= kLarge) {
      EXPECT_EQ(std::count(bytes, bytes + size, 0), static_cast<ptrdiff_t>(size));
    }
    std::fill(bytes, bytes + size, 1);
    unmap(bytes, size);
  }
  EXPECT_THROW(map(SIZE_MAX / 2), std::bad_alloc);
  std::vector<int, Pages<int>> numbers;
  for (int i = 0; i < 1'000'000; ++i) numbers.push_back(i);
  for (int i = 0; i < 1'000'000; ++i) ASSERT_EQ(numbers[i], i);
}

TEST(Buffer, ZerosAreZeroAgain) {
  Buffer buffer;
  for (const size_t size : {size_t{100}, kLarge, size_t{50}, 2 * kLarge, kLarge, 2 * kLarge}) {
    uint8_t* const bytes = buffer.zeros(size);
    EXPECT_EQ(std::count(bytes, bytes + size, 0), static_cast<ptrdiff_t>(size));
    std::fill(bytes, bytes + size, 1);
  }
  EXPECT_EQ(buffer.size(), 2 * kLarge);
  buffer.free();
  EXPECT_EQ(buffer.size(), 0u);
}

}  // namespace
}  // namespace decode
