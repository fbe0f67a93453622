// Tensor handles.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cgotorch.h"
#include "stream.h"

struct ct_tensor {
  ct_tensor(at::Tensor tensor, const ct_stream* stream);
  ct_tensor(at::Tensor tensor, c10::Stream stream, uint64_t stream_id);
  ~ct_tensor();
  at::Tensor tensor;
  // The stream on which the storage was made; LibTorch's allocator hands the memory out again in that stream's order.
  const c10::Stream stream;
  const uint64_t stream_id;
};

namespace ct {

// The stream_id of a lent tensor: no stream is a foreign one.
constexpr uint64_t kAnyStream = ~uint64_t{0};

// Tells LibTorch's allocator that the exec's stream uses the tensor, where that is not the stream of its storage, so that
// its memory is not handed out again before this use is done.
void record_use(const ct_tensor& tensor, const ct_stream& stream);

// A handle of a result. A result that shares the memory of an input has that input's stream.
ct_tensor* new_result(at::Tensor result, const ct_stream& stream, ct_tensor* const* inputs, int32_t input_count);

}  // namespace ct
