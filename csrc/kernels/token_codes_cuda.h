// The CUDA text of token_linear_codes, a form of token_linear_cuda.h for weights of 8 bits. That
// text and the one of token_ring_cuda.h come before it.
//
// Tensor cores multiply 16 rows of codes with the input, 16 columns at a time, and add in float32.
// A code is exact in float16. An input is two numbers in float16: a high part, and what that lacks.
// They are the columns 0 and 1 of the matrix B of m16n8k16. Its other columns are zeros. The error
// of an input is below 2^-22 of it, or 4e-9. An input above 1.6e7 gives NaN.
//
// The warps of a block share a group: each takes lines of 128 bytes of all its rows. Their sums
// meet in shared memory. With PAIRS 4 a group has eight rows, and the other eight of the tensor
// cores are zeros.
#pragma once

namespace ct {

inline constexpr char kTokenCodesText[] = R"cuda(
constexpr int kWarps = 8, kRows = 2 * PAIRS;
static_assert(kLine % (128 * kWarps) == 0, "each warp multiplies a line of 128 bytes at a time");

// Returns two codes of a word as numbers in float16: the low two, or the high two.
template <bool kHigh>
__device__ __forceinline__ unsigned numbers(unsigned codes) {
  unsigned pair;
#if CODES == 1
  // The bits of a number from 1024 to 1279 end in those of an unsigned code.
  const unsigned above = __byte_perm(codes ^ 0x80808080u, 0x64646464u, kHigh ? 0x4342 : 0x4140);
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(above), "r"(0x64806480u));  // minus 1152
#else
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<unsigned short>(kHigh ? codes >> 16 : codes & 0xFFFFu)));
#endif
  return pair;
}

// Adds the products of four columns a lane: `first` has the codes of the lane's row, `second` those
// of the row eight below, and x the inputs.
__device__ __forceinline__ void multiply(float (&sums)[4], unsigned first, unsigned second, unsigned x0, unsigned x1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(numbers<false>(first)), "r"(numbers<false>(second)), "r"(numbers<true>(first)), "r"(numbers<true>(second)), "r"(x0), "r"(x1));
}

extern "C" __global__ void __launch_bounds__(288) token_linear_codes(const Linear l, const __grid_constant__ Map map) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float parts[2][kWarps][kRows];
  const Shared s(shared, l, kWarps);
  if (!begin_block<kWarps>(l, map, s, nullptr)) return;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int groups = groups_of(l), pairs = pairs_of(l);
  Place from;
  int turn = 0;
  for (int group = blockIdx.x; group < groups; group += gridDim.x) {
    // The first threads finish a pair each.
    const int pair = group * PAIRS + thread;
    const bool finishes = thread < PAIRS && pair < pairs;
    const Pair of(l, pair);
    Addends add;
    float2 scale = make_float2(0, 0);
    if (finishes) {
      add = of.addends(l, l.bias);
      scale.x = l.scale[of.first];
      if (of.second < l.rows) scale.y = l.scale[of.second];
    }
    float sums[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    for (int box = 0; box < BOXES; ++box) {
      Barrier{s.full + 8 * from.stage}.wait_for(from.phase);
#pragma unroll
      for (int line = 0; line < kLine / 128; line += kWarps) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = (line + warp) * 128 + half * 64 + t * 16;  // 16 columns of this lane
          const unsigned char* const codes = s.ring + from.stage * kBoxBytes + g * kLine + at;
          const uint4 first = *reinterpret_cast<const uint4*>(codes);
          uint4 second = make_uint4(0, 0, 0, 0), x0 = second, x1 = second;
          if (PAIRS == 8) second = *reinterpret_cast<const uint4*>(codes + 8 * kLine);
          if (g < 2) {
            const uint4* const inputs = reinterpret_cast<const uint4*>(s.x + 2 * (box * WIDTH + at)) + g;
            x0 = inputs[0];
            x1 = inputs[2];
          }
          multiply(sums[0], first.x, second.x, x0.x, x0.y);
          multiply(sums[1], first.y, second.y, x0.z, x0.w);
          multiply(sums[0], first.z, second.z, x1.x, x1.y);
          multiply(sums[1], first.w, second.w, x1.z, x1.w);
        }
      }
      __syncwarp();
      if (lane == 0) Barrier{s.empty + 8 * from.stage}.arrive();
      from.advance(l.stages);
    }
    if (t == 0) {
      float* const to = parts[turn][warp];
      to[g] = (sums[0][0] + sums[1][0]) + (sums[0][1] + sums[1][1]) * (1 / kLowScale);
      if (PAIRS == 8) to[g + 8] = (sums[0][2] + sums[1][2]) + (sums[0][3] + sums[1][3]) * (1 / kLowScale);
    }
    meet<32 * kWarps>();
    if (finishes) {
      float2 sum = make_float2(0, 0);
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        sum.x += parts[turn][i][kTwoMatrices ? thread : 2 * thread];
        sum.y += parts[turn][i][kTwoMatrices ? PAIRS + thread : 2 * thread + 1];
      }
      of.write(l, sum.x * scale.x / kHighScale, sum.y * scale.y / kHighScale, add.sum());
    }
    turn ^= 1;
  }
}
)cuda";

}  // namespace ct
