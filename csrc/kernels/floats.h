// CUDA code for the floating-point dtypes. It is part of the text of every CUDA program, and says
// how to read and write their elements.
#pragma once

namespace ct {

// In each struct, Raw is the type in memory, and Wide is the type in which a kernel computes. The
// function `narrow` of two numbers returns the bits of both, the first number in the low bits. It
// needs a device of compute capability 8.0 or more, and gives other bits for NaN than `narrow` of
// one number.
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
  static __device__ unsigned narrow(Wide low, Wide high) {
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
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
  static __device__ unsigned narrow(Wide low, Wide high) {
    unsigned bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
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

// Elements side by side in memory. A thread reads them at once, or 16 bytes at a time.
template <typename T, int kCount>
struct alignas(kCount * sizeof(typename T::Raw) < 16 ? kCount * sizeof(typename T::Raw) : 16) Vector { typename T::Raw at[kCount]; };

template <typename T, int kCount>
__device__ __forceinline__ void widen(const Vector<T, kCount>& v, float (&f)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) f[i] = T::widen(v.at[i]);
}

// Returns the numbers in the dtype T, rounded to nearest even. kCount is even.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> narrow(const float (&f)[kCount]) {
  Vector<T, kCount> v;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    if constexpr (sizeof(typename T::Raw) == 2) {
      const unsigned bits = T::narrow(f[i], f[i + 1]);
      v.at[i] = static_cast<typename T::Raw>(bits & 0xFFFFu);
      v.at[i + 1] = static_cast<typename T::Raw>(bits >> 16);
    } else {
      v.at[i] = f[i];
      v.at[i + 1] = f[i + 1];
    }
  }
  return v;
}
)cuda";

}  // namespace ct
