// Pixels: who owns them, and who looks at them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace decode {

// Box is a rectangle in pixels.
struct Box {
  int top = 0, left = 0, height = 0, width = 0;
};

// shrunk returns the pixels that hold any of box when the image has 1/by of its size.
inline Box shrunk(const Box& box, int by) {
  const int top = box.top / by, left = box.left / by;
  return {top, left, (box.top + box.height + by - 1) / by - top, (box.left + box.width + by - 1) / by - left};
}

// View looks at uint8 pixels that someone else owns: rows of width x channels bytes, stride bytes apart.
struct View {
  const uint8_t* data = nullptr;
  int height = 0, width = 0, channels = 0;
  size_t stride = 0;

  const uint8_t* row(int y) const { return data + static_cast<size_t>(y) * stride; }
  View part(const Box& box) const {
    return {row(box.top) + static_cast<size_t>(box.left) * channels, box.height, box.width, channels, stride};
  }
};

// Buffer owns bytes and is used again for the next image. Growing it loses what it held.
class Buffer {
 public:
  uint8_t* bytes(size_t size) {
    if (size > size_) {
      bytes_.reset();
      size_ = 0;
      bytes_ = std::make_unique_for_overwrite<uint8_t[]>(size);
      size_ = size;
    }
    return bytes_.get();
  }
  // trim gives the memory back when it is more than `most` bytes: one huge image must not stay resident for ever.
  void trim(size_t most) {
    if (size_ <= most) return;
    bytes_.reset();
    size_ = 0;
  }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  size_t size_ = 0;
};

}  // namespace decode
