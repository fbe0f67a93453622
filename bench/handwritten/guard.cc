//go:build bench

#include "../../csrc/include/cgotorch.h"
#include "add.h"

extern "C" int32_t hw_guard_times(int32_t cuda, int32_t own_stream, int64_t count) {
  const ct_device device{cuda != 0 ? CT_CUDA : CT_CPU, 0};
  ct_stream* stream = nullptr;
  ct_status* failure = own_stream != 0 ? ct_stream_new(device, 0, &stream) : ct_stream_default(device, &stream);
  ct_exec x{stream, ct_thread_id(), 0, -1, 0, nullptr};
  ct_tensor* empty = nullptr;
  const int64_t shape = 0;
  if (failure == nullptr) failure = ct_tensor_from_host(x, nullptr, 0, 6 /* float32 */, &shape, 1, &empty);
  for (int64_t i = 0; failure == nullptr && i < count; ++i) failure = ct_tensor_copy_from(x, empty, nullptr, 0);
  const bool done = failure == nullptr;
  ct_status_free(failure);
  ct_tensor_free(empty);
  ct_stream_free(stream);
  return done;
}
