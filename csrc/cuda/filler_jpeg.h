// A JPEG file of any size whose content does not matter.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace ct {

// Returns a sequential JPEG of three components with `width` x `height` pixels, each 1 to 65535.
// The samples of chroma are smaller by `across` and `down`, 1 or 2. A block of 8x8 samples takes 16
// bytes, about as many as in a photograph.
inline std::vector<uint8_t> filler_jpeg(int width, int height, int across, int down) {
  std::vector<uint8_t> file;
  const auto put = [&](std::initializer_list<int> bytes) {
    for (const int b : bytes) file.push_back(static_cast<uint8_t>(b));
  };
  put({0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0});
  file.insert(file.end(), 64, 8);
  put({0xFF, 0xC0, 0, 17, 8, height >> 8, height & 255, width >> 8, width & 255, 3, 1, across << 4 | down, 0, 2, 0x11, 0, 3, 0x11, 0});
  // The tables are the beginnings of the example tables in the JPEG standard. A block is 00, for a
  // first sample that equals that of the block before, and then 21 times 111000, for two samples
  // that are 0 and a third that is -1.
  put({0xFF, 0xC4, 0, 31, 0x00, 0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  put({0xFF, 0xC4, 0, 28, 0x10, 0, 2, 1, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 0x00, 4, 0x11, 5, 0x12, 0x21});
  put({0xFF, 0xDA, 0, 12, 3, 1, 0, 2, 0, 3, 0, 0, 63, 0});
  std::array<uint8_t, 16> block{};
  for (int bit = 2; bit < 128; ++bit) {
    if ((bit - 2) % 6 < 3) block[bit / 8] |= 0x80 >> bit % 8;
  }
  const int columns = (width + 8 * across - 1) / (8 * across), rows = (height + 8 * down - 1) / (8 * down);
  for (int i = columns * rows * (across * down + 2); i > 0; --i) file.insert(file.end(), block.begin(), block.end());
  put({0xFF, 0xD9});
  return file;
}

}  // namespace ct
