#include "graph/capture.h"

#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/status.h"

namespace ct {
namespace {

struct Turns {
  std::mutex mutex;
  std::condition_variable changed;
  struct {
    uint64_t capturer = 0;  // ct_thread_id of the thread that captures, or 0
    int waiting = 0;        // threads that wait for their turn to capture
    int drawing = 0;        // operators that draw random numbers now
    int held = 0;           // backwards that hold off captures
  } devices[256];  // by c10::DeviceIndex
  int captures = 0;
  std::vector<std::function<void()>> put_aside;

  auto& of(c10::Device device) { return devices[static_cast<uint8_t>(device.index())]; }
};

Turns& turns() {
  static auto* const all = new Turns;
  return *all;
}

}  // namespace

CaptureTurn::CaptureTurn(c10::Device device, bool wait) : device_(device) {
  Turns& all = turns();
  std::unique_lock lock(all.mutex);
  auto& mine = all.of(device);
  if (mine.capturer == ct_thread_id()) throw Failure(CT_NOT_CAPTURABLE, "a capture inside a capture");
  const auto free = [&] { return mine.capturer == 0 && mine.drawing == 0 && mine.held == 0; };
  if (!wait && !free()) return;
  ++mine.waiting;
  all.changed.wait(lock, free);
  --mine.waiting;
  held_ = true;
  mine.capturer = ct_thread_id();
  ++all.captures;
}

CaptureTurn::~CaptureTurn() {
  if (!held_) return;
  Turns& all = turns();
  std::vector<std::function<void()>> now;
  {
    const std::lock_guard lock(all.mutex);
    all.of(device_).capturer = 0;
    if (--all.captures == 0) now.swap(all.put_aside);
  }
  all.changed.notify_all();
  for (const auto& f : now) f();
}

RandomUse::RandomUse(const ct_stream& stream) : device_(stream.device) {
  if (!device_.is_cuda() || in_capture(stream)) return;
  wait();
}

RandomUse::RandomUse(c10::Device device) : device_(device) {
  if (device_.is_cuda()) wait();
}

void RandomUse::wait() {
  Turns& all = turns();
  std::unique_lock lock(all.mutex);
  auto& mine = all.of(device_);
  if (mine.capturer == ct_thread_id()) {
    throw Failure(CT_NOT_CAPTURABLE, "the generator of " + device_.str() + " is used inside a capture, and not for the graph: do it before");
  }
  all.changed.wait(lock, [&] { return mine.capturer == 0 && (mine.waiting == 0 || mine.held > 0); });
  ++mine.drawing;
  counted_ = true;
}

RandomUse::~RandomUse() {
  if (!counted_) return;
  Turns& all = turns();
  bool last = false;
  {
    const std::lock_guard lock(all.mutex);
    last = --all.of(device_).drawing == 0;
  }
  if (last) all.changed.notify_all();
}

void hold_captures(c10::Device device) {
  Turns& all = turns();
  std::unique_lock lock(all.mutex);
  auto& mine = all.of(device);
  all.changed.wait(lock, [&] { return mine.capturer == 0 && mine.waiting == 0; });
  ++mine.held;
}

void release_captures(c10::Device device) noexcept {
  Turns& all = turns();
  {
    const std::lock_guard lock(all.mutex);
    --all.of(device).held;
  }
  all.changed.notify_all();
}

bool in_capture(const ct_stream& stream) { return stream.device.is_cuda() && cuda().is_capturing(stream.stream); }

void refuse_in_capture(const ct_stream& stream, const char* instead) {
  if (in_capture(stream)) {
    throw Failure(CT_NOT_CAPTURABLE, std::string("it would wait for the device inside a capture: ") + instead);
  }
}

void after_captures(std::function<void()> f) {
  Turns& all = turns();
  {
    const std::lock_guard lock(all.mutex);
    if (all.captures > 0) {
      all.put_aside.push_back(std::move(f));
      return;
    }
  }
  f();
}

}  // namespace ct
