#include "kernels/border.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

namespace border = ct::border;

// Returns the letters that stand for the places around the line "abc".
std::string line(int before, int after, int mode) {
  std::string out;
  for (int i = -before; i < 3 + after; ++i) {
    const int from = border::source_of(i, 3, mode);
    out += from < 0 ? '.' : "abc"[from];
  }
  return out;
}

TEST(BorderTest, EachMode) {
  EXPECT_EQ(line(2, 2, border::kConstant), "..abc..");
  EXPECT_EQ(line(4, 2, border::kEdge), "aaaaabccc");
  EXPECT_EQ(line(2, 2, border::kReflect), "cbabcba");
  EXPECT_EQ(line(3, 3, border::kSymmetric), "cbaabccba");
}

TEST(BorderTest, ALineOfOnePixel) {
  for (const int mode : {border::kEdge, border::kSymmetric}) {
    for (const int i : {-1, 0, 1}) EXPECT_EQ(border::source_of(i, 1, mode), 0) << mode << " " << i;
  }
  EXPECT_EQ(border::source_of(0, 1, border::kReflect), 0);
  EXPECT_EQ(border::source_of(1, 1, border::kConstant), -1);
}

}  // namespace
