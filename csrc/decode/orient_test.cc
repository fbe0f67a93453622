#include "decode/orient.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "decode/samples_test.h"

namespace decode {
namespace {

// The image "abc" above "def" is stored in each orientation, by the table of the EXIF standard. It
// must be turned upright.
TEST(Upright, EveryOrientation) {
  const struct {
    const char* stored;
    int height, width;
  } tests[] = {{"abcdef", 2, 3}, {"cbafed", 2, 3}, {"fedcba", 2, 3}, {"defabc", 2, 3},
               {"adbecf", 3, 2}, {"cfbead", 3, 2}, {"fcebda", 3, 2}, {"daebfc", 3, 2}};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const auto& t = tests[orientation - 1];
    const View stored{reinterpret_cast<const uint8_t*>(t.stored), t.height, t.width, 1, static_cast<size_t>(t.width)};
    uint8_t out[6];
    const View got = upright(stored, orientation, out);
    EXPECT_EQ(std::string(out, out + 6), "abcdef") << orientation;
    EXPECT_EQ(got.height, 2);
    EXPECT_EQ(got.width, 3);
    EXPECT_EQ(swaps_sides(orientation), t.height == 3);
  }
}

TEST(Stored, PartTurnedEqualsPartOfTurned) {
  const Pixels image = scene(9, 14, 3);
  for (int orientation = 1; orientation <= 8; ++orientation) {
    File whole(image.bytes.size()), part(image.bytes.size());
    const View turned = upright(image.view(), orientation, whole.data());
    const Box box{2, 1, 5, 4};
    const Box at = stored(box, orientation, turned.height, turned.width);
    const Box back = shown(at, orientation, image.height, image.width);
    EXPECT_EQ(std::tie(back.top, back.left, back.height, back.width), std::tie(box.top, box.left, box.height, box.width));
    const View got = upright(image.view().part(at), orientation, part.data());
    ASSERT_EQ(got.height, box.height);
    ASSERT_EQ(got.width, box.width);
    EXPECT_TRUE(same(got, turned, box.top, box.left)) << orientation;
  }
}

}  // namespace
}  // namespace decode
