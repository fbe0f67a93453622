// Owners of pixels, and views of pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "decode/pages.h"

namespace decode {

// Box is a rectangle in pixels.
struct Box {
  int top = 0, left = 0, height = 0, width = 0;
};

// Returns where `box` lies after the image has been shrunk to 1/by of its size. The result holds
// every pixel that shows a part of `box`.
inline Box shrunk(const Box& box, int by) {
  const int top = box.top / by, left = box.left / by;
  return {top, left, (box.top + box.height + by - 1) / by - top, (box.left + box.width + by - 1) / by - left};
}

// View is a view of uint8 pixels that something else owns. Each row has width x channels bytes.
// Rows begin `stride` bytes apart.
struct View {
  const uint8_t* data = nullptr;
  int height = 0, width = 0, channels = 0;
  size_t stride = 0;

  const uint8_t* row(int y) const { return data + static_cast<size_t>(y) * stride; }
  View part(const Box& box) const {
    return {row(box.top) + static_cast<size_t>(box.left) * channels, box.height, box.width, channels, stride};
  }
};

// Buffer owns bytes, which are used again for the next image. When it grows, its content is lost.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { free(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint8_t* bytes(size_t size) {
    if (size > size_) {
      free();
      bytes_ = Pages<uint8_t>().allocate(size);
      size_ = size;
    }
    return bytes_;
  }
  uint8_t* zeros(size_t size) {
    const bool grows = size > size_;
    bytes(size);
    if (!grows || size < kLarge) std::memset(bytes_, 0, size);
    return bytes_;
  }
  size_t size() const { return size_; }
  void free() {
    if (bytes_) Pages<uint8_t>().deallocate(bytes_, size_);
    bytes_ = nullptr;
    size_ = 0;
  }

 private:
  uint8_t* bytes_ = nullptr;
  size_t size_ = 0;
};

}  // namespace decode
