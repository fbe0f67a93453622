// Tensor handles.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <initializer_list>

#include "cgotorch.h"
#include "check/checker.h"
#include "core/stream.h"

// Note [Memory used on several streams]
//
// A handle knows the stream of its storage. LibTorch's allocator hands freed memory out again in
// the order of that stream. Where a call uses the memory on another stream, the core records the
// use with the allocator, once per storage and stream.
//
// A lent tensor is an exception. Its owner orders the end of every use, by events, so the
// allocator is not told. Memory of branches is another one: see Note [Memory of branches].
//
// To wait before a use is the caller's business. The stream checker finds a wait that was
// forgotten.

struct ct_tensor {
  ct_tensor(at::Tensor tensor, uint64_t stream);
  ~ct_tensor();
  at::Tensor tensor;
  // The id of the stream on which the storage was made. LibTorch's allocator hands the memory out
  // again in that stream's order.
  const uint64_t stream;
  // The id of the last foreign stream whose use of the storage was recorded. 0, the CPU's default
  // stream, stands for none.
  mutable std::atomic<uint64_t> recorded{0};
};

namespace ct {

// The stream of a lent tensor: to it no stream is foreign.
constexpr uint64_t kAnyStream = ~uint64_t{0};

// Prepares the use of a tensor: called for each tensor that a call reads or writes. It refuses a
// tensor on another CUDA device than the exec's. LibTorch would run the work there, on that
// device's current stream. Where the exec's stream is not the storage's, it tells LibTorch's
// allocator. The memory is then not handed out again before this use is done. On the CPU, where
// that cannot happen, it tells the stream checker alone.
void use_checked(const ct_tensor& tensor, const ct_stream& stream);
inline void use(const ct_tensor& tensor, const ct_stream& stream) {
  if (tensor.tensor.is_cuda() || checker::is_on()) use_checked(tensor, stream);
}

// As use_checked, for several tensors. Each must lie on the stream's device, also where that is the
// CPU. NULL stands for none.
void use_here(std::initializer_list<const ct_tensor*> tensors, const ct_stream& stream);

// As use_checked, for a stream that may be of another device, by a call that says where it runs.
void use_elsewhere(const ct_tensor& tensor, const ct_stream& stream);

// A handle of a result. A result that shares the memory of an input has that input's stream.
ct_tensor* new_result(at::Tensor result, const ct_stream& stream, ct_tensor* const* inputs, int32_t input_count);

}  // namespace ct
