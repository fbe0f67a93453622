// Tells when events are done, to whoever waits without holding a thread.

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "event.h"
#include "status.h"

namespace ct {
namespace {

// One thread asks the device, and only about the oldest recording of each stream: the others cannot be done before it. It sleeps
// while nobody waits. CUDA could call back instead (cudaLaunchHostFunc), but holds the stream up until the callback has returned.
class Notifier {
 public:
  void ask(const ct_event& event, uint64_t token) {
    const std::lock_guard lock(mutex_);
    if (event.recording == nullptr) {
      done_.push_back(token);
      told_.notify_one();
      return;
    }
    if (!started_) {
      std::thread([this] { poll(); }).detach();
      started_ = true;
    }
    streams_[event.recording->stream].emplace(event.recording->number, Wait{event.recording, event.known, token});
    ++waiting_;
    asked_.notify_one();
  }

  int32_t take(uint64_t* tokens, int32_t capacity) {
    std::unique_lock lock(mutex_);
    told_.wait(lock, [this] { return !done_.empty() || waiting_ == 0; });
    const size_t count = std::min(done_.size(), static_cast<size_t>(std::max(capacity, 0)));
    std::copy_n(done_.begin(), count, tokens);
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<int32_t>(count);
  }

 private:
  struct Wait {
    std::shared_ptr<const Recording> recording;
    checker::Known known;
    uint64_t token;
  };

  [[noreturn]] void poll() {
    prctl(PR_SET_TIMERSLACK, 1);  // or a sleep of 20 us lasts 70
    std::unique_lock lock(mutex_);
    for (;;) {
      asked_.wait(lock, [this] { return waiting_ > 0; });
      const size_t before = done_.size();
      for (auto stream = streams_.begin(); stream != streams_.end();) {
        auto& waits = stream->second;
        while (!waits.empty() && waits.begin()->second.recording->done()) {
          checker::host_waited_for(waits.begin()->second.known);  // who is told may rely on it
          done_.push_back(waits.begin()->second.token);
          waits.erase(waits.begin());
          --waiting_;
        }
        stream = waits.empty() ? streams_.erase(stream) : std::next(stream);
      }
      if (done_.size() > before) told_.notify_one();
      if (waiting_ == 0) continue;
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable asked_, told_;
  std::unordered_map<uint64_t, std::multimap<uint64_t, Wait>> streams_;  // by stream, then by the recording's number
  size_t waiting_ = 0;                                                   // in streams_
  std::vector<uint64_t> done_;                                           // not taken yet
  bool started_ = false;
};

Notifier& notifier() {
  static auto* const one = new Notifier;
  return *one;
}

}  // namespace
}  // namespace ct

extern "C" {

ct_status* ct_event_notify(const ct_event* event, uint64_t token) noexcept {
  return ct::guarded([&] { ct::notifier().ask(ct::deref(event, "event"), token); });
}

int32_t ct_notified(uint64_t* tokens, int32_t capacity) noexcept { return ct::notifier().take(tokens, capacity); }

}  // extern "C"
