// A pool of threads that decode, with or without a device that decodes beside them.
#pragma once

#include <atomic>
#include <chrono>
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
// A pool with a device has one more thread for each lane of the device. The pool's other threads
// take the images of a batch in order. A thread leaves an image to the device if the device has
// room, and decodes it if not. So the device gets as much as it can decode, and the threads do the
// rest. The result is the same to the bit, whoever decodes an image.
//
// The thread prepares an image that it leaves to the device: it reads the header and checks the
// codes, because the device reports no error for damaged codes. A lane takes prepared images of one
// sampling, and the device decodes them in one call. Images at which the device fails go back to
// the threads.
//
// The device has room for as many images as it decodes within some 5 ms. The pool learns this
// number from the time that images take. With more images the threads would wait at the end of a
// batch: beside a training step an H200 decodes 5,000 images a second, and without one 20,000.
//
// A lane makes its part of the device ready before it takes images. That may take seconds, in which
// the threads decode. A lane rests for 20 ms to 2 s after a call in which the device decoded
// nothing. When all lanes rest, the images that wait go back to the threads.
//
// A batch with no more images than there are threads is for the threads, which are then faster.
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
  struct Prepared;
  void start(int workers);
  void stop();
  void work();
  void work_with_device(int lane);
  void run(Transform& transform, const Image& image);
  bool leave_to_device(Transform& transform, const Image& image);
  void count_waiting(ptrdiff_t images, ptrdiff_t bytes);
  void update_room();
  void adapt(std::chrono::steady_clock::duration took);
  std::vector<Prepared> next_call(int32_t& sampling);
  void give_back(const Image& image);
  void give_all_back();
  void exhausted(Batch& batch);
  void release(Batch& batch);

  const ctd_options options_;
  const std::optional<ctd_device> device_;
  Memory memory_;
  std::mutex mutex_;
  std::condition_variable wake_, wake_lanes_, end_rest_;  // for threads, for idle lanes, for lanes that rest
  std::deque<Batch*> queue_;  // batches that have images which no thread has taken
  std::deque<Image> back_;    // images at which the device has failed
  std::atomic<bool> has_back_{false};
  std::deque<Prepared> waiting_[CTD_420];  // images that wait for the device, by sampling
  size_t waiting_count_ = 0, waiting_bytes_ = 0;
  size_t in_calls_ = 0, room_ = 32;  // images in calls of the device, and the most that it has room for
  int awake_ = 0, idle_ = 0;  // lanes that are ready and do not rest, and those of them without a call
  std::atomic<bool> has_room_{false};  // whether more images may wait for the device
  bool closing_ = false;
  std::atomic<int64_t> busy_{0};
  int workers_ = 0;                   // threads without a lane
  std::vector<std::thread> threads_;  // the threads with a lane are the last ones
};

}  // namespace decode
