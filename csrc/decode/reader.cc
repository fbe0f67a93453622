#include "decode/reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "decode/jpeg.h"
#include "decode/png.h"
#include "decode/status.h"

namespace decode {
namespace {

// Returns the first bytes of a file that is no image, as text for a message. The user may
// recognise the kind of the file by them.
std::string beginning(Bytes file) {
  constexpr size_t kMost = 16;
  std::string out;
  for (const uint8_t byte : file.first(std::min(file.size(), kMost))) {
    if (byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\') {
      out += static_cast<char>(byte);
    } else {
      constexpr char kDigits[] = "0123456789abcdef";
      out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

std::string mega(double pixels) {
  char text[40];
  std::snprintf(text, sizeof text, "%.4g Mpx", pixels / 1e6);
  return text;
}

}  // namespace

std::unique_ptr<Reader> open(Bytes file) {
  if (file.empty()) throw Error(CTD_NOT_AN_IMAGE, "zero bytes");
  if (file.size() >= 2 && std::memcmp(file.data(), "\xff\xd8", 2) == 0) return std::make_unique<Jpeg>(file);
  if (file.size() >= 4 && std::memcmp(file.data(), "\x89PNG", 4) == 0) return std::make_unique<Png>(file);
  if (std::all_of(file.begin(), file.end(), [](uint8_t byte) { return byte == 0; })) {
    throw Error(CTD_NOT_AN_IMAGE, "not an image (" + std::to_string(file.size()) + " bytes, all 0)");
  }
  throw Error(CTD_NOT_AN_IMAGE, "not an image (starts with \"" + beginning(file) + "\")");
}

void check_size(int64_t width, int64_t height, int64_t max_pixels) {
  const std::string size = std::to_string(width) + "x" + std::to_string(height);
  if (std::max(width, height) > kLongestImageSide) {
    throw Error(CTD_TOO_LARGE, size + " has a side above the limit of " + std::to_string(kLongestImageSide) + " pixels");
  }
  if (width * height > max_pixels) {
    throw Error(CTD_TOO_LARGE, size + " is " + mega(static_cast<double>(width) * static_cast<double>(height)) +
                                   ", above the limit of " + mega(static_cast<double>(max_pixels)) + ": raise MaxPixels");
  }
}

}  // namespace decode
