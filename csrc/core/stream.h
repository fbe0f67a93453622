// Streams. On the CPU a stream runs its work at once: it is only a name.
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

// Memory of other streams that the branch on a stream uses, kept alive. See Note [Memory of
// branches].
struct Borrowed {
  std::unordered_set<uint64_t> family;  // the owners: the parent, and those the parent may borrow from
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages;
};

}  // namespace ct

// The properties that make two streams serve the same purpose.
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
  const bool own;  // goes back to the free list
  const ct_stream_kind kind;
  mutable std::shared_ptr<ct::Borrowed> borrowed;  // while a branch runs on it
};

namespace ct {

// ct_stream_id of a CUDA stream.
uint64_t cuda_stream_id(c10::Stream stream);

}  // namespace ct
