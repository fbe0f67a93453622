// The CUDA text of products with one row: token_linear.cc compiles and launches it.
//
// The text of token_instructions_cuda.h comes before it.
//
// A product of one row reads each weight once, so the memory's speed bounds it. Two of its outputs
// are a pair. Four kernels compute it:
//
//   token_linear_direct   each warp computes pairs, and loads their weights into registers:
//                         token_direct_cuda.h
//   token_linear_boxes    one thread of a block copies boxes of weights into a ring in shared
//                         memory, and each of four warps computes pairs: token_boxes_cuda.h
//   token_linear_codes    the same ring with weights of 8 bits; the warps share all pairs of a
//                         block, and use tensor cores: token_codes_cuda.h
//   token_codes4          the same with weights of 4 bits, and integers: token_codes4_cuda.h
//
// All ask for weights before their wait: Note [Programmatic edges]. Then each block makes the
// input of the product in shared memory. It is the same in all blocks.
//
// The text is compiled for one set of these macros:
//
//   DTYPE     BFloat16 or Half: the dtype of the weights, and of the input of the product
//   CODES     what the weights are: 0 numbers in DTYPE, 1 int8, 2 float8_e4m3fn, 3 mxfp4, 4 int4,
//             5 int4-128
//   PAIRS     pairs in a group, which a block computes together
//   INPUT     the dtype of `input`: DTYPE or Float
//   COLUMNS   the elements of a row, a multiple of 8
//   PADDED    the elements of the product's input in shared memory: the last ones are zeros
//   NORM      1: the input goes through an RMS norm first
//   LATE      1: the normed `late` is added to the input before that, and the sum is written
//   OFFSET    what is added to the weights of both norms: 0 or 1
//   EPILOGUE  what becomes of the products a and b of a pair, which are those of adjacent rows,
//             or in 3 and 4 those of row i and row i + rows / 2:
//               0  a and b in DTYPE
//               1  a and b in float32
//               2  a and b are added to the residual, in float32
//               3  silu(a) * b in DTYPE
//               4  gelu(a) * b in DTYPE, with tanh
//               5  of adjacent rows, (clamp(b) + 1) * a * sigmoid(alpha * a) in DTYPE, where a is
//                  at most `limit`, and b between -limit and limit
//   PICKS     0: there is one matrix; else TOP of many are used, and `picks` has their numbers
//               1  each gives results of its own
//               2  each has an input of its own, and their results are summed by shares
//   EDGE      see edges.h
#pragma once

namespace ct {

inline constexpr char kTokenLinearText[] = R"cuda(
using Raw = DTYPE::Raw;
using Eight = Vector<DTYPE, 8>;
struct alignas(64) Map { unsigned char opaque[128]; };

struct Linear {
  const void* input;
  const Raw* weight;
  const Raw* bias;        // or NULL
  const float* norm;
  const float* late;
  const float* late_norm;
  float* sum;             // of the input and the normed late
  const float* residual;
  const float* scale;     // of the codes of each row, or NULL
  void* out;
  const int4* picks;      // the matrices that are used: see token_experts_cuda.h
  const float* shares;    // of each pick in the sum, or NULL
  float eps;
  float limit;            // of epilogue 5
  float alpha;            // the same
  int rows;               // of a matrix
  int stages;             // of the ring
  int window;             // stages of the ring that are on their way at the same time
};

constexpr int kParts = PICKS == 2 ? TOP / SPLIT : 1;  // of a sum, one for each matrix, with an input of its own
constexpr bool kTwoMatrices = EPILOGUE == 3 || EPILOGUE == 4;

template <int kThreads>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// Returns the sum of v over all threads. `room` has space for one float of each warp.
template <int kThreads>
__device__ __forceinline__ float sum_of_block(float v, float* room) {
  v = sum_of_warp(v);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
  meet<kThreads>();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) sum += room[i];
  return sum;
}

__device__ __forceinline__ void load_floats(float (&to)[8], const float* from) {
  const float4 a = __ldcg(reinterpret_cast<const float4*>(from)), b = __ldcg(reinterpret_cast<const float4*>(from) + 1);
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

constexpr int kInput = CODES >= 3 ? PADDED : COLUMNS;  // columns that are put

// The weights of the norms, for the columns of one thread. They are loaded before the wait.
template <int kThreads>
struct Norms {
  static constexpr int kSteps = (kInput / 8 + kThreads - 1) / kThreads;
  static constexpr bool kAhead = kSteps <= 4;  // more need too many registers
  float norm[NORM && kAhead ? kSteps : 1][8], late[LATE && kAhead ? kSteps : 1][8];

  __device__ __forceinline__ void load(const Linear& l) {
    if constexpr (kAhead) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int at = (i * kThreads + threadIdx.x) * 8;
        if (at >= COLUMNS) continue;
        if constexpr (NORM) load_floats(norm[i], l.norm + at);
        if constexpr (LATE) load_floats(late[i], l.late_norm + at);
      }
    }
  }
};

#if CODES == 1 || CODES == 2
constexpr float kHighScale = 1.f / 256, kLowScale = 2048;  // of the two parts of the input
#endif

#if CODES >= 3
// Of 32 columns of the input, which are integers times `scale`. `eight_sums` is eight times their
// sum, which the products of int4 are too large by.
struct InputScale {
  float scale;
  int eight_sums;
};

__device__ __forceinline__ InputScale* scales_of_inputs(Raw* x) { return reinterpret_cast<InputScale*>(x + kParts * PADDED); }

// Returns the byte `which` of four numbers.
__device__ __forceinline__ unsigned bytes_of(unsigned a, unsigned b, unsigned c, unsigned d, int which) {
  const unsigned two = which | (4 + which) << 4;
  return __byte_perm(__byte_perm(a, b, two), __byte_perm(c, d, two), 0x5410);
}

// Note [Integers of the input]
//
// Tensor cores multiply codes of 4 bits with integers. So each 32 columns of the input, whose
// weights share a scale, become integers of 16 bits. The largest of them is 32,512. An integer is
// 256 times its high part, and its low part. Both have eight bits, and lie 32 bytes from each
// other. The sums are exact. A column errs by 2^-16 of the largest of its 32, where rounding to
// bfloat16 errs by 2^-9 of itself. If one is not finite, the scale is NaN, and so are the results.
// Columns below 1/128 of the largest are coarser than in bfloat16. 32 columns that are all below
// 2^-111 become zeros, and a sum may be infinite where columns reach 2^120.
__device__ __forceinline__ void put_integers(Raw* x, int at, const float (&v)[8]) {
  const unsigned four = 0xFu << (threadIdx.x % 32 / 4 * 4);  // the lanes of these 32 columns
  unsigned most = 0;                                           // as a float
#pragma unroll
  for (int i = 0; i < 8; ++i) most = max(most, __float_as_uint(v[i]) & 0x7FFFFFFFu);
  most = max(most, __shfl_xor_sync(four, most, 1));
  most = max(most, __shfl_xor_sync(four, most, 2));
  const float scale = __uint_as_float(most < 0x7F800000u ? most : 0x7FC00000u) * (1.f / 32512);
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(scale));
  if (!(scale >= 1.1754944e-38f)) inverse = 0;
  unsigned low[8], high[8];  // whose byte 0, and 1, is wanted
  unsigned sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    constexpr unsigned kBits = 0x4B400000u;  // of 1.5 * 2^23: the integer is in the lowest bits
    low[i] = __float_as_uint(fmaf(v[i], inverse, 12582912.f));
    high[i] = low[i] + 128;
    sum += low[i] - kBits;
  }
  if (CODES >= 4) {
    sum += __shfl_xor_sync(four, sum, 1);
    sum += __shfl_xor_sync(four, sum, 2);
  }
  if (threadIdx.x % 4 == 0) scales_of_inputs(x)[at / 32] = {scale, static_cast<int>(8 * sum)};
  // In the order in which a word's codes of 4 bits come.
  constexpr int kStep = CODES >= 4 ? 2 : 1, kNext = CODES >= 4 ? 1 : 4;
  const auto both = [&](const unsigned(&of)[8], int which) {
    return make_uint2(bytes_of(of[0], of[kStep], of[2 * kStep], of[3 * kStep], which), bytes_of(of[kNext], of[kNext + kStep], of[kNext + 2 * kStep], of[kNext + 3 * kStep], which));
  };
  unsigned char* const to = reinterpret_cast<unsigned char*>(x) + at / 32 * 64 + at / 8 % 4 * 8;
  *reinterpret_cast<uint2*>(to) = both(high, 1);
  *reinterpret_cast<uint2*>(to + 32) = both(low, 0);
}
#endif

// Writes eight columns of the input of the product, from `at` on, into shared memory. With codes of
// 4 bits four lanes that are neighbours write 32 columns together.
__device__ __forceinline__ void put(Raw* x, int at, const float (&v)[8]) {
#if CODES == 0
  *reinterpret_cast<Eight*>(x + at) = narrow<DTYPE>(v);
#elif CODES < 3
  // Tensor cores multiply numbers in float16. Two of them, the second one for what the first one
  // has lost, have the range and the digits of v: see token_codes_cuda.h.
  float high[8], low[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    high[i] = v[i] * kHighScale;
    low[i] = (high[i] - Half::widen(Half::narrow(high[i]))) * kLowScale;
  }
  Vector<Half, 8>* const to = reinterpret_cast<Vector<Half, 8>*>(x + 2 * at);
  to[0] = narrow<Half>(high);
  to[1] = narrow<Half>(low);
#else
  put_integers(x, at, v);
#endif
}

// Writes the input of the product into x, in shared memory: PADDED numbers in DTYPE, or with codes
// of 8 bits 2 * PADDED in float16, eight high parts and eight low parts in turn. Codes of 4 bits
// take Note [Integers of the input]. `room` has 2 * kThreads / 32 floats.
template <int kThreads>
__device__ __forceinline__ void make_input(const Linear& l, const Norms<kThreads>& norms, Raw* x, float* room) {
  constexpr int kSteps = Norms<kThreads>::kSteps;
  const int thread = threadIdx.x;
  if (PADDED > kInput) {
    const float zeros[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int at = kInput + thread * 8; at < PADDED; at += kThreads * 8) put(x, at, zeros);
  }
  if constexpr (sizeof(INPUT::Raw) == 2) {
    constexpr int kTogether = kSteps < 8 ? kSteps : 8;
#pragma unroll
    for (int from = 0; from < kSteps; from += kTogether) {
      uint4 some[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int at = (from + i) * kThreads + thread;
        some[i] = make_uint4(0, 0, 0, 0);
        if (from + i < kSteps && at < COLUMNS / 8) some[i] = __ldcg(static_cast<const uint4*>(l.input) + at);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int at = (from + i) * kThreads + thread;
        if (from + i >= kSteps || at >= kInput / 8) continue;
        if constexpr (CODES == 0) {
          reinterpret_cast<uint4*>(x)[at] = some[i];
        } else {
          float v[8];
          widen(*reinterpret_cast<const Eight*>(&some[i]), v);
          put(x, at * 8, v);
        }
      }
    }
  } else {
    float v[kSteps][8] = {};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int at = (i * kThreads + thread) * 8;
      if (at < COLUMNS) load_floats(v[i], static_cast<const float*>(l.input) + at);
    }
    if constexpr (LATE) {
      float late[kSteps][8], squares = 0;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int at = (i * kThreads + thread) * 8;
        if (at >= COLUMNS) continue;
        load_floats(late[i], l.late + at);
#pragma unroll
        for (int k = 0; k < 8; ++k) squares = fmaf(late[i][k], late[i][k], squares);
      }
      const float scale = rsqrtf(sum_of_block<kThreads>(squares, room) / COLUMNS + l.eps);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int at = (i * kThreads + thread) * 8;
        if (at >= COLUMNS) continue;
        float w[8];
        if constexpr (Norms<kThreads>::kAhead) {
#pragma unroll
          for (int k = 0; k < 8; ++k) w[k] = norms.late[i][k];
        } else {
          load_floats(w, l.late_norm + at);
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) v[i][k] = fmaf(late[i][k] * scale, w[k] + OFFSET, v[i][k]);
        if (blockIdx.x == 0) {
          *reinterpret_cast<float4*>(l.sum + at) = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
          *reinterpret_cast<float4*>(l.sum + at + 4) = make_float4(v[i][4], v[i][5], v[i][6], v[i][7]);
        }
      }
    }
    float scale = 1;
    if constexpr (NORM) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if ((i * kThreads + thread) * 8 >= COLUMNS) continue;
#pragma unroll
        for (int k = 0; k < 8; ++k) squares = fmaf(v[i][k], v[i][k], squares);
      }
      scale = rsqrtf(sum_of_block<kThreads>(squares, room + kThreads / 32) / COLUMNS + l.eps);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int at = (i * kThreads + thread) * 8;
      if (at >= kInput) continue;
      if constexpr (NORM) {
        float w[8] = {};
        if constexpr (Norms<kThreads>::kAhead) {
#pragma unroll
          for (int k = 0; k < 8; ++k) w[k] = at < COLUMNS ? norms.norm[i][k] : 0;
        } else if (at < COLUMNS) {
          load_floats(w, l.norm + at);
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) v[i][k] *= scale * (w[k] + OFFSET);
      }
      put(x, at, v[i]);
    }
  }
  meet<kThreads>();
}

#if CODES == 0
// Adds the product of eight weights and eight inputs to two sums.
__device__ __forceinline__ void multiply(float& even, float& odd, const uint4& weights, const float (&x)[8]) {
  float w[8];
  widen(*reinterpret_cast<const Eight*>(&weights), w);
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    even = fmaf(w[i], x[i], even);
    odd = fmaf(w[i + 1], x[i + 1], odd);
  }
}
#endif

// What is added to the products of a pair, as it was loaded: the first arithmetic with it waits for
// the memory.
struct Addends {
  float2 residual = {0, 0};
  Raw bias[2] = {};

  __device__ __forceinline__ float2 sum() const { return make_float2(residual.x + DTYPE::widen(bias[0]), residual.y + DTYPE::widen(bias[1])); }
};

// A pair of outputs: the rows of its weights, and what its sums become.
struct Pair {
  int first, second;

  __device__ __forceinline__ Pair(const Linear& l, int pair) : first(kTwoMatrices ? pair : 2 * pair), second(kTwoMatrices ? pair + l.rows / 2 : 2 * pair + 1) {}

  // Asks for what is added to the products, with the bias of this matrix, or NULL.
  __device__ __forceinline__ Addends addends(const Linear& l, const Raw* bias) const {
    Addends add;
    if (EPILOGUE == 2) add.residual = make_float2(__ldcg(l.residual + first), second < l.rows ? __ldcg(l.residual + second) : 0);
    if (bias != nullptr) {
      add.bias[0] = bias[first];
      if (second < l.rows) add.bias[1] = bias[second];
    }
    return add;
  }

  __device__ __forceinline__ void write(const Linear& l, float a, float b, float2 add) const {
    a += add.x, b += add.y;
    if constexpr (EPILOGUE == 5) {
      a = a > l.limit ? l.limit : a, b = b > l.limit ? l.limit : b < -l.limit ? -l.limit : b;  // a NaN stays
      static_cast<Raw*>(l.out)[first / 2] = DTYPE::narrow(__fdividef(a, 1 + __expf(-l.alpha * a)) * (b + 1));
    } else if constexpr (EPILOGUE == 3) {
      static_cast<Raw*>(l.out)[first] = DTYPE::narrow(__fdividef(a, 1 + __expf(-a)) * b);
    } else if constexpr (EPILOGUE == 4) {
      const float inner = 0.7978845608f * (a + 0.044715f * a * a * a);
      static_cast<Raw*>(l.out)[first] = DTYPE::narrow(0.5f * a * (1 + tanhf(inner)) * b);
    } else if constexpr (EPILOGUE == 0) {
      static_cast<Raw*>(l.out)[first] = DTYPE::narrow(a);
      if (second < l.rows) static_cast<Raw*>(l.out)[second] = DTYPE::narrow(b);
    } else {
      static_cast<float*>(l.out)[first] = a;
      if (second < l.rows) static_cast<float*>(l.out)[second] = b;
    }
  }
};

__device__ __forceinline__ int pairs_of(const Linear& l) { return (l.rows + 1) / 2; }
)cuda";

}  // namespace ct
