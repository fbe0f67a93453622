// CUDA code for the floating-point dtypes. It is part of the text of every CUDA program, and says
// how to read and write their elements.
#pragma once

namespace ct {

// In each struct, Raw is the type in memory, and Wide is the type in which a kernel computes.
inline constexpr char kFloats[] = R"cuda(
struct BFloat16 {
  using Raw = unsigned short;
  using Wide = float;
  static __device__ Wide widen(Raw raw) { return __uint_as_float(static_cast<unsigned>(raw) << 16); }
  static __device__ Raw narrow(Wide v) {
    if (v != v) return 0x7FC0;
    const unsigned bits = __float_as_uint(v);
    return static_cast<Raw>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
  }
};

struct Half {
  using Raw = unsigned short;
  using Wide = float;
  static __device__ Wide widen(Raw raw) {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(raw));
    return v;
  }
  static __device__ Raw narrow(Wide v) {
    Raw raw;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(raw) : "f"(v));
    return raw;
  }
};

struct Float {
  using Raw = float;
  using Wide = float;
  static __device__ Wide widen(Raw raw) { return raw; }
  static __device__ Raw narrow(Wide v) { return v; }
};

struct Double {
  using Raw = double;
  using Wide = double;
  static __device__ Wide widen(Raw raw) { return raw; }
  static __device__ Raw narrow(Wide v) { return v; }
};
)cuda";

}  // namespace ct
