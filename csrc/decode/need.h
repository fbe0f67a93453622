// The memory that an image takes.
#pragma once

#include <algorithm>
#include <cstddef>

namespace decode {

// Need is a number of bytes for each buffer that grows with the image.
struct Need {
  size_t pixels = 0;                         // as they were decoded
  // The memory of libjpeg and libpng and a JPEG's data, until the pixels are there.
  size_t codec = 0, scan = 0;
  // Copies of the pixels. between: of the two passes of the resize.
  size_t turned = 0, grey = 0, between = 0;
  size_t result = 0;                         // of the result, where it is grey at first
  size_t vectors = 0;                        // small beside all these

  size_t sum() const { return pixels + codec + scan + turned + grey + between + result + vectors; }

  // at_a_time returns the most of it at any time, when codec and scan are freed as soon as they may
  // be.
  size_t at_a_time() const { return pixels + std::max(codec + scan, turned + grey + between + result) + vectors; }

  // with returns the most that is held when the buffers of this need serve an image of another need.
  // Each buffer grows where it must.
  Need with(const Need& other) const {
    return {std::max(pixels, other.pixels), std::max(codec, other.codec),     std::max(scan, other.scan),
            std::max(turned, other.turned), std::max(grey, other.grey),       std::max(between, other.between),
            std::max(result, other.result), vectors + other.vectors};
  }
};

}  // namespace decode
