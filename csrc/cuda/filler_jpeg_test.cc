#include "cuda/filler_jpeg.h"

#include <gtest/gtest.h>

#include <utility>

#include "decode/frames_test.h"

namespace {

TEST(FillerJpegTest, IsSound) {
  for (const auto& [across, down] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    for (const auto& [width, height] : {std::pair{1, 1}, {16, 16}, {17, 300}, {512, 512}, {2048, 100}}) {
      const std::vector<uint8_t> file = ct::filler_jpeg(width, height, across, down);
      SCOPED_TRACE(testing::Message() << width << " x " << height << ", " << across << " x " << down << ", " << file.size() << " bytes");
      ctd_status* const fault = ctd_check(file.data(), file.size(), 0);
      ASSERT_EQ(fault, nullptr) << ctd_status_message(fault);
      decode::read_header(file, [&](const jpeg_decompress_struct& info) {
        EXPECT_EQ(info.image_width, width);
        EXPECT_EQ(info.image_height, height);
        EXPECT_EQ(decode::sampling_of(info), across == 1 ? CTD_444 : down == 1 ? CTD_422 : CTD_420);
      });
      EXPECT_EQ(decode::bare(file), file);
    }
  }
}

}  // namespace
