// The memory that the threads of a pool may take for large images.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace decode {

// Memory is a number of bytes that threads share. It hands out no memory, only the right to take
// it.
class Memory {
 public:
  explicit Memory(size_t limit) : limit_(limit) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Share gives its bytes back when it ends.
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

  // take waits until that many bytes are free, and until all earlier callers are served. A large
  // share thus comes to its turn, however many small ones there are. More than the limit is given
  // when no other share exists. A thread that has a share must not ask for another.
  Share take(size_t bytes);

  int waiting() const;  // threads in take
  size_t peak() const;  // the most that was taken at a time

 private:
  void give(size_t bytes) noexcept;

  const size_t limit_;
  mutable std::mutex mutex_;
  std::condition_variable change_;
  size_t taken_ = 0, peak_ = 0;      // above the limit only as one share
  uint64_t asked_ = 0, served_ = 0;  // takes
};

}  // namespace decode
