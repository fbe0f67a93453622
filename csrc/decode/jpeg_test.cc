#include "decode/jpeg.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "decode/random.h"
#include "decode/samples_test.h"

namespace decode {
namespace {

Box all(const Reader& reader) { return {0, 0, reader.info().height, reader.info().width}; }

void read_all(const File& file) {
  Jpeg jpeg(file);
  Scratch scratch;
  jpeg.read(all(jpeg), 1, scratch);
}

// A box that is read alone must equal the same part of the whole image, at every shrink. The
// edges of the box must not show.
TEST(Jpeg, BoxEqualsPartOfWhole) {
  int number = 0;
  for (const int channels : {1, 3, 4}) {
    for (const auto& kind : {JpegKind{2, 2}, JpegKind{2, 1}, JpegKind{1, 1}, JpegKind{1, 2}, JpegKind{4, 1},
                             JpegKind{2, 2, true}, JpegKind{1, 1, true}, JpegKind{2, 2, false, 3}}) {
      if (channels != 3 && (kind.across != 1 || kind.down != 1)) continue;
      const File file = jpeg_of(scene(133, 187, channels), kind);
      for (int i = 0; i < 160; ++i) {
        const int shrink = i < 60 ? 1 : 2 << i % 3;
        Jpeg whole(file), part(file);
        Scratch pixels, scratch;
        const View image = whole.read(all(whole), shrink, pixels);
        ASSERT_EQ(image.height, (133 + shrink - 1) / shrink);
        ASSERT_EQ(image.width, (187 + shrink - 1) / shrink);
        ASSERT_EQ(image.channels, channels == 1 ? 1 : 3);
        const Draw size = draw(1, ++number), place = draw(2, number);
        Box box{0, 0, 1 + below(size.first, 133), 1 + below(size.second, 187)};
        box.top = below(place.first, 133 - box.height + 1);
        box.left = below(place.second, 187 - box.width + 1);
        const Box at = shrunk(box, shrink);
        const View got = part.read(box, shrink, scratch);
        ASSERT_EQ(got.height, at.height);
        ASSERT_EQ(got.width, at.width);
        ASSERT_TRUE(same(got, image, at.top, at.left))
            << kind.across << kind.down << kind.progressive << " 1/" << shrink << " " << box.top << "," << box.left << " "
            << box.height << "x" << box.width;
      }
    }
  }
}

// A file that is cut anywhere gives CTD_TRUNCATED, also if the box lies before the cut.
TEST(Jpeg, CutAnywhere) {
  for (const bool progressive : {false, true}) {
    const File file = jpeg_of(scene(20, 30, 3), {2, 2, progressive});
    for (size_t size = 2; size < file.size(); ++size) {
      EXPECT_EQ(code_of([&] {
                  Jpeg jpeg(Bytes(file).first(size));
                  Scratch scratch;
                  jpeg.read({0, 0, 1, 1}, 1, scratch);
                }),
                CTD_TRUNCATED)
          << size << " of " << file.size();
    }
  }
}

// In a sequential JPEG, damage in the box or above it is an error. Damage below the box is not
// seen, because those rows are not decoded. A progressive JPEG is read to its end, so all damage
// is an error.
TEST(Jpeg, DamageOutsideTheBox) {
  for (const bool progressive : {false, true}) {
    File file = jpeg_of(scene(200, 200, 3), {2, 2, progressive});
    const size_t end = file.size();
    file.resize(end * 9 / 10);
    file.insert(file.end(), {0xFF, 0xD9});
    const auto read = [&](const Box& box) {
      return code_of([&] {
        Jpeg jpeg(file);
        Scratch scratch;
        jpeg.read(box, 1, scratch);
      });
    };
    EXPECT_EQ(read({0, 0, 8, 8}), progressive ? CTD_CORRUPT : 0);
    EXPECT_EQ(read({192, 0, 8, 8}), CTD_CORRUPT);
    EXPECT_EQ(read({0, 0, 200, 8}), CTD_CORRUPT);
  }
}

// When decode::Huffman takes the place of libjpeg's decoder, the pixels must equal those of
// libjpeg alone.
TEST(Jpeg, PixelsAreLibjpegs) {
  for (const int channels : {1, 3}) {
    for (const auto& kind : {JpegKind{1, 1}, JpegKind{2, 1}, JpegKind{2, 2}, JpegKind{1, 2}, JpegKind{4, 1}, JpegKind{2, 2, false, 3}}) {
      if (channels == 1 && kind.across * kind.down != 1) continue;
      const File file = jpeg_of(scene(133, 187, channels), kind);
      jpeg_decompress_struct info{};
      jpeg_error_mgr errors{};
      info.err = jpeg_std_error(&errors);
      jpeg_create_decompress(&info);
      jpeg_mem_src(&info, file.data(), file.size());
      jpeg_read_header(&info, TRUE);
      jpeg_start_decompress(&info);
      Pixels want{133, 187, channels, {}};
      want.bytes.resize(static_cast<size_t>(133) * 187 * channels);
      while (info.output_scanline < info.output_height) {
        uint8_t* row = &want.bytes[static_cast<size_t>(info.output_scanline) * 187 * channels];
        jpeg_read_scanlines(&info, &row, 1);
      }
      jpeg_finish_decompress(&info);
      jpeg_destroy_decompress(&info);
      Jpeg jpeg(file);
      Scratch scratch;
      EXPECT_TRUE(same(jpeg.read(all(jpeg), 1, scratch), want.view())) << channels << kind.across << kind.down;
    }
  }
}

TEST(Jpeg, MissingRestartMarker) {
  File file = jpeg_of(scene(64, 64, 3), {1, 1, false, 4});
  const auto marker = std::find_if(file.begin() + 600, file.end() - 2, [&](const uint8_t& byte) {
    return byte == 0xFF && (&byte)[1] >= 0xD0 && (&byte)[1] <= 0xD7;
  });
  ASSERT_NE(marker, file.end() - 2);
  EXPECT_EQ(code_of([&] { read_all(file); }), 0);
  marker[1] = 0xD0 + (marker[1] - 0xD0 + 4) % 8;
  EXPECT_EQ(code_of([&] { read_all(file); }), CTD_CORRUPT);
}

// A file with too many scans is refused. Each scan takes time for the whole image, however few
// bytes it has.
TEST(Jpeg, ManyScans) {
  const File file = jpeg_of(scene(64, 64, 1), {1, 1, true});
  // For each scan, the place where the tables before the scan begin. No other bytes of the file
  // look like the marker of a table.
  std::vector<size_t> tables;
  for (size_t i = 0; i + 1 < file.size(); ++i) {
    if (file[i] == 0xFF && file[i + 1] == 0xC4) tables.push_back(i);
  }
  ASSERT_GE(tables.size(), 3u);
  const auto with = [&](int scans) {  // the file with `scans` copies of its second scan; the scans after the copies refine it
    File out(file.begin(), file.begin() + static_cast<ptrdiff_t>(tables[1]));
    for (int i = 0; i < scans; ++i) {
      out.insert(out.end(), file.begin() + static_cast<ptrdiff_t>(tables[1]), file.begin() + static_cast<ptrdiff_t>(tables[2]));
    }
    out.insert(out.end(), file.begin() + static_cast<ptrdiff_t>(tables[2]), file.end());
    return out;
  };
  EXPECT_EQ(code_of([&] { read_all(with(80)); }), 0);
  EXPECT_EQ(code_of([&] { read_all(with(200)); }), CTD_TOO_LARGE);
}

TEST(Jpeg, InfoOfGreyAndInk) {
  EXPECT_EQ(Jpeg(jpeg_of(scene(5, 6, 1), {1, 1})).info().color_space, CTD_GREY);
  EXPECT_EQ(Jpeg(jpeg_of(scene(5, 6, 4), {1, 1})).info().color_space, CTD_CMYK);
  const File file = jpeg_of(scene(5, 6, 3), {2, 2, true});
  const Jpeg jpeg(file);
  EXPECT_EQ(jpeg.info().height, 5);
  EXPECT_EQ(jpeg.info().width, 6);
  EXPECT_EQ(jpeg.info().progressive, 1);
}

}  // namespace
}  // namespace decode
