#include "decode/random.h"

#include <gtest/gtest.h>

#include <cmath>

namespace decode {
namespace {

using Four = std::array<uint32_t, 4>;

// Philox must give the known answers that come with the Random123 library.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}), (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Draw, TakesTheWholeKey) {
  EXPECT_NE(draw(1, 0).first, draw(1 + (uint64_t{1} << 32), 0).first);
  EXPECT_NE(draw(1, 0).first, draw(1, 1).first);
  EXPECT_NE(draw(1, 0).first, draw(1, 0).second);
}

TEST(Uniform, Ends) {
  EXPECT_EQ(uniform(0), 0);
  EXPECT_LT(uniform(~uint64_t{0}), 1);
  EXPECT_EQ(uniform(uint64_t{1} << 63), 0.5);
}

TEST(Below, EveryValueAlikeOften) {
  int count[7] = {};
  for (uint32_t i = 0; i < 70000; ++i) ++count[below(draw(3, i).second, 7)];
  for (const int n : count) EXPECT_LT(std::abs(n - 10000), 400);
  EXPECT_EQ(below(~uint64_t{0}, 5), 4);
  EXPECT_EQ(below(~uint64_t{0}, 1), 0);
}

}  // namespace
}  // namespace decode
