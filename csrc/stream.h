// Streams. On the CPU a stream runs its work at once: it is a name.
#pragma once

#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "cgotorch.h"

namespace ct {

// Memory of other streams that the branch on a stream uses, kept alive. See Note [Memory of branches].
struct Borrowed {
  std::unordered_set<uint64_t> family;  // whose: the parent's, and what the parent may borrow
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages;
};

}  // namespace ct

struct ct_stream {
  ct_stream(c10::Device device, c10::Stream stream, uint64_t id, bool own, int32_t priority);
  ~ct_stream();
  const c10::Device device;
  const c10::Stream stream;
  const uint64_t id;
  const bool own;  // goes back to the free list
  const int32_t priority;
  mutable std::shared_ptr<ct::Borrowed> borrowed;  // while a branch runs on it
};

namespace ct {

// ct_stream_id of a CUDA stream.
uint64_t cuda_stream_id(c10::Stream stream);

}  // namespace ct
