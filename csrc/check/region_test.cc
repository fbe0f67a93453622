#include "check/region.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace {

using ct::Region;

// Returns the bytes that a tensor reaches, one by one.
std::set<int64_t> bytes_of(const at::Tensor& t) {
  std::set<int64_t> bytes{};
  const auto element = static_cast<int64_t>(t.element_size());
  std::vector<int64_t> starts{t.storage_offset() * element};
  for (int64_t d = 0; d < t.dim(); ++d) {
    std::vector<int64_t> next;
    for (int64_t start : starts) {
      for (int64_t i = 0; i < t.size(d); ++i) next.push_back(start + i * t.stride(d) * element);
    }
    starts = next;
  }
  for (int64_t start : starts) {
    for (int64_t i = 0; i < element; ++i) bytes.insert(start + i);
  }
  return bytes;
}

bool meet(const std::set<int64_t>& a, const std::set<int64_t>& b) {
  for (int64_t byte : a) {
    if (b.count(byte) != 0) return true;
  }
  return false;
}

// For pairs of random views of one storage, the function `overlap` must agree with a comparison
// of the bytes, in both orders of the pair. A region is dense if and only if it has no hole.
TEST(Region, OverlapIsExact) {
  std::mt19937 random(1);
  const auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); };
  const at::Tensor floats = at::zeros({6, 8, 4});
  const at::Tensor bytes = floats.view(at::kByte);
  const auto view = [&] {
    at::Tensor t = below(4) == 0 ? bytes : floats;
    for (int i = 0; i < 3; ++i) {
      const int64_t d = below(t.dim());
      switch (below(5)) {
        case 0: t = t.narrow(d, below(t.size(d)), 1); break;
        case 1: t = t.slice(d, below(t.size(d)), t.size(d), 1 + below(3)); break;
        case 2: t = t.transpose(d, below(t.dim())); break;
        case 3: t = t.select(d, below(t.size(d))).unsqueeze(d); break;
        default: t = t.unsqueeze(0).expand({2, -1, -1, -1}).select(0, 1); break;
      }
    }
    return t;
  };
  int together = 0;
  for (int i = 0; i < 3000; ++i) {
    const at::Tensor a = view(), b = view();
    const auto in_a = bytes_of(a), in_b = bytes_of(b);
    const Region ra = Region::of(a), rb = Region::of(b);
    const bool want = meet(in_a, in_b);
    together += want;
    ASSERT_EQ(ct::overlap(ra, rb), want) << a.sizes() << a.strides() << a.storage_offset() << " and " << b.sizes() << b.strides() << b.storage_offset();
    ASSERT_EQ(ct::overlap(rb, ra), want);
    ASSERT_EQ(ra.dense, static_cast<int64_t>(in_a.size()) == ra.end - ra.begin);
    if (ra.covers(rb)) {
      ASSERT_TRUE(std::includes(in_a.begin(), in_a.end(), in_b.begin(), in_b.end()));
    }
  }
  EXPECT_GT(together, 300);
  EXPECT_LT(together, 2700);
}

TEST(Region, OfNothing) {
  const at::Tensor t = at::zeros({4, 4});
  EXPECT_FALSE(ct::overlap(Region::of(t.narrow(0, 2, 0)), Region::of(t)));
}

}  // namespace
