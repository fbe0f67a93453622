#include "decode/png.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include <png.h>
#include <zlib.h>

#include "decode/status.h"

namespace decode {

// libpng leaves its error handler by longjmp, so Note [Leaving libjpeg] holds here too.
struct Png::Codec {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Bytes rest;               // the part of the file that is not read yet
  uint8_t* rows = nullptr;  // a block for libpng's rows; its free part is from next to end
  uint8_t* next = nullptr;
  uint8_t* end = nullptr;
  std::jmp_buf escape;
  int32_t code = 0;
  char reason[200] = "";
};

namespace {

using Codec = Png::Codec;

constexpr size_t kSignature = 8, kFrame = 12;  // kFrame: the bytes of a chunk's length, name and checksum
constexpr int64_t kMostPixel = 8;              // the bytes of a pixel of 16-bit RGBA

[[noreturn]] void leave(Codec& codec, int32_t code, const char* reason) {
  codec.code = code;
  std::snprintf(codec.reason, sizeof codec.reason, "%s", reason);
  std::longjmp(codec.escape, 1);
}

[[noreturn]] void on_error(png_structp png, png_const_charp text) {
  char reason[200];
  std::snprintf(reason, sizeof reason, "corrupt PNG: %s", text);
  leave(*static_cast<Codec*>(png_get_error_ptr(png)), CTD_CORRUPT, reason);
}

void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep to, size_t size) {
  Codec& codec = *static_cast<Codec*>(png_get_io_ptr(png));
  if (size > codec.rest.size()) leave(codec, CTD_TRUNCATED, "truncated PNG");
  std::memcpy(to, codec.rest.data(), size);
  codec.rest = codec.rest.subspan(size);
}

// libpng allocates two rows. The rows are counted before they are allocated: see Note [libjpeg's
// memory].
png_voidp on_allocate(png_structp png, png_alloc_size_t size) {
  Codec& codec = *static_cast<Codec*>(png_get_mem_ptr(png));
  if (size < kLarge || size > static_cast<size_t>(codec.end - codec.next)) return std::malloc(size);
  return std::exchange(codec.next, codec.next + (size + 15) / 16 * 16);
}

void on_free(png_structp png, png_voidp memory) {
  const Codec& codec = *static_cast<Codec*>(png_get_mem_ptr(png));
  const auto at = static_cast<uint8_t*>(memory);
  if (at < codec.rows || at >= codec.end) std::free(memory);
}

// Returns the bytes of a row with its filter byte and with libpng's padding.
size_t row_of(int64_t width, int64_t pixel) { return (width + 8) * pixel + 128; }

template <class Step>
void attempt(Codec& codec, Step step) {
  if (setjmp(codec.escape) == 0) {
    step(codec.png, codec.info);
    return;
  }
  throw Error(codec.code, codec.reason);
}

uint32_t big32(const uint8_t* p) { return uint32_t{p[0]} << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

// libpng looks at a checksum only when it needs the next chunk. To reach the chunk after the last
// pixel, it would inflate all remaining data. So check_sums checks the critical chunks, whose
// names begin with a capital letter. libpng then need not check them.
void check_sums(Bytes file) {
  for (size_t at = kSignature; at + kFrame <= file.size();) {
    const size_t length = big32(&file[at]);
    if (length > file.size() - at - kFrame) return;  // the file is cut off; libpng finds out whether pixels are missing
    const uint8_t* name = &file[at + 4];
    const bool critical = (name[0] & 0x20) == 0;
    if (critical && crc32(0, name, static_cast<uInt>(length + 4)) != big32(name + 4 + length)) {
      const bool printable = std::strspn(std::string(name, name + 4).c_str(), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") == 4;
      throw Error(CTD_CORRUPT, "corrupt PNG: wrong checksum" + (printable ? " in " + std::string(name, name + 4) : ""));
    }
    at += kFrame + length;
  }
}

// Chunks such as text and colour profiles are skipped. They change no pixel here, and may inflate
// to any size.
void skip_metadata(png_structp png) {
  constexpr png_byte kNames[] =
      "bKGD\0cHRM\0eXIf\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB\0tEXt\0tIME\0zTXt";
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, kNames, sizeof kNames / 5);
}

ctd_info info_of(png_structp png, png_infop info) {
  ctd_info out{};
  out.format = CTD_PNG;
  out.width = static_cast<int32_t>(png_get_image_width(png, info));
  out.height = static_cast<int32_t>(png_get_image_height(png, info));
  out.channels = png_get_channels(png, info);
  out.bits = png_get_bit_depth(png, info);
  const int type = png_get_color_type(png, info);
  out.color_space = type == PNG_COLOR_TYPE_PALETTE ? CTD_PALETTE : type & PNG_COLOR_MASK_COLOR ? CTD_RGB : CTD_GREY;
  out.alpha = (type & PNG_COLOR_MASK_ALPHA) != 0 || png_get_valid(png, info, PNG_INFO_tRNS) != 0;
  out.progressive = png_get_interlace_type(png, info) != PNG_INTERLACE_NONE;
  return out;
}

}  // namespace

Png::Png(Bytes file) : codec_(std::make_unique<Codec>()) {
  Codec& codec = *codec_;
  codec.rest = file;
  check_sums(file);
  try {
    attempt(codec, [&codec](png_structp, png_infop) {
      codec.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &codec, on_error, on_warning);
      codec.info = codec.png ? png_create_info_struct(codec.png) : nullptr;
      if (!codec.info) leave(codec, CTD_OUT_OF_MEMORY, "out of host memory");
    });
    attempt(codec, [&codec](png_structp png, png_infop info) {
      png_set_read_fn(png, &codec, on_read);
      png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
      png_set_crc_action(png, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);
      skip_metadata(png);
      png_read_info(png, info);
    });
    info_ = info_of(codec.png, codec.info);
    info_.orientation = orientation_of_png(file);
  } catch (...) {
    png_destroy_read_struct(&codec.png, &codec.info, nullptr);
    throw;
  }
}

Png::~Png() { png_destroy_read_struct(&codec_->png, &codec_->info, nullptr); }

Need Png::need(const Box& /*box*/, int /*shrink*/) const {
  Need need;
  need.pixels = static_cast<size_t>(info_.width) * info_.height * (info_.color_space == CTD_GREY ? 1 : 3);
  // While libpng works, a palette or a transparent colour becomes four channels of 8 bits.
  need.codec = 2 * row_of(info_.width, std::max(info_.channels * info_.bits / 8, 4));
  return need;
}

Need Png::most(int64_t pixels) {
  const int64_t area = std::min(pixels, kLongestImageSide * kLongestImageSide);
  Need need;
  need.pixels = 3 * area;
  need.codec = 2 * row_of(std::min(area, kLongestImageSide), kMostPixel);
  return need;
}

View Png::read(const Box& box, int shrink, Scratch& scratch) {
  Codec& codec = *codec_;
  const size_t rows = need(box, shrink).codec;
  codec.rows = codec.next = scratch.codec.bytes(rows);
  codec.end = codec.rows + rows;
  const int channels = info_.color_space == CTD_GREY ? 1 : 3;
  const size_t stride = static_cast<size_t>(info_.width) * channels;
  int passes = 0;
  attempt(codec, [&](png_structp png, png_infop info) {
    png_set_mem_fn(png, &codec, on_allocate, on_free);
    png_set_strip_16(png);  // keeps the upper 8 bits
    if (info_.color_space == CTD_PALETTE) png_set_palette_to_rgb(png);
    if (info_.color_space == CTD_GREY && info_.bits < 8) png_set_expand_gray_1_2_4_to_8(png);
    png_set_strip_alpha(png);
    passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
  });
  if (png_get_rowbytes(codec.png, codec.info) != stride) {
    throw Error(CTD_INTERNAL, "PNG rows of " + std::to_string(png_get_rowbytes(codec.png, codec.info)) + " bytes");
  }
  uint8_t* const pixels = scratch.pixels.bytes(stride * info_.height);
  attempt(codec, [&](png_structp png, png_infop) {
    for (int pass = 0; pass < passes; ++pass) {
      for (int y = 0; y < info_.height; ++y) png_read_row(png, pixels + y * stride, nullptr);
    }
  });
  return View{pixels, info_.height, info_.width, channels, stride}.part(box);
}

}  // namespace decode
