// The CUDA text of token_linear_direct, a form of token_linear_cuda.h, whose text comes before it.
//
// A warp asks for the next 1024 columns of a pair while it multiplies those before. It needs
// neither shared memory for weights nor tensor maps, so it runs on compute capability 8.0.
#pragma once

namespace ct {

inline constexpr char kTokenDirectText[] = R"cuda(
__device__ __forceinline__ uint4 load_weights(const Raw* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

// The weights of one lane, in 1024 columns of a pair.
struct Piece {
  uint4 first[4], second[4];

  __device__ __forceinline__ void load(const Linear& l, int pair, int piece) {
    const Pair of(l, pair);
    const Raw* const a = l.weight + static_cast<size_t>(of.first) * COLUMNS;
    const Raw* const b = l.weight + static_cast<size_t>(of.second < l.rows ? of.second : of.first) * COLUMNS;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = piece * 1024 + i * 256 + threadIdx.x % 32 * 8;
      first[i] = second[i] = make_uint4(0, 0, 0, 0);
      if (COLUMNS % 1024 != 0 && at >= COLUMNS) continue;
      first[i] = load_weights(a + at);
      second[i] = load_weights(b + at);
    }
  }
};

extern "C" __global__ void __launch_bounds__(256, 2) token_linear_direct(const Linear l) {
  extern __shared__ __align__(128) unsigned char shared[];
  Raw* const x = reinterpret_cast<Raw*>(shared);
  float* const room = reinterpret_cast<float*>(x + PADDED);
  begin();
  const int lane = threadIdx.x % 32, warps = gridDim.x * 8, pairs = pairs_of(l);
  int pair = blockIdx.x + threadIdx.x / 32 * gridDim.x, piece = 0;
  Piece next;
  if (pair < pairs) next.load(l, pair, 0);
  Norms<256> norms;
  norms.load(l);
  wait();
  make_input<256>(l, norms, x, room);
  float a[2] = {0, 0}, b[2] = {0, 0};
  Addends add;
  while (pair < pairs) {
    const Piece now = next;
    const int of = pair, from = piece * 1024;
    if (piece == 0) {
      a[0] = a[1] = b[0] = b[1] = 0;
      if (lane == 0) add = Pair(l, of).addends(l, l.bias);
    }
    if (++piece == PADDED / 1024) {
      piece = 0;
      pair += warps;
    }
    if (pair < pairs) next.load(l, pair, piece);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float v[8];
      widen(*reinterpret_cast<const Eight*>(x + from + i * 256 + lane * 8), v);
      multiply(a[0], a[1], now.first[i], v);
      multiply(b[0], b[1], now.second[i], v);
    }
    if (piece == 0) {
      const float first = sum_of_warp(a[0] + a[1]), second = sum_of_warp(b[0] + b[1]);
      if (lane == 0) Pair(l, of).write(l, first, second, add.sum());
    }
  }
}
)cuda";

}  // namespace ct
