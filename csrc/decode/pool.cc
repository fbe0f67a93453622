#include "decode/pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>

#include "decode/status.h"
#include "decode/transform.h"

namespace decode {
namespace {

// The memory of a thread that is not counted: its stack, its tables, and the small blocks of
// libjpeg and libpng. The room that malloc adds to each block is part of it.
constexpr size_t kUncounted = 2 << 20;

// The most bytes of the files that a lane prepares at a time, and of what a frame may have in
// addition to its file.
constexpr size_t kMostFiles = 64 << 20, kMostHeader = 4096;

int cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

// Blocks all signals, while the object lives. A thread inherits the signal mask of the thread
// that starts it. Go handles signals on its own threads. If a signal came to a thread of the
// pool, Go would find no goroutine there.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

// Batch lives on the stack of the thread that waits for it. It is done when all its images are
// taken and no thread works on it any more.
struct Pool::Batch {
  const ctd_image* images;
  size_t count;
  uint8_t* dst;
  ctd_result* results;
  std::atomic<uint64_t> open{0};  // the images that nobody has taken: the first one, and in the high half the end
  int holders = 0;                // guarded by the pool's mutex
  bool taken = false;
  std::condition_variable done{};

  // Returns how many images nobody has taken.
  size_t left() const {
    const uint64_t now = open.load(std::memory_order_relaxed);
    return (now >> 32) - (now & UINT32_MAX);
  }

  // Takes the first image, or the last one, that nobody has taken. Returns whether there is one.
  bool take(bool first, size_t& image) {
    uint64_t now = open.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t begin = now & UINT32_MAX, end = now >> 32;
      if (begin == end) return false;
      image = first ? begin : end - 1;
      if (open.compare_exchange_weak(now, first ? now + 1 : now - (uint64_t{1} << 32), std::memory_order_relaxed)) return true;
    }
  }
};

// An image of a batch.
struct Pool::Image {
  Batch* batch;
  size_t number;

  const ctd_image& file() const { return batch->images[number]; }
  ctd_result& result() const { return batch->results[number]; }
};

Pool::Pool(const ctd_options& checked)
    : options_(checked), device_(checked.device ? std::optional(*checked.device) : std::nullopt), memory_(checked.memory) {
  if (device_) device_->retain(device_->self);
  try {
    start(options_.workers ? options_.workers : cores());
  } catch (const std::exception& e) {
    const size_t started = threads_.size();
    stop();
    throw Error(CTD_OUT_OF_MEMORY, "no thread after the first " + std::to_string(started) + ": " + e.what());
  }
}

Pool::~Pool() { stop(); }

void Pool::start(int workers) {
  const SignalsBlocked blocked;
  const auto add = [this](const char* name, int i, auto work) {
    threads_.emplace_back(work);
    pthread_setname_np(threads_.back().native_handle(), (name + std::to_string(i)).c_str());
  };
  const int lanes = device_ ? device_->lanes : 0;
  workers_ = workers;
  threads_.reserve(workers + lanes);
  for (int i = 0; i < workers; ++i) add("decode-", i, [this] { work(); });
  for (int i = 0; i < lanes; ++i) add("decode-lane-", i, [this, i] { work_with_device(i); });
}

void Pool::stop() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  if (device_) device_->release(device_->self);
}

size_t Pool::bytes_per_image() const {
  return static_cast<size_t>(options_.height) * options_.width * options_.channels;
}

int Pool::at_a_time() const { return workers_ + (device_ ? device_->lanes * device_->most_frames : 0); }

// Large images together take at most `limit` bytes, with one exception. An image that needs more
// than `limit` is decoded while no other large image has memory.
size_t Pool::max_memory() const {
  const size_t image = Transform::most(options_), workers = workers_, lanes = threads_.size() - workers;
  const size_t limit = options_.memory;
  return workers * (kOwn + kUncounted) + lanes * (kOwn + kUncounted + kMostFiles) + std::min(std::max(limit, image), workers * image);
}

void Pool::decode(const ctd_image* images, size_t count, uint8_t* dst, ctd_result* results) {
  if (count == 0) return;
  Batch batch{images, count, dst, results};
  batch.open = uint64_t{count} << 32;
  std::unique_lock lock(mutex_);
  queue_.push_back(&batch);
  if (count == 1 && !device_) {
    wake_.notify_one();
  } else {
    wake_.notify_all();
  }
  batch.done.wait(lock, [&] { return batch.taken && batch.holders == 0; });
}

// Notes that nobody can take an image of the batch any more. The caller holds the mutex.
void Pool::exhausted(Batch& batch) {
  if (batch.taken) return;
  batch.taken = true;
  std::erase(queue_, &batch);
}

// Gives up the right to the batch that `holders` counts. The caller holds the mutex.
void Pool::release(Batch& batch) {
  if (--batch.holders == 0) batch.done.notify_all();
}

// Decodes an image on this thread.
void Pool::run(Transform& transform, const Image& image) {
  const auto begin = std::chrono::steady_clock::now();
  const size_t each = bytes_per_image();
  ctd_result& result = image.result();
  uint8_t* const to = image.batch->dst + image.number * each;
  result = {};
  result.error = guarded([&] { transform.run(image.file(), to, result); });
  if (result.error) std::memset(to, 0, each);
  busy_.fetch_add(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count(), std::memory_order_relaxed);
}

void Pool::work() {
  Transform transform(options_, memory_);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return closing_ || !queue_.empty() || !back_.empty(); });
    if (!back_.empty()) {
      const Image image = back_.front();
      back_.pop_front();
      has_back_.store(!back_.empty(), std::memory_order_relaxed);
      lock.unlock();
      run(transform, image);
      lock.lock();
      release(*image.batch);
      continue;
    }
    if (queue_.empty()) return;
    Batch& batch = *queue_.front();
    ++batch.holders;
    lock.unlock();
    // Images that come back belong to earlier batches, so they are next.
    for (Image image{&batch, 0}; !has_back_.load(std::memory_order_relaxed) && batch.take(/*first=*/true, image.number);) run(transform, image);
    lock.lock();
    if (batch.left() == 0) exhausted(batch);
    release(batch);
  }
}

// Lane is what a thread with a lane of the device has.
class Pool::Lane {
 public:
  Lane(const Pool& pool, int number, Memory& memory) : pool_(pool), device_(*pool.device_), number_(number), transform_(pool.options_, memory) {
    for (Group& group : groups_) {
      group.frames.reserve(device_.most_frames);
      group.images.reserve(device_.most_frames);
      group.offsets.reserve(device_.most_frames);
    }
    bytes_.reserve(kMostFiles);  // so that it never grows; only pages that are written take memory
    device_.prepare(device_.self, number_);
  }

  // Takes images of the batch until the device has enough for one round, and prepares them. Stops
  // after as many images that the device cannot decode. A round has at most a quarter of the images
  // that nobody has taken, so that the other threads do not wait for the last round of a batch.
  void take(Batch& batch) {
    Image image{&batch, 0};
    size_t frames = 0, pixels = 0;
    bytes_.clear();
    back_.clear();
    const auto most = std::clamp<size_t>(batch.left() / 4, std::min(kLeast, device_.most_frames), device_.most_frames);
    while (frames < most && back_.size() < most && pixels < static_cast<size_t>(device_.most_pixels) / 2 &&
           bytes_.size() < kMostFiles / 2 && batch.take(/*first=*/false, image.number)) {
      ctd_frame frame{};
      const size_t offset = bytes_.size();
      int32_t sampling = 0;
      image.result() = {};
      // A fault of the image is found again by the thread that decodes it.
      if (image.file().size <= kMostFiles / 2 - kMostHeader) {
        ctd_status_free(guarded([&] { sampling = transform_.frame(image.file(), device_.most_pixels / 2, bytes_, frame, image.result()); }));
      }
      if (sampling == 0) {
        bytes_.resize(offset);
        back_.push_back(image);
        continue;
      }
      frame.to = batch.dst + image.number * pool_.bytes_per_image();
      Group& group = groups_[sampling - 1];
      group.frames.push_back(frame);
      group.images.push_back(image);
      group.offsets.push_back(offset);
      ++frames;
      pixels += static_cast<size_t>(frame.width) * frame.height;
    }
  }

  // Lets the device decode the images that are prepared. Afterwards `back` has those at which it
  // has failed.
  void decode() {
    bool decoded = false;
    in_vain_ = !back_.empty();
    back_.clear();
    for (int sampling = CTD_444; sampling <= CTD_420; ++sampling) {
      Group& group = groups_[sampling - 1];
      if (group.frames.empty()) continue;
      for (size_t i = 0; i < group.frames.size(); ++i) group.frames[i].data = bytes_.data() + group.offsets[i];
      device_.decode(device_.self, number_, sampling, pool_.options_.height, pool_.options_.width, group.frames.data(), group.frames.size());
      for (size_t i = 0; i < group.frames.size(); ++i) {
        if (group.frames[i].failed) {
          back_.push_back(group.images[i]);
        } else {
          group.images[i].result().on_device = 1;
          decoded = true;
        }
      }
      group.frames.clear();
      group.images.clear();
      group.offsets.clear();
    }
    in_vain_ = !decoded && (in_vain_ || !back_.empty());
  }

  // Returns the images that the device cannot decode.
  const std::vector<Image>& back() const { return back_; }
  // Reports whether the last round had images, and the device has decoded none of them.
  bool in_vain() const { return in_vain_; }

 private:
  // The frames of one sampling.
  struct Group {
    std::vector<ctd_frame> frames;
    std::vector<Image> images;
    std::vector<size_t> offsets;  // of the files in bytes_
  };

  static constexpr int32_t kLeast = 8;  // images of a round, if there are as many

  const Pool& pool_;
  const ctd_device& device_;
  const int number_;
  Transform transform_;
  FrameBytes bytes_;
  Group groups_[CTD_420];
  std::vector<Image> back_;
  bool in_vain_ = false;
};

// Gives images to the threads. The caller holds the mutex and counts as a holder of the batch.
void Pool::give_back(Batch& batch, const std::vector<Image>& images) {
  if (images.empty()) return;
  batch.holders += static_cast<int>(images.size());
  back_.insert(back_.end(), images.begin(), images.end());
  has_back_.store(true, std::memory_order_relaxed);
  wake_.notify_all();
}

void Pool::work_with_device(int number) {
  // A lane rests if the device has not decoded a single image of a round. Then most images are not
  // of its kind, or it fails. It rests longer each time, so that it takes less and less from the
  // other threads.
  constexpr std::chrono::milliseconds kShortest{20}, kLongest{2000};
  auto rest = kShortest;
  Lane lane(*this, number, memory_);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Batch& batch = *queue_.front();
    ++batch.holders;
    lock.unlock();
    lane.take(batch);
    lock.lock();
    give_back(batch, lane.back());
    lock.unlock();
    lane.decode();
    lock.lock();
    give_back(batch, lane.back());
    if (batch.left() == 0) exhausted(batch);
    release(batch);
    if (lane.in_vain()) {
      wake_.wait_for(lock, rest, [&] { return closing_; });
      rest = std::min(2 * rest, kLongest);
    } else {
      rest = kShortest;
    }
  }
}

}  // namespace decode
