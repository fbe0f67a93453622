// A pool of threads that decode.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "decode/memory.h"
#include "include/cgotorch_decode.h"

namespace decode {

class Pool {
 public:
  explicit Pool(const ctd_options& checked);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Decodes a batch, and returns when all its images are done. Each image gets its own result, so
  // the function does not throw for a bad image.
  void decode(const ctd_image* images, size_t count, uint8_t* dst, ctd_result* results);

  // Returns the nanoseconds that all threads together have spent on images that are done.
  int64_t busy() const { return busy_.load(std::memory_order_relaxed); }
  int workers() const { return static_cast<int>(threads_.size()); }
  size_t bytes_per_image() const;

  // max_memory returns an upper bound of the memory that decoding takes, in bytes.
  size_t max_memory() const;

 private:
  struct Batch;
  void start(int workers);
  void stop();
  void work();

  const ctd_options options_;
  Memory memory_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Batch*> queue_;  // batches that have images which no thread has taken
  bool closing_ = false;
  std::atomic<int64_t> busy_{0};
  std::vector<std::thread> threads_;
};

}  // namespace decode
