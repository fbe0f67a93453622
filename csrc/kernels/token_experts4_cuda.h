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
constexpr int kWarps = 8, kRows = 2 * PAIRS;
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
  const unsigned magnitudes = i == 3 ? word >> 3 : word << (i == 3 ? 0 : 9 - 4 * i);
  return (magnitudes & 0x0E000E00u) | (word << (12 - 4 * i) & 0x80008000u);
}

__device__ __forceinline__ void multiply(float (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned x0, unsigned x1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(x0), "r"(x1));
}

// Adds the products of a lane's eight columns, a word of two rows each.
__device__ __forceinline__ void add_word(float (&sums)[4], unsigned first, unsigned second, const uint4& x) {
  multiply(sums, numbers<0>(first), numbers<0>(second), numbers<1>(first), numbers<1>(second), x.x, x.y);
  multiply(sums, numbers<2>(first), numbers<2>(second), numbers<3>(first), numbers<3>(second), x.z, x.w);
}

// Returns the power of two that a scale tells. 255 is NaN.
__device__ __forceinline__ float power(unsigned scale) {
  return __uint_as_float(scale == 255 ? 0x7FC00000u : scale == 0 ? 0x00400000u : scale << 23);
}

extern "C" __global__ void __launch_bounds__(288) token_experts4(const Linear l, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float parts[2][kWarps][kRows];
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
  const int groups = groups_of(l), pairs = pairs_of(l);
  Place from;
  int buffer = 0;
  for (int turn = blockIdx.x; turn < groups * kTurns; turn += gridDim.x) {
    // The first threads finish a pair each.
    const int k = turn / groups, pair = turn % groups * PAIRS + thread;
    const bool finishes = thread < PAIRS && pair < pairs;
    const Pair of(l, pair);
    Linear own = l;  // of this pick
    float2 add = make_float2(0, 0);
    if (finishes) {
      own.bias = PICKS == 2 || l.bias == nullptr ? nullptr : l.bias + static_cast<size_t>(picks[k].z) * l.rows;
      if (PICKS == 1) own.out = static_cast<Raw*>(l.out) + static_cast<size_t>(k) * (l.rows / 2);
      add = of.addends(own);
      for (int part = 0; PICKS == 2 && part < TOP && l.bias != nullptr; ++part) {
        const Raw* const bias = l.bias + static_cast<size_t>(picks[part].z) * l.rows;
        add.x = fmaf(shares[part], DTYPE::widen(bias[of.first]), add.x);
        if (of.second < l.rows) add.y = fmaf(shares[part], DTYPE::widen(bias[of.second]), add.y);
      }
    }
    float first_sum = 0, second_sum = 0;  // of this lane, in the rows g and g + 8
    for (int part = 0; part < kParts; ++part) {
      const int4 pick = picks[PICKS == 1 ? k : part];
      const bool fills = pick.y >= 0 && thread == 0;
      float a = 0, b = 0;
      for (int box = 0; box < BOXES; ++box) {
        Barrier{s.full + 8 * from.stage}.wait_for(from.phase);
        const unsigned char* const rows = s.ring + from.stage * kBoxBytes;
        if (fills) fill(maps.slots, rows, box * (kLine / 8), turn % groups * kRowsOfGroup, (kTwoMatrices ? 2 : 1) * pick.x);
        for (int line = warp; line < WIDTH / 128; line += kWarps) {
          const unsigned char* const row = rows + g * kLine;
          const int at = line * 64 + t * 16, scale = WIDTH / 2 + line * 4 + t;
          const uint4 first = *reinterpret_cast<const uint4*>(row + at), second = *reinterpret_cast<const uint4*>(row + 8 * kLine + at);
          const float first_power = power(row[scale]), second_power = power(row[8 * kLine + scale]);
          uint4 x[4] = {};
          if (g / 2 == t) {
            const uint4* const inputs = reinterpret_cast<const uint4*>(s.x + 2 * (part * PADDED + box * WIDTH + line * 128 + t * 32)) + g % 2;
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] = inputs[2 * i];
          }
          float sums[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
          add_word(sums[0], first.x, second.x, x[0]);
          add_word(sums[1], first.y, second.y, x[1]);
          add_word(sums[0], first.z, second.z, x[2]);
          add_word(sums[1], first.w, second.w, x[3]);
          a = fmaf((sums[0][0] + sums[1][0]) + (sums[0][1] + sums[1][1]) * (1 / kLowScale), first_power, a);
          b = fmaf((sums[0][2] + sums[1][2]) + (sums[0][3] + sums[1][3]) * (1 / kLowScale), second_power, b);
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
      parts[buffer][warp][g] = first_sum;
      parts[buffer][warp][g + 8] = second_sum;
    }
    meet<32 * kWarps>();
    if (finishes) {
      float2 sum = make_float2(0, 0);
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        sum.x += parts[buffer][i][kTwoMatrices ? thread : 2 * thread];
        sum.y += parts[buffer][i][kTwoMatrices ? PAIRS + thread : 2 * thread + 1];
      }
      of.write(own, sum.x * (16384 / kHighScale), sum.y * (16384 / kHighScale), add);
    }
    buffer ^= 1;
  }
  if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
)cuda";

}  // namespace ct
