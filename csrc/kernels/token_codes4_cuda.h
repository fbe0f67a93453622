// The CUDA text of token_codes4: products of one token with weights of 4 bits, for token_linear
// with PICKS 0, and for token_experts with PICKS 1 or 2. The texts of token_linear_cuda.h and of
// token_ring_cuda.h come before it, with CODES 3 or 4 and PAIRS 8.
//
// It is token_linear_codes for narrower codes, and for several matrices, whose boxes are copied
// into slots on the way as in token_experts_cuda.h. A box has 16 rows, and a row of it has the
// codes of WIDTH columns, and behind them the scale of each 32 columns: see codes4.h.
//
// A code is exact in float16. Each lane has 32 columns of two rows, the columns of one scale. The
// four lanes of a row have four scales, so their sums may not meet. A lane multiplies its columns
// with two columns of the matrix B of m16n8k16 that are zeros for the other lanes: the high and the
// low part of the input. So a lane ends with the sums of its own columns, and multiplies them with
// its scale in float32.
#pragma once

namespace ct {

inline constexpr char kTokenCodes4Text[] = R"cuda(
constexpr int kRows = 2 * PAIRS, kLines = WIDTH / 128, kWarps = kLines > 16 ? (kLines + 1) / 2 : 8;  // as warps4
constexpr int kRounds = (kLines + kWarps - 1) / kWarps;  // at most two
constexpr int kLeastBlocks = kWarps == 8 ? 2 : 1;        // of a multiprocessor: those of the next kernel begin early
constexpr int kHeld = 8;  // turns whose sums wait in shared memory: then the warps meet
static_assert(PAIRS == 8 && WIDTH % 128 == 0, "a warp multiplies 16 rows of 128 columns at a time");

// Writes a box from shared memory into a slot. One thread runs it.
__device__ __forceinline__ void fill(const Linear& l, const Boxes& boxes, const unsigned char* from, int box, int group, int slot) {
  const Piece piece(l, box, group * kRowsOfGroup);
  unsigned char* const to = const_cast<unsigned char*>(boxes.slots) + piece.offset(slot);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + i * piece.between), "r"(address_of(from + i * kRowsOfGroup * kLine)),
                 "r"(piece.bytes)
                 : "memory");
  }
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

#if CODES == 3
constexpr float kUnit = 1.f / 16384;  // of the numbers

// Returns the codes i and i + 4 of a word as numbers in float16, times 2^-14.
template <int i>
__device__ __forceinline__ unsigned numbers(unsigned word) {
  constexpr unsigned kMagnitude = 0x0E000E00u, kSign = 0x80008000u;
  if (i < 2) return (word << 8 * i) & (kMagnitude | kSign);
  return ((i == 2 ? word << 5 : word >> 3) & kMagnitude) | (word << (i == 2 ? 7 : 15) & kSign);
}

// Returns the power of two of 32 columns, the t-th of a line. 255 is NaN. For 0 it is 0: 2^-127 is
// too small for what is multiplied here.
using Scales = unsigned;
__device__ __forceinline__ float scale_of(Scales scales, int t) {
  const unsigned scale = __byte_perm(scales, 0, 0x4440 | t);
  return __uint_as_float(scale == 255 ? 0x7FC00000u : scale << 23);
}
#else
constexpr float kUnit = 1;

// Returns the codes i and i + 4 of a word as numbers in float16.
template <int i>
__device__ __forceinline__ unsigned numbers(unsigned word) {
  // The bits of a number from 1024 to 2047 end in those of an integer: here the code, or 16 times
  // it.
  unsigned pair = ((i < 2 ? word : word >> 8) & (i % 2 == 0 ? 0x000F000Fu : 0x00F000F0u)) | 0x64006400u;
  const unsigned times = i % 2 == 0 ? 0x3C003C00u : 0x2C002C00u, minus = i % 2 == 0 ? 0xE408E408u : 0xD480D480u;  // 1 and -1032, 1/16 and -72
  asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(pair) : "r"(times), "r"(minus));
  return pair;
}

// Returns the scale of 32 columns, the t-th of a line.
using Scales = uint2;
__device__ __forceinline__ float scale_of(Scales scales, int t) {
  const unsigned two = t < 2 ? scales.x : scales.y;
  return __uint_as_float(t % 2 == 0 ? two << 16 : two & 0xFFFF0000u);
}
#endif

// Adds the products of two numbers in each of a lane's two rows, and of four inputs, to `sums`, or
// begins these.
template <bool begins>
__device__ __forceinline__ void multiply(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned x0, unsigned x1) {
  if (begins) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(x0), "r"(x1), "f"(0.f));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(x0), "r"(x1));
  }
}

// Adds the products of a lane's eight columns, a word of two rows each.
template <bool begins>
__device__ __forceinline__ void add_word(float (&sums)[4], unsigned first, unsigned second, const uint4& x) {
  multiply<begins>(sums, numbers<0>(first), numbers<0>(second), numbers<1>(first), numbers<1>(second), x.x, x.y);
  multiply<false>(sums, numbers<2>(first), numbers<2>(second), numbers<3>(first), numbers<3>(second), x.z, x.w);
}

// Loads 16 bytes of shared memory in lanes in which `loads` is true. In others `to` stays.
__device__ __forceinline__ void load_if(bool loads, uint4& to, unsigned from) {
  asm volatile("{\n.reg .pred loads;\nsetp.ne.s32 loads, %4, 0;\n@loads ld.shared.v4.u32 {%0, %1, %2, %3}, [%5];\n}"
               : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
               : "r"(static_cast<int>(loads)), "r"(from)
               : "memory");
}

extern "C" __global__ void __launch_bounds__(32 * (kWarps + 1), kLeastBlocks) token_codes4(const Linear l, const __grid_constant__ Boxes boxes) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float parts[2][kHeld][kWarps][kRows];
  __shared__ int4 picks[TOP];
  __shared__ float shares[TOP];
  const Shared s(shared, l, kWarps);
  if (!begin_block<kWarps>(l, boxes, s)) return;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  if (PICKS != 0 && thread < TOP) {
    picks[thread] = __ldcg(l.picks + thread);
    shares[thread] = PICKS == 2 ? __ldcg(l.shares + thread) : 1;
  }
  meet<32 * kWarps>();
  const int groups = groups_of(l), pairs = pairs_of(l), turns = groups * kTurns;
  const bool own = g / 2 == t;  // this lane has inputs
  const unsigned own_inputs = address_of(s.x) + 32 * t + 16 * (g % 2);
  uint4 x[kRounds][4] = {};
  Place from;
  Turn turn(groups);
  int buffer = 0;
  for (int next = blockIdx.x; next < turns; next += kHeld * gridDim.x) {
    // The first threads finish a pair of one of the next turns each.
    const int own_turn = next + thread / PAIRS * gridDim.x, own_pick = own_turn / groups, pair = own_turn % groups * PAIRS + thread % PAIRS;
    const bool finishes = thread < kHeld * PAIRS && own_turn < turns && pair < pairs;
    const Pair of(l, pair);
    Linear mine = l;  // of this pick
    float2 add = make_float2(0, 0);
    if (finishes) {
      if (PICKS == 1 && l.bias != nullptr) mine.bias = l.bias + static_cast<size_t>(picks[own_pick].z) * l.rows;
      if (PICKS == 1) mine.out = static_cast<Raw*>(l.out) + static_cast<size_t>(own_pick) * (l.rows / 2);
      if (PICKS == 2) mine.bias = nullptr;
      add = of.addends(mine);
      for (int part = 0; PICKS == 2 && part < TOP && l.bias != nullptr; ++part) {
        const Raw* const bias = l.bias + static_cast<size_t>(picks[part].z) * l.rows;
        add.x = fmaf(shares[part], DTYPE::widen(bias[of.first]), add.x);
        if (of.second < l.rows) add.y = fmaf(shares[part], DTYPE::widen(bias[of.second]), add.y);
      }
    }
    for (int held = 0; held < kHeld && !turn.is_over(); ++held, turn.advance()) {
      float first_sum = 0, second_sum = 0;  // of this lane, in the rows g and g + 8
      for (int part = 0; part < kParts; ++part) {
        const int4 pick = PICKS == 0 ? make_int4(0, -1, 0, 0) : picks[PICKS == 1 ? turn.matrix : part];
        const bool fills = PICKS != 0 && pick.y >= 0 && thread == 0;
        float a = 0, b = 0;
        for (int box = 0; box < BOXES; ++box) {
          const unsigned inputs = own_inputs + 4 * (part * PADDED + box * WIDTH);
          Barrier{s.full + 8 * from.stage}.wait_for(from.phase);
          const unsigned char* const rows = s.ring + from.stage * kBoxBytes;
          if (fills) fill(l, boxes, rows, box, turn.group, pick.x);
          uint4 first[kRounds], second[kRounds];
          Scales first_scales[kRounds], second_scales[kRounds];
#pragma unroll
          for (int round = 0; round < kRounds; ++round) {
            // Behind the last line that line comes again, and its inputs stay zeros.
            const int line = round * kWarps + warp, there = (round + 1) * kWarps <= kLines ? line : min(line, kLines - 1);
            const unsigned char* const row = rows + g * kLine;
            first[round] = *reinterpret_cast<const uint4*>(row + there * 64 + t * 16);
            second[round] = *reinterpret_cast<const uint4*>(row + 8 * kLine + there * 64 + t * 16);
            first_scales[round] = *reinterpret_cast<const Scales*>(row + WIDTH / 2 + there * static_cast<int>(sizeof(Scales)));
            second_scales[round] = *reinterpret_cast<const Scales*>(row + 8 * kLine + WIDTH / 2 + there * static_cast<int>(sizeof(Scales)));
#pragma unroll
            for (int i = 0; i < 4; ++i) load_if(own && line < kLines, x[round][i], inputs + line * 512 + i * 128);
          }
#pragma unroll
          for (int round = 0; round < kRounds; ++round) {
            float even[4], odd[4];
            add_word<true>(even, first[round].x, second[round].x, x[round][0]);
            add_word<true>(odd, first[round].y, second[round].y, x[round][1]);
            add_word<false>(even, first[round].z, second[round].z, x[round][2]);
            add_word<false>(odd, first[round].w, second[round].w, x[round][3]);
            a = fmaf(fmaf(even[1] + odd[1], 1 / kLowScale, even[0] + odd[0]), scale_of(first_scales[round], t), a);
            b = fmaf(fmaf(even[3] + odd[3], 1 / kLowScale, even[2] + odd[2]), scale_of(second_scales[round], t), b);
          }
          __syncwarp();
          if (fills) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the box may be replaced
          if (lane == 0) Barrier{s.empty + 8 * from.stage}.arrive();
          from.advance(l.stages);
        }
        const float share = PICKS == 2 ? shares[part] : 1;
        first_sum = fmaf(share, a, first_sum);
        second_sum = fmaf(share, b, second_sum);
      }
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        first_sum += __shfl_xor_sync(0xFFFFFFFFu, first_sum, distance);
        second_sum += __shfl_xor_sync(0xFFFFFFFFu, second_sum, distance);
      }
      if (t == 0) {
        parts[buffer][held][warp][g] = first_sum;
        parts[buffer][held][warp][g + 8] = second_sum;
      }
    }
    meet<32 * kWarps>();
    if (finishes) {
      float2 sum = make_float2(0, 0);
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        const float* const of_warp = parts[buffer][thread / PAIRS][i];
        sum.x += of_warp[kTwoMatrices ? thread % PAIRS : 2 * (thread % PAIRS)];
        sum.y += of_warp[kTwoMatrices ? PAIRS + thread % PAIRS : 2 * (thread % PAIRS) + 1];
      }
      of.write(mine, sum.x / (kUnit * kHighScale), sum.y / (kUnit * kHighScale), add);
    }
    buffer ^= 1;
  }
  if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
)cuda";

}  // namespace ct
