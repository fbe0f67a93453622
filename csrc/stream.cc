#include "stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <vector>

#include "device.h"
#include "live.h"
#include "status.h"

namespace {

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// CPU streams are numbered; a CUDA stream's number is made of its device and LibTorch's own number for it.
std::atomic<uint64_t> cpu_streams{1};
constexpr uint64_t kCudaBit = uint64_t{1} << 63;

uint64_t cuda_id(c10::Stream stream) {
  return kCudaBit | (uint64_t(uint8_t(stream.device_index())) << 56) | (uint64_t(stream.id()) & ((uint64_t{1} << 56) - 1));
}

// Note [Streams are never destroyed]: LibTorch's allocator keys its blocks, and cuBLAS its workspaces, by stream. A stream
// that is closed waits here for its next owner, or both would be stranded.
struct FreeStreams {
  std::mutex mutex;
  std::map<std::pair<c10::DeviceIndex, int32_t>, std::vector<c10::Stream>> streams;
};

FreeStreams& free_streams() {
  static auto* const list = new FreeStreams;
  return *list;
}

c10::Stream take_stream(c10::Device device, int32_t priority) {
  {
    FreeStreams& list = free_streams();
    const std::lock_guard lock(list.mutex);
    auto& streams = list.streams[{device.index(), priority}];
    if (!streams.empty()) {
      const c10::Stream stream = streams.back();
      streams.pop_back();
      return stream;
    }
  }
  return ct::cuda().new_stream(device.index(), priority);
}

c10::Stream cpu_stream() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCPU)); }

}  // namespace

ct_stream::ct_stream(c10::Device device, c10::Stream stream, uint64_t id, bool own, int32_t priority)
    : device(device), stream(stream), id(id), own(own), priority(priority) {
  ++ct::live().streams;
}

ct_stream::~ct_stream() {
  --ct::live().streams;
  if (!own || !device.is_cuda()) return;
  FreeStreams& list = free_streams();
  const std::lock_guard lock(list.mutex);
  list.streams[{device.index(), priority}].push_back(stream);
}

ct_event::ct_event(c10::Device device, void* native, bool timing)
    : device(device), native(native), timing(timing), nanoseconds(native == nullptr ? now() : 0) {
  ++ct::live().events;
}

ct_event::~ct_event() {
  --ct::live().events;
  if (native != nullptr) ct::cuda().free_event(native);
}

namespace ct {

ct_event* record(const ct_stream& stream, bool timing) {
  require(stream.device);
  if (!stream.device.is_cuda()) return new ct_event(stream.device, nullptr, timing);
  void* native = cuda().new_event(stream.device.index(), timing);
  auto* event = new ct_event(stream.device, native, timing);
  try {
    cuda().record(native, stream.stream);
  } catch (...) {
    delete event;
    throw;
  }
  return event;
}

void wait(const ct_stream& stream, const ct_event& event) {
  require(stream.device);
  if (event.native == nullptr) return;
  if (stream.device.is_cuda()) {
    cuda().wait(stream.stream, event.native);
  } else {
    require(event.device);
    cuda().synchronize_event(event.native);  // a CPU stream runs its work at once, so to wait is to wait here
  }
}

}  // namespace ct

extern "C" {

ct_status* ct_stream_default(ct_device device, ct_stream** out) noexcept {
  return ct::on_device(device, [&](c10::Device where) {
    if (!where.is_cuda()) {
      *out = new ct_stream(where, cpu_stream(), 0, false, 0);
      return;
    }
    const c10::Stream stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getDefaultStream(where);
    *out = new ct_stream(where, stream, cuda_id(stream), false, 0);
  });
}

ct_status* ct_stream_new(ct_device device, int32_t priority, ct_stream** out) noexcept {
  return ct::on_device(device, [&](c10::Device where) {
    if (!where.is_cuda()) {
      *out = new ct_stream(where, cpu_stream(), cpu_streams++, true, priority);
      return;
    }
    const c10::Stream stream = take_stream(where, priority);
    *out = new ct_stream(where, stream, cuda_id(stream), true, priority);
  });
}

void ct_stream_free(ct_stream* stream) noexcept { delete stream; }

uint64_t ct_stream_id(const ct_stream* stream) noexcept { return stream == nullptr ? 0 : stream->id; }

ct_device ct_stream_device(const ct_stream* stream) noexcept {
  return ct::from_device(stream == nullptr ? c10::Device(c10::kCPU) : stream->device);
}

void* ct_stream_native(const ct_stream* stream) noexcept {
  if (stream == nullptr || !stream->device.is_cuda()) return nullptr;
  return ct::cuda().native_stream(stream->stream);
}

ct_status* ct_stream_query(const ct_stream* stream, int32_t* done) noexcept {
  if (stream == nullptr) return ct::guarded([&] { ct::deref(stream, "stream"); });
  return ct::guarded(stream->device, [&] {
    ct::require(stream->device);
    *done = !stream->device.is_cuda() || stream->stream.query();
  });
}

ct_status* ct_stream_synchronize(const ct_stream* stream) noexcept {
  if (stream == nullptr) return ct::guarded([&] { ct::deref(stream, "stream"); });
  return ct::guarded(stream->device, [&] {
    ct::require(stream->device);
    if (stream->device.is_cuda()) stream->stream.synchronize();
  });
}

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
  if (event == nullptr) return ct::guarded([&] { ct::deref(event, "event"); });
  return ct::guarded(event->device, [&] {
    ct::require(event->device);
    *done = event->native == nullptr || ct::cuda().query_event(event->native);
  });
}

ct_status* ct_event_synchronize(const ct_event* event) noexcept {
  if (event == nullptr) return ct::guarded([&] { ct::deref(event, "event"); });
  return ct::guarded(event->device, [&] {
    ct::require(event->device);
    if (event->native != nullptr) ct::cuda().synchronize_event(event->native);
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
