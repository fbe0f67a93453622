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
// taken and no worker works on it any more.
struct Pool::Batch {
  const ctd_image* images;
  size_t count;
  uint8_t* dst;
  ctd_result* results;
  std::atomic<size_t> next{0};
  int holders = 0;  // guarded by the pool's mutex
  bool taken = false;
  std::condition_variable done{};
};

Pool::Pool(const ctd_options& checked) : options_(checked), memory_(checked.memory) {
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
  threads_.reserve(workers);
  for (int i = 0; i < workers; ++i) {
    threads_.emplace_back([this] { work(); });
    pthread_setname_np(threads_.back().native_handle(), ("decode-" + std::to_string(i)).c_str());
  }
}

void Pool::stop() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

size_t Pool::bytes_per_image() const {
  return static_cast<size_t>(options_.height) * options_.width * options_.channels;
}

// Large images together take at most `limit` bytes, with one exception. An image that needs more
// than `limit` is decoded while no other large image has memory.
size_t Pool::max_memory() const {
  const size_t image = Transform::most(options_), threads = threads_.size();
  const size_t limit = options_.memory;
  return threads * (kOwn + kUncounted) + std::min(std::max(limit, image), threads * image);
}

void Pool::decode(const ctd_image* images, size_t count, uint8_t* dst, ctd_result* results) {
  if (count == 0) return;
  Batch batch{images, count, dst, results};
  std::unique_lock lock(mutex_);
  queue_.push_back(&batch);
  if (count == 1) {
    wake_.notify_one();
  } else {
    wake_.notify_all();
  }
  batch.done.wait(lock, [&] { return batch.taken && batch.holders == 0; });
}

void Pool::work() {
  Transform transform(options_, memory_);
  const size_t each = bytes_per_image();
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Batch& batch = *queue_.front();
    ++batch.holders;
    lock.unlock();
    auto begin = std::chrono::steady_clock::now();
    for (size_t i; (i = batch.next.fetch_add(1, std::memory_order_relaxed)) < batch.count;) {
      ctd_result& result = batch.results[i];
      uint8_t* to = batch.dst + i * each;
      result = {};
      result.error = guarded([&] { transform.run(batch.images[i], to, result); });
      if (result.error) std::memset(to, 0, each);
      const auto end = std::chrono::steady_clock::now();
      busy_.fetch_add(std::chrono::nanoseconds(end - begin).count(), std::memory_order_relaxed);
      begin = end;
    }
    lock.lock();
    if (!batch.taken) {
      batch.taken = true;
      std::erase(queue_, &batch);
    }
    if (--batch.holders == 0) batch.done.notify_all();
  }
}

}  // namespace decode
