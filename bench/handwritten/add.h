// This header declares what a binding writes by hand for one operator: a function that calls the
// operator and returns a handle, and a function that frees handles.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hw_tensor hw_tensor;

// Makes a float32 tensor of `count` elements that all equal `value`. The tensor is on the CPU, or
// on CUDA device 0 if cuda is not 0. Returns NULL on failure.
hw_tensor* hw_full(int64_t count, double value, int32_t cuda);
// Returns a + b, or NULL on failure.
hw_tensor* hw_add(const hw_tensor* a, const hw_tensor* b);
void hw_free(hw_tensor* t);

// Runs at::add `count` times in C++. Frees each result before the next call. Returns 0 on
// failure.
int32_t hw_add_times(const hw_tensor* a, const hw_tensor* b, int64_t count);

#ifdef __cplusplus
}
#endif
