// Counts the memory that the threads of a pool take for large images.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace decode {

// Memory is a number of bytes that threads share. It does not allocate memory: it gives only the
// right to do so.
class Memory {
 public:
  explicit Memory(size_t limit) : limit_(limit) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // A Share is the right to allocate a number of bytes. When it is destroyed, the Memory gets these
  // bytes back.
  class Share {
   public:
    Share() = default;
    Share(Share&& from) noexcept : of_(std::exchange(from.of_, nullptr)), bytes_(std::exchange(from.bytes_, 0)) {}
    Share& operator=(Share&& from) noexcept {
      std::swap(of_, from.of_);
      std::swap(bytes_, from.bytes_);
      return *this;
    }
    ~Share() {
      if (of_) of_->give(bytes_);
    }
    size_t bytes() const { return bytes_; }

   private:
    friend class Memory;
    Share(Memory* of, size_t bytes) : of_(of), bytes_(bytes) {}

    Memory* of_ = nullptr;
    size_t bytes_ = 0;
  };

  // Waits until `bytes` bytes are free and all earlier callers have got their shares. So a caller
  // that wants a large share gets it in its turn, even if many callers want small shares. A share
  // above the limit is given when no other share exists. A thread that has a share must not ask for
  // a second one.
  Share take(size_t bytes);

  int waiting() const;  // the number of threads that wait in the function `take`
  size_t peak() const;  // the most bytes that were taken at the same time

 private:
  void give(size_t bytes) noexcept;

  const size_t limit_;
  mutable std::mutex mutex_;
  std::condition_variable change_;
  size_t taken_ = 0, peak_ = 0;      // above the limit only if one share is above the limit
  uint64_t asked_ = 0, served_ = 0;  // how many calls of `take` have begun, and how many have got their share
};

}  // namespace decode
