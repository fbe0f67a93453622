// C++ that the CPU's compiler reads, and as text CUDA's run-time compiler. Both devices then share
// one source.
#pragma once

// Expands to the code and a string of it. A line break is lost in the string: no preprocessor line
// may stand inside.
#define CT_ON_BOTH_DEVICES(name, ...) \
  __VA_ARGS__                         \
  inline constexpr char name[] = #__VA_ARGS__;

// In CUDA's text: __device__ __forceinline__ (cuda/program.cc).
#define CT_FUNCTION inline __attribute__((always_inline))
