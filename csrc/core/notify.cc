// Notices for waiters that hold no thread: ct_notified says which events are done.

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/event.h"
#include "core/status.h"

namespace ct {
namespace {

// Keeps the events that ct_event_notify was given, until ct_notified has returned their tokens.
//
// The thread in ct_notified asks the device itself, once every kPause. It asks only about the
// oldest recording of each stream, because a later one cannot be done before it.
//
// Two other designs are slower. In the first, one more thread asks the device and then wakes the
// waiting thread. The wake-up doubles the time. In the second, CUDA calls a function of the host
// (cudaLaunchHostFunc). The stream then runs nothing until that function has returned.
class Notifier {
 public:
  void ask(const ct_event& event, uint64_t token, bool known) {
    const std::lock_guard lock(mutex_);
    if (event.recording == nullptr) {
      done_.push_back(token);
      return;
    }
    //edge:recording-outlives-event TestEvent_Done_ClosedAndRecordedAgain gpu
    streams_[event.recording->stream].emplace(event.recording->number, Wait{event.recording, known ? event.known : nullptr, token});
  }

  int32_t take(uint64_t* tokens, int32_t capacity) {
    const PromptSleep prompt;
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        look();
        if (!done_.empty() || streams_.empty()) {
          const size_t count = std::min(done_.size(), static_cast<size_t>(std::max(capacity, 0)));
          std::copy_n(done_.begin(), count, tokens);
          done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
          return static_cast<int32_t>(count);
        }
      }
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  struct Wait {
    std::shared_ptr<const Recording> recording;
    checker::Known known;
    uint64_t token;
  };
  static constexpr std::chrono::microseconds kPause{20};

  // Makes short sleeps exact on this thread, while the object lives. Without it a sleep of 20 us
  // lasts 70 us.
  class PromptSleep {
   public:
    PromptSleep() { prctl(PR_SET_TIMERSLACK, 1UL); }
    ~PromptSleep() { prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_)); }

   private:
    const int before_ = prctl(PR_GET_TIMERSLACK);
  };

  void look() {
    for (auto stream = streams_.begin(); stream != streams_.end();) {
      auto& waits = stream->second;
      while (!waits.empty()) {
        if (!waits.begin()->second.recording->done()) break;  //edge:told-behind-work TestEvent_Done gpu
        //edge:told-is-known TestCheckStreams_HostWaits gpu
        checker::host_waited_for(waits.begin()->second.known);  // to the checker, a notice is a wait of the host for the event
        done_.push_back(waits.begin()->second.token);
        waits.erase(waits.begin());
      }
      stream = waits.empty() ? streams_.erase(stream) : std::next(stream);
    }
  }

  std::mutex mutex_;
  // The recordings to ask about: by stream, and within a stream by the number of the recording. No
  // inner map is empty.
  std::unordered_map<uint64_t, std::multimap<uint64_t, Wait>> streams_;
  // The tokens of events that are done and that ct_notified has not returned yet.
  std::vector<uint64_t> done_;
};

Notifier& notifier() {
  static auto* const one = new Notifier;
  return *one;
}

}  // namespace
}  // namespace ct

extern "C" {

ct_status* ct_event_notify(const ct_event* event, uint64_t token, int32_t known) noexcept {
  return ct::guarded([&] {
    const ct_event& of = ct::deref(event, "event");
    if (of.recording == nullptr && known != 0) ct::checker::host_waited_for(of.known);
    ct::notifier().ask(of, token, known != 0);
  });
}

int32_t ct_notified(uint64_t* tokens, int32_t capacity) noexcept { return ct::notifier().take(tokens, capacity); }

}  // extern "C"
