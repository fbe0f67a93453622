// Counts the memory that an image takes.
#pragma once

#include <algorithm>
#include <cstddef>

namespace decode {

// Need has, for each buffer that grows with the image, a number of bytes.
struct Need {
  size_t pixels = 0;                         // the decoded pixels
  // codec: the memory of libjpeg or libpng. scan: the data of a JPEG. Both are in use until the
  // pixels are decoded.
  size_t codec = 0, scan = 0;
  // turned, grey: copies of the pixels. between: the pixels between the two passes of the resize.
  size_t turned = 0, grey = 0, between = 0;
  size_t result = 0;                         // the result, if it is grey before it becomes RGB
  size_t vectors = 0;                        // small arrays

  size_t sum() const { return pixels + codec + scan + turned + grey + between + result + vectors; }

  // at_a_time returns the most memory at any one time. codec and scan are freed as soon as the
  // pixels are decoded.
  size_t at_a_time() const { return pixels + std::max(codec + scan, turned + grey + between + result) + vectors; }

  // Returns the memory that is held after an image of this need and an image of need `other` have
  // used the same buffers. A buffer that is too small for the second image grows.
  Need with(const Need& other) const {
    return {std::max(pixels, other.pixels), std::max(codec, other.codec),     std::max(scan, other.scan),
            std::max(turned, other.turned), std::max(grey, other.grey),       std::max(between, other.between),
            std::max(result, other.result), vectors + other.vectors};
  }
};

}  // namespace decode
