// Streams. On the CPU work runs at once, so a stream is only a name.
#pragma once

#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "cgotorch.h"

namespace ct {

// The memory of other streams that a branch uses. It is kept alive here while the branch runs.
// See Note [Memory of branches].
struct Borrowed {
  // The streams that own the memory: the parent, and the streams from which the parent may borrow.
  std::unordered_set<uint64_t> family;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages;
};

}  // namespace ct

// A closed stream may be reused for a new stream with the same values of these fields.
struct ct_stream_kind {
  c10::DeviceIndex device = 0;
  int32_t priority = 0;
  auto operator<=>(const ct_stream_kind&) const = default;
};

struct ct_stream {
  ct_stream(c10::Device device, c10::Stream stream, uint64_t id, bool own, const ct_stream_kind& kind = {});
  ~ct_stream();
  const c10::Device device;
  const c10::Stream stream;
  const uint64_t id;
  const bool own;  // the core made the stream, and keeps it for reuse when the handle is freed
  const ct_stream_kind kind;
  mutable std::shared_ptr<ct::Borrowed> borrowed;  // set while a branch runs on this stream
};

namespace ct {

// Makes a stream that nobody else uses, as ct_stream_new does.
std::unique_ptr<ct_stream> new_stream(c10::Device device, int32_t priority);

// Returns the ct_stream_id of a CUDA stream.
uint64_t cuda_stream_id(c10::Stream stream);

}  // namespace ct
