// The code that a binding writes by hand for one operator: a function that calls it and returns a
// handle, and a function to free handles.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hw_tensor hw_tensor;

// Makes a float32 tensor of count equal numbers on the CPU, or with cuda on CUDA device 0. NULL on
// failure.
hw_tensor* hw_full(int64_t count, double value, int32_t cuda);
// Returns a + b. NULL on failure.
hw_tensor* hw_add(const hw_tensor* a, const hw_tensor* b);
void hw_free(hw_tensor* t);

// Runs at::add count times in C++, freeing each result before the next. Returns 0 on failure.
int32_t hw_add_times(const hw_tensor* a, const hw_tensor* b, int64_t count);

// Calls the core count times, on a stream of its own or on the default stream. The call sets and
// restores LibTorch's state and does nothing between. Returns 0 on failure.
int32_t hw_guard_times(int32_t cuda, int32_t own_stream, int64_t count);

#ifdef __cplusplus
}
#endif
