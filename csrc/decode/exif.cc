#include "decode/exif.h"

#include <cstring>
#include <string_view>

namespace decode {
namespace {

constexpr int kUpright = 1;

bool begins(Bytes data, std::string_view with) {
  return data.size() >= with.size() && std::memcmp(data.data(), with.data(), with.size()) == 0;
}

uint32_t big(Bytes data, size_t at, int bytes) {
  uint32_t v = 0;
  for (int i = 0; i < bytes; ++i) v = v << 8 | data[at + i];
  return v;
}

uint32_t little(Bytes data, size_t at, int bytes) {
  uint32_t v = 0;
  for (int i = bytes; i-- > 0;) v = v << 8 | data[at + i];
  return v;
}

// In a JPEG the EXIF block begins with six more bytes. Some programs put these bytes also into
// the EXIF blocks of formats other than JPEG.
int orientation_of_block(Bytes block) {
  return orientation_of_tiff(begins(block, std::string_view("Exif\0\0", 6)) ? block.subspan(6) : block);
}

}  // namespace

int orientation_of_tiff(Bytes tiff) {
  constexpr uint32_t kOrientation = 0x0112, kShort = 3, kLong = 4;
  constexpr size_t kEntry = 12;
  if (tiff.size() < 8) return kUpright;
  const bool is_little = begins(tiff, "II");
  if (!is_little && !begins(tiff, "MM")) return kUpright;
  const auto number = [&](size_t at, int bytes) { return is_little ? little(tiff, at, bytes) : big(tiff, at, bytes); };
  if (number(2, 2) != 42) return kUpright;
  const size_t directory = number(4, 4);
  if (directory > tiff.size() || tiff.size() - directory < 2) return kUpright;
  const size_t entries = number(directory, 2);
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = directory + 2 + i * kEntry;
    if (at + kEntry > tiff.size()) return kUpright;
    if (number(at, 2) != kOrientation) continue;
    const uint32_t type = number(at + 2, 2);
    if (number(at + 4, 4) != 1 || (type != kShort && type != kLong)) return kUpright;
    const uint32_t value = number(at + 8, type == kShort ? 2 : 4);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : kUpright;
  }
  return kUpright;
}

int orientation_of_jpeg(Bytes file) {
  constexpr uint8_t kApp1 = 0xE1, kStartOfScan = 0xDA, kEndOfImage = 0xD9, kTemporary = 0x01;
  size_t at = 2;
  while (at + 4 <= file.size()) {
    if (file[at] != 0xFF) return kUpright;
    const uint8_t marker = file[at + 1];
    if (marker == 0xFF) {  // a fill byte
      ++at;
      continue;
    }
    if (marker == kStartOfScan || marker == kEndOfImage) return kUpright;
    if (marker == kTemporary || (marker >= 0xD0 && marker <= 0xD8)) {  // markers without a body
      at += 2;
      continue;
    }
    const size_t length = big(file, at + 2, 2);
    if (length < 2 || length > file.size() - at - 2) return kUpright;
    const Bytes body = file.subspan(at + 4, length - 2);
    if (marker == kApp1 && begins(body, std::string_view("Exif\0", 5))) return orientation_of_block(body);
    at += 2 + length;
  }
  return kUpright;
}

int orientation_of_png(Bytes file) {
  size_t at = 8;
  while (at + 12 <= file.size()) {
    const size_t length = big(file, at, 4);
    if (length > file.size() - at - 12) return kUpright;
    if (begins(file.subspan(at + 4), "eXIf")) return orientation_of_block(file.subspan(at + 8, length));
    at += 12 + length;
  }
  return kUpright;
}

int orientation_of_webp(Bytes file) {
  size_t at = 12;
  while (at + 8 <= file.size()) {
    const size_t length = little(file, at + 4, 4);
    if (length > file.size() - at - 8) return kUpright;
    if (begins(file.subspan(at), "EXIF")) return orientation_of_block(file.subspan(at + 8, length));
    at += 8 + length + length % 2;
  }
  return kUpright;
}

int orientation_of(Bytes file) {
  if (begins(file, "\xff\xd8")) return orientation_of_jpeg(file);
  if (begins(file, "\x89PNG")) return orientation_of_png(file);
  if (begins(file, "II*") || begins(file, "MM")) return orientation_of_tiff(file);
  if (begins(file, "RIFF")) return orientation_of_webp(file);
  return kUpright;
}

}  // namespace decode
