// C++ that the CPU's compiler and, as text, CUDA's run-time compiler both read, so that there is one source of what they must agree on.
#pragma once

// Both the code and a string of it. A line break is lost in the string, so no preprocessor line may stand inside.
#define CT_ON_BOTH_DEVICES(name, ...) \
  __VA_ARGS__                         \
  inline constexpr char name[] = #__VA_ARGS__;

#define CT_FUNCTION inline __attribute__((always_inline))  // in CUDA's text: __device__ __forceinline__ (cuda/program.cc)
