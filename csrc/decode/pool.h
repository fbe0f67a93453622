// A pool of threads that decode, with or without a device that decodes beside them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "decode/memory.h"
#include "include/cgotorch_decode.h"

namespace decode {

class Transform;

// Note [Lanes]
// A pool with a device has one more thread for each lane of the device. These threads take images
// from the end of a batch, while the other threads take images from its beginning. So the speeds
// of both share the work. The result is the same to the bit, whoever decodes an image.
//
// A lane makes its part of the device ready before it takes images. That may take seconds, in which
// the other threads decode. Then it takes images and prepares them: it reads their headers and
// checks their codes, because the device reports no error for damaged codes. It leaves to the other
// threads what the device cannot decode. The device then decodes all frames of one sampling in one
// call. Images at which the device fails go to the other threads too.
//
// A round of a lane has at most a quarter of the images that nobody has taken. With larger rounds
// the other threads would wait for the last round of a batch. The quarter is a choice that was not
// measured. A lane rests for 20 ms to 2 s after a round in which the device decoded nothing, so
// that a device that always fails costs little.
class Pool {
 public:
  explicit Pool(const ctd_options& checked);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Decodes a batch, and returns when all its images are done. Each image gets its own result, so
  // the function does not throw for a bad image.
  void decode(const ctd_image* images, size_t count, uint8_t* dst, ctd_result* results);

  // Returns the nanoseconds that all threads without a lane have spent on images that are done.
  int64_t busy() const { return busy_.load(std::memory_order_relaxed); }
  int workers() const { return workers_; }
  int at_a_time() const;  // the most images that all threads together work on at a time
  size_t bytes_per_image() const;

  // max_memory returns an upper bound of the memory that decoding takes, in bytes.
  size_t max_memory() const;

 private:
  struct Batch;
  struct Image;
  class Lane;
  void start(int workers);
  void stop();
  void work();
  void work_with_device(int lane);
  void run(Transform& transform, const Image& image);
  void give_back(Batch& batch, const std::vector<Image>& images);
  void exhausted(Batch& batch);
  void release(Batch& batch);

  const ctd_options options_;
  const std::optional<ctd_device> device_;
  Memory memory_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Batch*> queue_;  // batches that have images which no thread has taken
  std::deque<Image> back_;    // images that the device cannot decode
  std::atomic<bool> has_back_{false};
  bool closing_ = false;
  std::atomic<int64_t> busy_{0};
  int workers_ = 0;                   // threads without a lane
  std::vector<std::thread> threads_;  // the threads with a lane are the last ones
};

}  // namespace decode
