//go:build bench

#include "add.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>

struct hw_tensor {
  at::Tensor tensor;
};

extern "C" {

hw_tensor* hw_full(int64_t count, double value, int32_t cuda) {
  try {
    return new hw_tensor{at::full({count}, value, at::device(cuda != 0 ? at::kCUDA : at::kCPU).dtype(at::kFloat))};
  } catch (...) {
    return nullptr;
  }
}

hw_tensor* hw_add(const hw_tensor* a, const hw_tensor* b) {
  try {
    return new hw_tensor{at::add(a->tensor, b->tensor)};
  } catch (...) {
    return nullptr;
  }
}

void hw_free(hw_tensor* t) { delete t; }

int32_t hw_add_times(const hw_tensor* a, const hw_tensor* b, int64_t count) {
  try {
    const at::NoGradGuard no_grad;
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor sum = at::add(a->tensor, b->tensor);
    }
    return 1;
  } catch (...) {
    return 0;
  }
}

}  // extern "C"
