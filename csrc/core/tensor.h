// Handles of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>

#include "cgotorch.h"
#include "check/checker.h"
#include "core/stream.h"

// Note [Memory used on several streams]
//
// A handle knows the stream of its storage. When the memory is freed, LibTorch's allocator hands
// it out again in the order of that stream. If a call uses the memory on another stream, the core
// tells the allocator of that use. It does so once per storage and stream.
//
// There are two exceptions. The first is a lent tensor. Its owner makes sure, by events, that
// every use has ended before the memory is used for something else. So the allocator is not told.
// The second is the memory of branches: see Note [Memory of branches].
//
// The core adds no waits: before a use on another stream, the caller makes that stream wait. The
// stream checker finds a wait that was forgotten.

struct ct_tensor {
  ct_tensor(at::Tensor tensor, uint64_t stream);
  ~ct_tensor();
  at::Tensor tensor;
  // The id of the stream on which the storage was made. When the memory is freed, LibTorch's
  // allocator hands it out again in that stream's order.
  const uint64_t stream;
  // Some uses of the storage on streams other than `stream` are recorded with the allocator. This
  // is the id of the stream of the last recorded use. 0, the id of the CPU's default stream, means
  // that no use is recorded.
  mutable std::atomic<uint64_t> recorded{0};
};

namespace ct {

// The stream of a lent tensor. No use of a lent tensor is recorded, on whatever stream.
constexpr uint64_t kAnyStream = ~uint64_t{0};

// Returns LibTorch's dtype of this number, or throws.
at::ScalarType to_dtype(int32_t dtype);

// Prepares the use of a tensor. Each call does this for each tensor that it reads or writes.
//
// Refuses a tensor on a CUDA device other than the exec's, because LibTorch would run the work on
// that device's current stream. If the stream is not that of the storage, tells LibTorch's
// allocator of the use. The memory is then not handed out again before the use is done. On the
// CPU the allocator does not know streams, so only the stream checker is told.
void use_checked(const ct_tensor& tensor, const ct_stream& stream);
inline void use(const ct_tensor& tensor, const ct_stream& stream) {
  if (tensor.tensor.is_cuda() || checker::is_on()) use_checked(tensor, stream);
}

// Does what use_checked does, but also allows a tensor that is not on the stream's device. To be
// used only by calls for which the core, and not LibTorch, chooses the device of the work.
void use_elsewhere(const ct_tensor& tensor, const ct_stream& stream);

// Makes a handle of a result. If the result shares its memory with an input, the handle gets the
// stream of that input.
ct_tensor* new_result(at::Tensor result, const ct_stream& stream, ct_tensor* const* inputs, int32_t input_count);

}  // namespace ct
