#include "core/event.h"

#include <atomic>
#include <chrono>
#include <utility>

#include "check/checker.h"
#include "core/device.h"
#include "core/free_list.h"
#include "core/live.h"
#include "core/status.h"

namespace {

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Note [Events are never destroyed]
//
// CUDA allocates many events at a time, and may wait for the device while it does so. Therefore
// an event without a handle and without a waiter is kept in this list for its next recording. A
// stream may still have to wait for the event's last recording. A new recording does not change
// that wait.
auto& free_events() {
  // The key is the device, and whether the event is for timing.
  static auto* const list = new ct::FreeList<std::pair<c10::DeviceIndex, bool>, void*>;
  return *list;
}

void* take_event(c10::DeviceIndex device, bool timing) {
  if (const auto event = free_events().take({device, timing})) return *event;
  return ct::cuda().new_event(device, timing);
}

}  // namespace

ct_event::ct_event(c10::Device device, std::shared_ptr<const ct::Recording> recording, bool timing, ct::checker::Known known)
    : device(device), recording(std::move(recording)), native(this->recording == nullptr ? nullptr : this->recording->native),
      timing(timing), nanoseconds(native == nullptr ? now() : 0), known(std::move(known)) {
  ++ct::live().events;
}

ct_event::~ct_event() { --ct::live().events; }

namespace ct {

Recording::Recording(const ct_stream& on, bool timing)
    : device(on.device), stream(on.id), timing(timing), native(take_event(on.device.index(), timing)) {
  static std::atomic<uint64_t> recordings{0};
  try {
    cuda().record(native, on.stream);  //edge:device-record TestEvent_Done gpu
  } catch (...) {
    free_events().give({device.index(), timing}, native);
    throw;
  }
  number = ++recordings;  //edge:recordings-are-numbered TestEvent_Done gpu
}

Recording::~Recording() {
  free_events().give({device.index(), timing}, native);  //edge:events-are-kept EventTest.Record_TakesAFreedOne gpu
}

bool Recording::done() const noexcept {
  try {
    return is_lost(device) || cuda().query_event(native);
  } catch (...) {
    return true;
  }
}

ct_event* record(const ct_stream& stream, bool timing) {
  require(stream.device);
  auto recording = stream.device.is_cuda() ? std::make_shared<const Recording>(stream, timing) : nullptr;
  auto known = checker::recorded(stream);  //edge:record-is-known TestCheckStreams_FindsMistakes checked
  return new ct_event(stream.device, std::move(recording), timing, std::move(known));
}

void wait(const ct_stream& stream, const ct_event& event) {
  require(stream.device);
  checker::waited(stream, event.known);  //edge:wait-is-known TestCheckStreams_FindsMistakes checked
  if (event.native == nullptr) return;
  if (stream.device.is_cuda()) {
    cuda().wait(stream.stream, event.native);  //edge:device-wait TestStream_WaitIsOnTheDevice gpu
  } else {
    require(event.device);
    //edge:cpu-waits-for-device TestStream_Wait_CPUForCUDA gpu
    // A CPU stream runs its work at once, so the host waits here in place of the stream.
    cuda().synchronize_event(event.native);
    checker::host_waited_for(event.known);
  }
}

}  // namespace ct

extern "C" {

ct_status* ct_event_record(const ct_stream* stream, int32_t timing, ct_event** out) noexcept {
  if (stream == nullptr) return ct::guarded([&] { ct::deref(stream, "stream"); });
  return ct::guarded(stream->device, [&] { *out = ct::record(*stream, timing != 0); });
}

void ct_event_free(ct_event* event) noexcept { delete event; }

ct_status* ct_stream_wait(const ct_stream* stream, const ct_event* event) noexcept {
  if (stream == nullptr) return ct::guarded([&] { ct::deref(stream, "stream"); });
  const bool on_host = !stream->device.is_cuda() && event != nullptr;
  return ct::guarded(on_host ? event->device : stream->device, [&] { ct::wait(*stream, ct::deref(event, "event")); });
}

ct_status* ct_event_query(const ct_event* event, int32_t* done) noexcept {
  ct_status* failed = ct_event_done(event, done);
  if (failed != nullptr || *done == 0) return failed;
  //edge:event-query-is-known TestCheckStreams_HostWaits checked
  return ct::guarded(event->device, [&] { ct::checker::host_waited_for(event->known); });
}

ct_status* ct_event_done(const ct_event* event, int32_t* done) noexcept {
  if (event == nullptr) return ct::guarded([&] { ct::deref(event, "event"); });
  return ct::guarded(event->device, [&] {
    ct::require(event->device);
    //edge:event-query TestStream_HostWaits gpu
    *done = event->native == nullptr || ct::cuda().query_event(event->native);
  });
}

ct_status* ct_event_synchronize(const ct_event* event) noexcept {
  if (event == nullptr) return ct::guarded([&] { ct::deref(event, "event"); });
  return ct::guarded(event->device, [&] {
    ct::require(event->device);
    //edge:event-synchronize-waits EventTest.Record_DoesNotWait gpu
    if (event->native != nullptr) ct::cuda().synchronize_event(event->native);
    ct::checker::host_waited_for(event->known);
  });
}

ct_status* ct_event_elapsed(const ct_event* start, const ct_event* end, double* milliseconds) noexcept {
  return ct::guarded(start == nullptr ? c10::Device(c10::kCPU) : start->device, [&] {
    const ct_event& from = ct::deref(start, "start");
    const ct_event& to = ct::deref(end, "end");
    if (!from.timing || !to.timing) {
      throw ct::Failure(CT_INVALID_ARGUMENT, "elapsed time was asked of an event that was not recorded for timing: use RecordTiming");
    }
    if (from.device != to.device) {
      throw ct::Failure(CT_INVALID_ARGUMENT, "elapsed time was asked between events of " + from.device.str() + " and " +
                                                 to.device.str());
    }
    if (from.native == nullptr) {
      *milliseconds = double(to.nanoseconds - from.nanoseconds) / 1e6;
      return;
    }
    ct::require(from.device);
    if (!ct::cuda().query_event(from.native) || !ct::cuda().query_event(to.native)) {
      throw ct::Failure(CT_INVALID_ARGUMENT, "elapsed time was asked of an event that is not done: synchronize it first");
    }
    *milliseconds = ct::cuda().elapsed(from.native, to.native);
  });
}

}  // extern "C"
