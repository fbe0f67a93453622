#include "decode/png.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstring>
#include <string>

#include "decode/samples_test.h"

namespace decode {
namespace {

TEST(Png, EqualsWhatWasWritten) {
  for (const int channels : {1, 2, 3, 4}) {
    for (const bool interlaced : {false, true}) {
      const Pixels image = scene(23, 31, channels);
      const File file = png_of(image, interlaced);
      Png png(file);
      Scratch scratch;
      const Box box{3, 5, 17, 20};
      const View got = png.read(box, 1, scratch);
      ASSERT_EQ(got.channels, channels <= 2 ? 1 : 3);
      EXPECT_EQ(png.info().alpha, channels % 2 == 0);
      for (int y = 0; y < got.height; ++y) {
        for (int x = 0; x < got.width; ++x) {
          for (int c = 0; c < got.channels; ++c) {
            ASSERT_EQ(got.row(y)[x * got.channels + c], image.view().row(3 + y)[(5 + x) * channels + c]);
          }
        }
      }
    }
  }
}

TEST(Png, CutAnywhere) {
  const File file = png_of(scene(20, 30, 3));
  // The pixels end before the checksum of the deflate stream, the checksum of IDAT, and IEND.
  const size_t pixels_end = file.size() - 12 - 4 - 4;
  for (size_t size = 4; size < file.size(); ++size) {
    const int32_t code = code_of([&] {
      Png png(Bytes(file).first(size));
      Scratch scratch;
      png.read({0, 0, 1, 1}, 1, scratch);
    });
    if (size < pixels_end - 1) {
      EXPECT_EQ(code, CTD_TRUNCATED) << size << " of " << file.size();
    } else {
      EXPECT_TRUE(code == 0 || code == CTD_TRUNCATED) << size << " of " << file.size();
    }
  }
}

// A flipped bit in a critical chunk must give an error, or must change no pixel.
TEST(Png, FlippedBits) {
  const Pixels image = scene(8, 9, 3);
  const File file = png_of(image);
  int refused = 0;
  for (size_t i = 8 * 8; i < file.size() * 8; i += 3) {
    File damaged = file;
    damaged[i / 8] ^= static_cast<uint8_t>(1 << i % 8);
    Scratch scratch;
    const int32_t code = code_of([&] {
      Png png(damaged);
      ASSERT_TRUE(same(png.read({0, 0, 8, 9}, 1, scratch), image.view())) << "bit " << i;
    });
    refused += code != 0;
  }
  EXPECT_GT(refused, 100);
}

void chunk(File& file, const std::string& name, const std::string& body) {
  const auto number = [&](uint32_t v) {
    for (int shift = 24; shift >= 0; shift -= 8) file.push_back(static_cast<uint8_t>(v >> shift));
  };
  number(static_cast<uint32_t>(body.size()));
  const std::string both = name + body;
  file.insert(file.end(), both.begin(), both.end());
  number(static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(both.data()), static_cast<uInt>(both.size()))));
}

// The text, the colour profile and the data after the last row would inflate to far more than the
// image. They must not be inflated. Only the time would show that, and no test checks times. This
// test shows that the image is still right.
TEST(Png, Bombs) {
  std::string zeros(64 << 20, '\0'), packed(1 << 20, '\0');
  uLongf size = packed.size();
  ASSERT_EQ(compress2(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(zeros.data()), zeros.size(), 9), Z_OK);
  packed.resize(size);
  const File small = png_of(scene(2, 2, 1));
  File file(small.begin(), small.begin() + 33);  // the signature and IHDR
  chunk(file, "zTXt", std::string("Comment\0\0", 9) + packed);
  chunk(file, "iCCP", std::string("profile\0\0", 9) + packed);
  chunk(file, "IDAT", packed);
  chunk(file, "IEND", "");
  Png png(file);
  Scratch scratch;
  const View got = png.read({0, 0, 2, 2}, 1, scratch);
  EXPECT_EQ(got.row(1)[1], 0);
}

TEST(Png, HugeHeader) {
  File file = png_of(scene(2, 2, 1));
  const uint8_t side[] = {0x7F, 0xFF, 0xFF, 0xFF};
  std::memcpy(&file[16], side, 4);
  std::memcpy(&file[20], side, 4);
  File header(file.begin(), file.begin() + 8);
  chunk(header, "IHDR", std::string(file.begin() + 16, file.begin() + 29));
  chunk(header, "IDAT", "x");
  EXPECT_EQ(Png(header).info().width, 0x7FFFFFFF);
}

}  // namespace
}  // namespace decode
