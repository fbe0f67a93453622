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

// The most bytes of a file that is left to the device, and of the files that wait for it. A lane
// takes no more for one call.
constexpr size_t kMostFile = 8 << 20, kMostWaiting = 32 << 20;

constexpr size_t kLeast = 4;  // images of a call, if as many wait

// The time that an image may take with the device. A thread takes about 1 ms for a photograph.
constexpr std::chrono::milliseconds kSoon{5};

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
  std::atomic<size_t> next{0};  // the first image that nobody has taken
  // The threads at work on the batch, and its images that wait or are with the device. Guarded by
  // the pool's mutex.
  int holders = 0;
  bool taken = false;
  std::condition_variable done{};

  // Takes the first image that nobody has taken. Returns whether there is one.
  bool take(size_t& image) {
    image = next.fetch_add(1, std::memory_order_relaxed);
    return image < count;
  }
  bool all_taken() const { return next.load(std::memory_order_relaxed) >= count; }
};

// An image of a batch.
struct Pool::Image {
  Batch* batch;
  size_t number;

  const ctd_image& file() const { return batch->images[number]; }
  ctd_result& result() const { return batch->results[number]; }
};

// An image that is prepared for the device. It counts as a holder of its batch.
struct Pool::Prepared {
  std::chrono::steady_clock::time_point since;  // when the image began to wait
  Image image;
  ctd_frame frame;
  std::vector<uint8_t> head;  // of the frame

  size_t bytes() const { return frame.head_size + frame.size; }
  int64_t pixels() const { return int64_t{frame.width} * frame.height; }
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
  wake_lanes_.notify_all();
  end_rest_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  if (device_) device_->release(device_->self);
}

size_t Pool::bytes_per_image() const {
  return static_cast<size_t>(options_.height) * options_.width * options_.channels;
}

int Pool::at_a_time() const { return workers_ + (device_ ? 2 * device_->lanes * device_->most_frames : 0); }

// Large images together take at most `limit` bytes, with one exception. An image that needs more
// than `limit` is decoded while no other large image has memory.
size_t Pool::max_memory() const {
  const size_t image = Transform::most(options_), workers = workers_, lanes = threads_.size() - workers;
  const size_t limit = options_.memory;
  return workers * (kOwn + kUncounted) + lanes * kUncounted + std::min(std::max(limit, image), workers * image);
}

void Pool::decode(const ctd_image* images, size_t count, uint8_t* dst, ctd_result* results) {
  if (count == 0) return;
  Batch batch{images, count, dst, results};
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
    for (Image image{&batch, 0}; !has_back_.load(std::memory_order_relaxed) && batch.take(image.number);) {
      if (!leave_to_device(transform, image)) run(transform, image);
    }
    lock.lock();
    if (batch.all_taken()) exhausted(batch);
    release(batch);
  }
}

// Prepares the image for the device, if the device can decode it and has room for it. Returns
// whether the image now waits for the device.
bool Pool::leave_to_device(Transform& transform, const Image& image) {
  const ctd_image& file = image.file();
  if (!has_room_.load(std::memory_order_relaxed) || image.batch->count <= static_cast<size_t>(workers_) || file.size > kMostFile) return false;
  const auto begin = std::chrono::steady_clock::now();
  FrameFile written;
  ctd_frame frame{};
  int32_t sampling = 0;
  image.result() = {};
  // A fault of the image is found again when this thread decodes it.
  ctd_status_free(guarded([&] { sampling = transform.frame(file, device_->most_pixels, written, frame, image.result()); }));
  busy_.fetch_add(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count(), std::memory_order_relaxed);
  if (sampling == 0) return false;
  frame.to = image.batch->dst + image.number * bytes_per_image();
  frame.head_size = written.head.size();
  frame.data = written.rest.data();
  frame.size = written.rest.size();
  const size_t bytes = frame.head_size + frame.size;
  const std::lock_guard lock(mutex_);
  if (awake_ == 0 || waiting_bytes_ + bytes > kMostWaiting) return false;
  ++image.batch->holders;
  waiting_[sampling - 1].push_back({std::chrono::steady_clock::now(), image, frame, std::move(written.head)});
  count_waiting(1, bytes);
  wake_lanes_.notify_one();
  return true;
}

// Counts images that begin to wait for the device, or end to. The caller holds the mutex.
void Pool::count_waiting(ptrdiff_t images, ptrdiff_t bytes) {
  waiting_count_ += images;
  waiting_bytes_ += bytes;
  update_room();
}

// Looks whether the device has room for more images. The caller holds the mutex.
void Pool::update_room() {
  has_room_.store(awake_ > 0 && waiting_count_ + in_calls_ < room_ && waiting_bytes_ < kMostWaiting, std::memory_order_relaxed);
}

// Notes how long an image was with the device. If that was too long, the device gets fewer images
// at a time from now on, and otherwise more. The caller holds the mutex.
void Pool::adapt(std::chrono::steady_clock::duration took) {
  const size_t most = size_t{2} * device_->lanes * device_->most_frames;
  room_ = took > kSoon ? std::max(room_ - room_ / 8, 2 * kLeast) : std::min(room_ + kLeast, most);
}

// Takes images of one sampling that wait for the device, no more than one call may have. They are
// those of the sampling that has waited for longest. The caller holds the mutex.
std::vector<Pool::Prepared> Pool::next_call(int32_t& sampling) {
  std::deque<Prepared>* from = nullptr;
  for (int32_t s = CTD_444; s <= CTD_420; ++s) {
    std::deque<Prepared>& group = waiting_[s - 1];
    if (!group.empty() && (!from || group.front().since < from->front().since)) {
      from = &group;
      sampling = s;
    }
  }
  std::vector<Prepared> call;
  int64_t pixels = 0;
  ptrdiff_t bytes = 0;
  // Lanes without a call share the images that wait, because a call takes longer the more it has.
  const size_t idle = static_cast<size_t>(idle_), share = std::max((waiting_count_ + idle - 1) / idle, kLeast), most = std::min<size_t>(share, device_->most_frames);
  while (!from->empty() && call.size() < most && pixels + from->front().pixels() <= device_->most_pixels) {
    pixels += from->front().pixels();
    bytes += static_cast<ptrdiff_t>(from->front().bytes());
    call.push_back(std::move(from->front()));
    from->pop_front();
  }
  count_waiting(-static_cast<ptrdiff_t>(call.size()), -bytes);
  return call;
}

// Gives an image to the threads. It still counts as a holder of its batch. The caller holds the
// mutex.
void Pool::give_back(const Image& image) {
  back_.push_back(image);
  has_back_.store(true, std::memory_order_relaxed);
  wake_.notify_one();
}

// Gives the images that wait for the device to the threads. The caller holds the mutex.
void Pool::give_all_back() {
  for (std::deque<Prepared>& group : waiting_) {
    for (const Prepared& p : group) give_back(p.image);
    group.clear();
  }
  count_waiting(-static_cast<ptrdiff_t>(waiting_count_), -static_cast<ptrdiff_t>(waiting_bytes_));
}

void Pool::work_with_device(int number) {
  // A lane rests if the device has not decoded a single image of a call. It rests longer each time,
  // so that a device which fails takes less and less time.
  constexpr std::chrono::milliseconds kShortest{20}, kLongest{2000};
  auto rest = kShortest;
  device_->prepare(device_->self, number);
  std::vector<ctd_frame> frames;
  std::unique_lock lock(mutex_);
  const auto wake = [&](int lanes) {
    awake_ += lanes;
    idle_ += lanes;
    update_room();
  };
  wake(1);
  for (;;) {
    wake_lanes_.wait(lock, [&] { return closing_ || waiting_count_ > 0; });
    if (closing_) return;
    int32_t sampling = 0;
    const std::vector<Prepared> call = next_call(sampling);
    --idle_;
    in_calls_ += call.size();
    lock.unlock();
    frames.clear();
    for (const Prepared& p : call) {
      frames.push_back(p.frame);
      frames.back().head = p.head.data();
    }
    device_->decode(device_->self, number, sampling, options_.height, options_.width, frames.data(), frames.size());
    lock.lock();
    ++idle_;
    in_calls_ -= call.size();
    adapt(std::chrono::steady_clock::now() - call.front().since);
    update_room();
    bool decoded = false;
    for (size_t i = 0; i < call.size(); ++i) {
      const Image& image = call[i].image;
      if (frames[i].failed) {
        give_back(image);
      } else {
        decoded = true;
        image.result().on_device = 1;
        release(*image.batch);
      }
    }
    if (decoded) {
      rest = kShortest;
      continue;
    }
    wake(-1);
    if (awake_ == 0) give_all_back();
    end_rest_.wait_for(lock, rest, [&] { return closing_; });
    rest = std::min(2 * rest, kLongest);
    wake(1);
  }
}

}  // namespace decode
