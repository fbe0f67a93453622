#include "decode/memory.h"

#include <algorithm>

namespace decode {

Memory::Share Memory::take(size_t bytes) {
  std::unique_lock lock(mutex_);
  const uint64_t turn = asked_++;
  change_.wait(lock, [&] {
    return turn == served_ && (taken_ == 0 || (taken_ <= limit_ && bytes <= limit_ - taken_));
  });
  ++served_;
  taken_ += bytes;
  peak_ = std::max(peak_, taken_);
  change_.notify_all();  // there may be enough left for the next waiter too
  return Share(this, bytes);
}

void Memory::give(size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  taken_ -= bytes;
  change_.notify_all();
}

int Memory::waiting() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(asked_ - served_);
}

size_t Memory::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

}  // namespace decode
