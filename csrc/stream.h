// Streams. On the CPU a stream runs its work at once: it is a name.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>

#include "cgotorch.h"

struct ct_stream {
  ct_stream(c10::Device device, c10::Stream stream, uint64_t id, bool own, int32_t priority);
  ~ct_stream();
  const c10::Device device;
  const c10::Stream stream;
  const uint64_t id;
  const bool own;  // goes back to the free list
  const int32_t priority;
};

namespace ct {

// ct_stream_id of a CUDA stream.
uint64_t cuda_stream_id(c10::Stream stream);

}  // namespace ct
