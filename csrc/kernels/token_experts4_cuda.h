// The CUDA text of token_experts for weights of 4 bits in the form mxfp4. The texts of
// token_linear_cuda.h and of token_ring_cuda.h come before it, with PICKS 1 or 2 and CODES 3.
//
// It is token_linear_codes for several matrices, whose boxes are copied into slots on the way as in
// token_experts_cuda.h. A box has 16 rows, and a row of it has the codes of WIDTH columns, and
// behind them the scale of each 32 columns: see mxfp4.h.
//
// A code is exact in float16, and times 2^-14 its bits are those of the code, moved. Each lane has
// 32 columns of two rows, the columns of one scale. The four lanes of a row have four scales, so
// their sums may not meet. A lane multiplies its columns with two columns of the matrix B of
// m16n8k16 that are zeros for the other lanes: the high and the low part of the input. So a lane
// ends with the sums of its own columns, and multiplies them with its scale in float32.
#pragma once

namespace ct {

inline constexpr char kTokenExperts4Text[] = R"cuda(
constexpr int kWarps = 8, kRows = 2 * PAIRS, kLines = WIDTH / 128, kRounds = (kLines + kWarps - 1) / kWarps;
constexpr int kHeld = 8;  // turns whose sums wait in shared memory: then the warps meet
static_assert(PAIRS == 8 && WIDTH % 128 == 0, "a warp multiplies 16 rows of 128 columns at a time");

struct Maps { Map all, slots; };

// Writes a box from shared memory into a slot. One thread runs it.
__device__ __forceinline__ void fill(const Map& slots, const unsigned char* box, int column, int row, int matrix) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];\ncp.async.bulk.commit_group;" ::"l"(&slots), "r"(column),
               "r"(row), "r"(matrix), "r"(address_of(box))
               : "memory");
}

// Returns the codes i and i + 4 of a word as numbers in float16, times 2^-14.
template <int i>
__device__ __forceinline__ unsigned numbers(unsigned word) {
  constexpr unsigned kMagnitude = 0x0E000E00u, kSign = 0x80008000u;
  if (i < 2) return (word << 8 * i) & (kMagnitude | kSign);
  return ((i == 2 ? word << 5 : word >> 3) & kMagnitude) | (word << (i == 2 ? 7 : 15) & kSign);
}

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

// Returns the power of two that the t-th of four scales tells. 255 is NaN. For 0 it is 0: 2^-127 is
// too small for what is multiplied here.
__device__ __forceinline__ float power_of(unsigned scales, int t) {
  const unsigned scale = __byte_perm(scales, 0, 0x4440 | t);
  return __uint_as_float(scale == 255 ? 0x7FC00000u : scale << 23);
}

// Loads 16 bytes of shared memory in lanes in which `loads` is true. In others `to` stays.
__device__ __forceinline__ void load_if(bool loads, uint4& to, unsigned from) {
  asm volatile("{\n.reg .pred loads;\nsetp.ne.s32 loads, %4, 0;\n@loads ld.shared.v4.u32 {%0, %1, %2, %3}, [%5];\n}"
               : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
               : "r"(static_cast<int>(loads)), "r"(from)
               : "memory");
}

extern "C" __global__ void __launch_bounds__(32 * (kWarps + 1)) token_experts4(const Linear l, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float parts[2][kHeld][kWarps][kRows];
  __shared__ int4 picks[TOP];
  __shared__ float shares[TOP];
  const Shared s(shared, l, kWarps);
  if (!begin_block<kWarps>(l, maps.all, s)) return;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  if (thread < TOP) {
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
      mine.bias = PICKS == 2 || l.bias == nullptr ? nullptr : l.bias + static_cast<size_t>(picks[own_pick].z) * l.rows;
      if (PICKS == 1) mine.out = static_cast<Raw*>(l.out) + static_cast<size_t>(own_pick) * (l.rows / 2);
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
        const int4 pick = picks[PICKS == 1 ? turn.matrix : part];
        const bool fills = pick.y >= 0 && thread == 0;
        float a = 0, b = 0;
        for (int box = 0; box < BOXES; ++box) {
          const unsigned inputs = own_inputs + 4 * (part * PADDED + box * WIDTH);
          Barrier{s.full + 8 * from.stage}.wait_for(from.phase);
          const unsigned char* const rows = s.ring + from.stage * kBoxBytes;
          if (fills) fill(maps.slots, rows, box * (STEP / 8), turn.group * kRowsOfGroup, (kTwoMatrices ? 2 : 1) * pick.x);
          uint4 first[kRounds], second[kRounds];
          unsigned first_scales[kRounds], second_scales[kRounds];
#pragma unroll
          for (int round = 0; round < kRounds; ++round) {
            // Behind the last line that line comes again, and its inputs stay zeros.
            const int line = round * kWarps + warp, there = (round + 1) * kWarps <= kLines ? line : min(line, kLines - 1);
            const unsigned char* const row = rows + g * kLine;
            first[round] = *reinterpret_cast<const uint4*>(row + there * 64 + t * 16);
            second[round] = *reinterpret_cast<const uint4*>(row + 8 * kLine + there * 64 + t * 16);
            first_scales[round] = *reinterpret_cast<const unsigned*>(row + WIDTH / 2 + there * 4);
            second_scales[round] = *reinterpret_cast<const unsigned*>(row + 8 * kLine + WIDTH / 2 + there * 4);
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
            a = fmaf(fmaf(even[1] + odd[1], 1 / kLowScale, even[0] + odd[0]), power_of(first_scales[round], t), a);
            b = fmaf(fmaf(even[3] + odd[3], 1 / kLowScale, even[2] + odd[2]), power_of(second_scales[round], t), b);
          }
          __syncwarp();
          if (fills) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the box may be replaced
          if (lane == 0) Barrier{s.empty + 8 * from.stage}.arrive();
          from.advance(l.stages);
        }
        first_sum = fmaf(shares[PICKS == 1 ? 0 : part], a, first_sum);
        second_sum = fmaf(shares[PICKS == 1 ? 0 : part], b, second_sum);
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
      of.write(mine, sum.x * (16384 / kHighScale), sum.y * (16384 / kHighScale), add);
    }
    buffer ^= 1;
  }
  if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
)cuda";

}  // namespace ct
