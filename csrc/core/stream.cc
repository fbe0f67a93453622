#include "core/stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>

#include "check/checker.h"
#include "core/device.h"
#include "core/free_list.h"
#include "core/live.h"
#include "core/status.h"
#include "witness/trace.h"

// Note [Streams of the library's own]
//
// LibTorch's pool has 32 streams and hands them out in turn, so two users can get the same
// stream. A prefetcher and a captured function need streams that nobody else uses. The core
// therefore makes streams itself. They are non-blocking: they do not wait for the default stream.
//
// A prefetcher keeps one copy stream for its whole life. With a new stream for each epoch, the
// memory of the last epoch's stream could not be used again.
//
// Stream 0, the default stream, is a real stream. So 0 cannot mean that a stream is missing. A
// NULL handle means that.

namespace {

// The number of the next CPU stream. The number of a CUDA stream combines its device with
// LibTorch's number for the stream.
std::atomic<uint64_t> cpu_streams{1};
constexpr uint64_t kCudaBit = uint64_t{1} << 63;

// Note [Streams are never destroyed]
//
// LibTorch's allocator has free blocks for each stream, and cuBLAS has a workspace for each
// stream. If a stream were destroyed, nothing could use its blocks and its workspace again. A
// closed stream therefore waits in this list for its next owner.
auto& free_streams() {
  static auto* const list = new ct::FreeList<ct_stream_kind, c10::Stream>;
  return *list;
}

c10::Stream take_stream(const ct_stream_kind& kind) {
  if (const auto stream = free_streams().take(kind)) return *stream;
  return ct::cuda().new_stream(kind.device, kind.priority);
}

c10::Stream cpu_stream() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCPU)); }

}  // namespace

std::unique_ptr<ct_stream> ct::new_stream(c10::Device device, int32_t priority) {
  const ct_stream_kind kind{device.index(), priority};
  if (!device.is_cuda()) return std::make_unique<ct_stream>(device, cpu_stream(), cpu_streams++, true, kind);
  const c10::Stream stream = take_stream(kind);
  try {
    return std::make_unique<ct_stream>(device, stream, ct::cuda_stream_id(stream), true, kind);
  } catch (...) {
    free_streams().give(kind, stream);
    throw;
  }
}

uint64_t ct::cuda_stream_id(c10::Stream stream) {
  return kCudaBit | (uint64_t(uint8_t(stream.device_index())) << 56) | (uint64_t(stream.id()) & ((uint64_t{1} << 56) - 1));
}

ct_stream::ct_stream(c10::Device device, c10::Stream stream, uint64_t id, bool own, const ct_stream_kind& kind)
    : device(device), stream(stream), id(id), own(own), kind(kind) {
  if (device.is_cuda()) ct::trace_knows(*this);
  ++ct::live().streams;
}

ct_stream::~ct_stream() {
  --ct::live().streams;
  if (own) ct::checker::ended(*this);
  // The owner of an external stream may destroy the stream from now on. The default stream is never
  // destroyed.
  if (!own && device.is_cuda() && ct_stream_native(this) != nullptr) ct::trace_forgets(*this);
  //edge:streams-are-kept TestStream_CloseGivesItToTheNext gpu
  if (own && device.is_cuda()) free_streams().give(kind, stream);
}

extern "C" {

ct_status* ct_stream_default(ct_device device, ct_stream** out) noexcept {
  return ct::on_device(device, [&](c10::Device where) {
    if (!where.is_cuda()) {
      *out = new ct_stream(where, cpu_stream(), 0, false);
      return;
    }
    const c10::Stream stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getDefaultStream(where);
    *out = new ct_stream(where, stream, ct::cuda_stream_id(stream), false);
  });
}

ct_status* ct_stream_new(ct_device device, int32_t priority, ct_stream** out) noexcept {
  return ct::on_device(device, [&](c10::Device where) { *out = ct::new_stream(where, priority).release(); });
}

ct_status* ct_stream_external(ct_device device, void* native, ct_stream** out) noexcept {
  return ct::on_device(device, [&](c10::Device where) {
    if (!where.is_cuda()) throw ct::Failure(CT_INVALID_ARGUMENT, "the CPU has no streams of anybody's own: make a new one");
    const c10::Stream stream = ct::cuda().external_stream(native, where.index());
    *out = new ct_stream(where, stream, ct::cuda_stream_id(stream), false);
  });
}

void ct_stream_free(ct_stream* stream) noexcept { delete stream; }

uint64_t ct_stream_id(const ct_stream* stream) noexcept { return stream == nullptr ? 0 : stream->id; }

void* ct_stream_native(const ct_stream* stream) noexcept {
  if (stream == nullptr || !stream->device.is_cuda()) return nullptr;
  return ct::cuda().native_stream(stream->stream);
}

ct_status* ct_stream_query(const ct_stream* stream, int32_t* done) noexcept {
  if (stream == nullptr) return ct::guarded([&] { ct::deref(stream, "stream"); });
  return ct::guarded(stream->device, [&] {
    ct::require(stream->device);
    *done = !stream->device.is_cuda() || stream->stream.query();  //edge:stream-query TestStream_HostWaits gpu
    //edge:stream-query-is-known TestCheckStreams_HostWaits checked
    if (*done != 0) ct::checker::host_waited_for(*stream);
  });
}

ct_status* ct_stream_synchronize(const ct_stream* stream) noexcept {
  if (stream == nullptr) return ct::guarded([&] { ct::deref(stream, "stream"); });
  return ct::guarded(stream->device, [&] {
    ct::require(stream->device);
    if (stream->device.is_cuda()) stream->stream.synchronize();  //edge:stream-synchronize TestStream_HostWaits gpu
    ct::checker::host_waited_for(*stream);  //edge:stream-synchronize-is-known TestCheckStreams_HostWaits checked
  });
}

}  // extern "C"
