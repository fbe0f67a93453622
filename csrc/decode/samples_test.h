// Makes images for the tests, encoded with libjpeg and libpng.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <jpeglib.h>
#include <png.h>

#include "decode/raster.h"
#include "decode/status.h"

namespace decode {

using File = std::vector<uint8_t>;

// Pixels owns the pixels of a View.
struct Pixels {
  int height, width, channels;
  File bytes;

  View view() const { return {bytes.data(), height, width, channels, static_cast<size_t>(width) * channels}; }
};

// Returns a smooth picture with some noise, in which no two places are alike.
inline Pixels scene(int height, int width, int channels) {
  Pixels out{height, width, channels, {}};
  uint32_t noise = 1;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        noise = noise * 1664525 + 1013904223;
        out.bytes.push_back(static_cast<uint8_t>((c == 0 ? 3 * x : c == 1 ? 5 * y : 2 * (x + y)) + (noise >> 28)));
      }
    }
  }
  return out;
}

struct JpegKind {
  int across = 2, down = 2;  // sampling factors of the first component; 2 and 2 give 4:2:0
  bool progressive = false;
  int restart = 0;  // MCUs between restart markers
  int quality = 90;
  bool optimize = false;  // the file gets Huffman tables made for its own data
};

inline File jpeg_of(const Pixels& pixels, const JpegKind& kind = {}) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &data, &size);
  info.image_width = pixels.width;
  info.image_height = pixels.height;
  info.input_components = pixels.channels;
  info.in_color_space = pixels.channels == 1 ? JCS_GRAYSCALE : pixels.channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, kind.quality, TRUE);
  info.comp_info[0].h_samp_factor = kind.across;
  info.comp_info[0].v_samp_factor = kind.down;
  if (kind.progressive) jpeg_simple_progression(&info);
  info.restart_interval = kind.restart;
  info.optimize_coding = kind.optimize ? TRUE : FALSE;
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto row = const_cast<uint8_t*>(pixels.view().row(static_cast<int>(info.next_scanline)));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  File out(data, data + size);
  std::free(data);
  return out;
}

// Returns the JPEG with an EXIF orientation added.
inline File oriented(File jpeg, int orientation) {
  const uint8_t exif[] = {0xFF, 0xE1, 0, 34, 'E', 'x', 'i', 'f', 0, 0, 'I', 'I', 42, 0, 8, 0, 0, 0,
                          1,    0,    0x12, 1, 3, 0, 1, 0, 0, 0, static_cast<uint8_t>(orientation), 0, 0, 0, 0, 0, 0, 0};
  jpeg.insert(jpeg.begin() + 2, exif, exif + sizeof exif);
  return jpeg;
}

inline File png_of(const Pixels& pixels, bool interlaced = false) {
  File out;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  const auto write = [](png_structp p, png_bytep data, size_t size) {
    auto& file = *static_cast<File*>(png_get_io_ptr(p));
    file.insert(file.end(), data, data + size);
  };
  png_set_write_fn(png, &out, write, nullptr);
  constexpr int kTypes[] = {0, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGBA};
  png_set_IHDR(png, info, pixels.width, pixels.height, 8, kTypes[pixels.channels],
               interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_BASE, PNG_FILTER_TYPE_BASE);
  png_write_info(png, info);
  const int passes = png_set_interlace_handling(png);
  for (int pass = 0; pass < passes; ++pass) {
    for (int y = 0; y < pixels.height; ++y) png_write_row(png, pixels.view().row(y));
  }
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return out;
}

// Reports whether a view equals the part of `whole` that begins at (top, left).
inline bool same(const View& got, const View& whole, int top = 0, int left = 0) {
  for (int y = 0; y < got.height; ++y) {
    for (int i = 0; i < got.width * got.channels; ++i) {
      if (got.row(y)[i] != whole.row(top + y)[left * got.channels + i]) return false;
    }
  }
  return true;
}

// code_of runs f. It returns the code of the Error that f throws, or 0 if f throws none.
template <class F>
int32_t code_of(F&& f) {
  try {
    f();
    return 0;
  } catch (const Error& e) {
    return e.code();
  }
}

}  // namespace decode
