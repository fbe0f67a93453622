// Code for both devices. The CPU's compiler reads it as C++, and CUDA's run-time compiler gets it
// as text. So the two devices share one source.
#pragma once

// Expands to the code, and to a string with the same code. The string has no line breaks, so the
// code may not contain preprocessor lines.
#define CT_ON_BOTH_DEVICES(name, ...) \
  __VA_ARGS__                         \
  inline constexpr char name[] = #__VA_ARGS__;

// In the text for CUDA this is __device__ __forceinline__ (cuda/program.cc).
#define CT_FUNCTION inline __attribute__((always_inline))
