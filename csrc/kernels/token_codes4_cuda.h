// The CUDA text of token_codes4: products of one token with weights of 4 bits, for token_linear
// with PICKS 0, and for token_experts with PICKS 1 or 2. The texts of token_linear_cuda.h and of
// token_ring_cuda.h come before it, with CODES 3, 4 or 5 and PAIRS 8.
//
// It is token_linear_codes for narrower codes, and for several matrices, whose boxes are copied
// into slots on the way as in token_experts_cuda.h. A box has 16 rows, and a row of it has the
// codes of WIDTH columns, and behind them the scales: see codes4.h.
//
// Tensor cores multiply codes with integers: Note [Integers of the input] in token_linear_cuda.h.
// Each lane has 32 columns of two rows, the columns of one scale of the input. The four lanes of a
// row have four scales, so their sums may not meet. A lane multiplies its columns with two columns
// of the matrix B of m16n8k32: the high and the low parts of the input. They are zeros for the
// other lanes. So a lane ends with the sums of its own columns, and multiplies them with its scales
// in float32.
//
// The text is compiled for one more macro:
//
//   WARPS  that multiply: warps4 in token_product.h
#pragma once

namespace ct {

inline constexpr char kTokenCodes4Text[] = R"cuda(
constexpr int kRows = 2 * PAIRS, kLines = WIDTH / 128, kWarps = WARPS;
constexpr int kUnits = TOGETHER * kLines, kRounds = (kUnits + kWarps - 1) / kWarps;  // a unit is a line of a box's rows
constexpr bool kSame = BOXES == 1 && PICKS != 2 && kRounds <= 3;  // all boxes have one input, which stays in registers
constexpr int kHeld = 8;  // turns whose sums wait in shared memory: then the warps meet
static_assert(PAIRS == 8 && WIDTH % 128 == 0, "a warp multiplies 16 rows of 128 columns at a time");
static_assert(TOGETHER == 1 || BOXES == 1, "inputs of boxes that are together lie behind each other");

// Returns which row of a box is row g of the product, for g below 8. Eight lanes load 64 bytes of
// two rows at once. The order makes the banks of these rows differ.
__device__ __forceinline__ int row_of(int g) {
  constexpr int kChunks = kLine / 16;
  if (kChunks % 2 != 0) return g / 2 + g % 2 * 4;
  if (kChunks % 4 != 0) return g / 4 * 4 + g / 2 % 2 + g % 2 * 2;
  return g;
}

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
constexpr float kUnit = 0.5f;  // of the numbers that are multiplied

// The power of two of 32 columns. 255 is NaN. 0, which is 2^-127, becomes 0.
using Scale = unsigned char;
__device__ __forceinline__ float widen_scale(Scale scale) { return __uint_as_float(scale == 255 ? 0x7FC00000u : static_cast<unsigned>(scale) << 23); }
#else
constexpr float kUnit = 1;

using Scale = unsigned short;
__device__ __forceinline__ float widen_scale(Scale scale) { return BFloat16::widen(scale); }
#endif

// Adds to `sums` the products of eight codes in each of a lane's two rows with eight inputs. a0 and
// a2 are of the first row, a1 and a3 of the second.
__device__ __forceinline__ void multiply(int (&sums)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint2 x) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(x.x), "r"(x.y));
}

// The bytes that codes of mxfp4 become, twice their numbers: four here, and four in `numbers`.
constexpr unsigned kFirstFour = 0x03020100u;

// Returns four codes of mxfp4 as bytes. One whose highest bit is set becomes 0. `first_four` is
// kFirstFour in a register: the compiler would copy a constant each time.
__device__ __forceinline__ unsigned numbers(unsigned codes, unsigned first_four) {
  unsigned made;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(made) : "r"(first_four), "r"(0x0C080604u), "r"(codes));
  return made;
}

// The products of a unit in a lane's two rows, g and g + 8.
struct Products {
  int sums[2][4] = {};  // in mxfp4 those of positive and of negative numbers

  // Adds those of a word of each row, the i-th.
  __device__ __forceinline__ void add(int i, unsigned first, unsigned second, uint2 x, unsigned first_four) {
#if CODES == 3
    const auto number = [&](unsigned codes) { return numbers(codes, first_four); };
    multiply(sums[0], number(first), number(second), number(first >> 16), number(second >> 16), x);
    first ^= 0x88888888u, second ^= 0x88888888u;
    multiply(sums[1], number(first), number(second), number(first >> 16), number(second >> 16), x);
#else
    constexpr unsigned kCodes = 0x0F0F0F0Fu;
    multiply(sums[i % 2], first & kCodes, second & kCodes, first >> 4 & kCodes, second >> 4 & kCodes, x);
#endif
  }

  // Returns the sum of a row, 0 or 1.
  __device__ __forceinline__ float of(int row, InputScale input) const {
    const int high = 2 * row, low = 2 * row + 1;
#if CODES == 3
    const int sum = (sums[0][high] - sums[1][high]) * 256 + (sums[0][low] - sums[1][low]);
#else
    const int sum = (sums[0][high] + sums[1][high]) * 256 + (sums[0][low] + sums[1][low]) - input.eight_sums;
#endif
    return static_cast<float>(sum) * input.scale;
  }
};

// Adds a unit's products of two rows to `sums`. `row` is that of the first one in the box.
__device__ __forceinline__ void add_unit(float2& sums, const unsigned char* row, int line, const uint4 (&x)[2], InputScale input, float share, unsigned first_four) {
  const int t = threadIdx.x % 4;
  const unsigned char* const other = row + 8 * kLine;
  const uint4 first = *reinterpret_cast<const uint4*>(row + line * 64 + t * 16), second = *reinterpret_cast<const uint4*>(other + line * 64 + t * 16);
  const int scale = CODES == 5 ? line : line * 4 + t, of_scale = WIDTH / 2 + scale * static_cast<int>(sizeof(Scale));
  const Scale first_scale = *reinterpret_cast<const Scale*>(row + of_scale), second_scale = *reinterpret_cast<const Scale*>(other + of_scale);
  Products products;
  products.add(0, first.x, second.x, make_uint2(x[0].x, x[0].y), first_four);
  products.add(1, first.y, second.y, make_uint2(x[0].z, x[0].w), first_four);
  products.add(2, first.z, second.z, make_uint2(x[1].x, x[1].y), first_four);
  products.add(3, first.w, second.w, make_uint2(x[1].z, x[1].w), first_four);
  sums.x = fmaf(products.of(0, input), share * widen_scale(first_scale), sums.x);
  sums.y = fmaf(products.of(1, input), share * widen_scale(second_scale), sums.y);
}

// Loads 16 bytes of shared memory in lanes in which `loads` is true. In others `to` stays.
__device__ __forceinline__ void load_if(bool loads, uint4& to, unsigned from) {
  asm volatile("{\n.reg .pred loads;\nsetp.ne.s32 loads, %4, 0;\n@loads ld.shared.v4.u32 {%0, %1, %2, %3}, [%5];\n}"
               : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
               : "r"(static_cast<int>(loads)), "r"(from));
}

// Reports whether the block is the first of its cluster, which writes the results.
__device__ __forceinline__ bool is_first() { return SPLIT == 1 || blockIdx.x % SPLIT == 0; }

#if SPLIT > 1
static_assert(SPLIT == 2, "the second block pushes its sums to the first one");

// Returns the sum of both blocks of the cluster in the first one. A block has at most kHeld turns,
// so each of the first threads calls it once.
__device__ __forceinline__ float2 sum_of_cluster(float2 own, float2* of_other, Barrier pushed) {
  if (!is_first()) {
    push_to(0, own, of_other, pushed);
    return own;
  }
  wait_for_pushes(pushed, 0);
  return make_float2(own.x + of_other->x, own.y + of_other->y);
}
#endif

extern "C" __global__ void __launch_bounds__(32 * (kWarps + 1), 2) token_codes4(const Linear l, const __grid_constant__ Boxes boxes) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float parts[2][kHeld][kWarps][kRows];
  __shared__ Pick picks[TOP];
#if SPLIT > 1
  __shared__ float2 of_other[kHeld * PAIRS];
  __shared__ unsigned long long of_pushed;
  const Barrier pushed{address_of(&of_pushed)};
  expect_pushes(pushed, sizeof of_other);
#endif
#if CODES == 3
  __shared__ volatile unsigned in_register;
  if (threadIdx.x == 0) in_register = kFirstFour;
#endif
  const Shared s(shared, l, kWarps);
  if (!begin_block<kWarps>(l, boxes, s, picks)) return;
#if SPLIT > 1
  await_cluster();
#endif
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int groups = groups_of(l), pairs = pairs_of(l), turns = groups * kTurns;
  const bool own = g / 2 == t;  // this lane has inputs
  const unsigned own_inputs = address_of(s.x) + 64 * t + 32 * (g % 2);
  const InputScale* const scales_of_x = scales_of_inputs(s.x) + t;
  uint4 x[kSame ? kRounds : 1][2] = {};
  const auto load_inputs = [&](uint4(&to)[2], unsigned at) {
    load_if(own, to[0], at);
    load_if(own, to[1], at + 16);
  };
#pragma unroll
  for (int round = 0; kSame && round < kRounds; ++round) {
    if (round * kWarps + warp < kUnits) load_inputs(x[round], own_inputs + (round * kWarps + warp) * 256);
  }
#if CODES == 3
  const unsigned first_four = in_register;
#else
  constexpr unsigned first_four = 0;  // int4 looks nothing up
#endif
  Place from;
  Turn turn(groups);
  int buffer = 0;
  const int stride = gridDim.x / SPLIT;
  for (int next = blockIdx.x / SPLIT; next < turns; next += kHeld * stride) {
    // The first threads finish a pair of one of the next turns each.
    const int own_turn = next + thread / PAIRS * stride;
    int own_group = own_turn, own_pick = 0;
    for (; own_group >= groups && own_turn < turns; own_group -= groups) ++own_pick;
    const int pair = own_group * PAIRS + thread % PAIRS;
    const bool finishes = thread < kHeld * PAIRS && own_turn < turns && pair < pairs;
    const Pair of(l, pair);
    Linear mine = l;  // of this pick
    AddendsOfPicks add;
    if (finishes) {
      if (PICKS == 1) mine.out = static_cast<Raw*>(l.out) + static_cast<size_t>(own_pick) * (l.rows / 2);
      if (is_first()) add.load(l, of, picks, own_pick);
    }
    for (int held = 0; held < kHeld && !turn.is_over(); ++held, turn.advance()) {
      float2 sums = make_float2(0, 0);  // of this lane, in the rows g and g + 8
      for (int part = 0; part < kParts; part += TOGETHER) {
        for (int box = 0; box < BOXES; ++box) {
          Barrier{s.full + 8 * from.stage}.wait_for(from.phase);
          const unsigned char* const stage = s.ring + from.stage * kStageBytes;
          bool filled = false;
#pragma unroll
          for (int i = 0; PICKS != 0 && i < TOGETHER; ++i) {
            const int4& pick = picks[PICKS == 1 ? turn.matrix : first_part() + part + i].of;
            if (thread != 0 || pick.y < 0) continue;
            fill(l, boxes, stage + i * kBoxBytes, box, turn.group, pick.x);
            filled = true;
          }
#pragma unroll
          for (int round = 0; round < kRounds; ++round) {
            const int unit = round * kWarps + warp, which = TOGETHER == 1 ? 0 : unit / kLines, line = unit - which * kLines;
            if ((round + 1) * kWarps > kUnits && unit >= kUnits) break;
            const int before = part * (PADDED / 128) + box * kLines + unit;  // lines of the input
            uint4(&of)[2] = x[kSame ? round : 0];
            if (!kSame) load_inputs(of, own_inputs + before * 256);
            const float share = PICKS == 2 ? picks[first_part() + part + which].share : 1;
            add_unit(sums, stage + which * kBoxBytes + row_of(g) * kLine, line, of, scales_of_x[before * 4], share, first_four);
          }
          __syncwarp();
          if (filled) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the boxes may be replaced
          if (lane == 0) Barrier{s.empty + 8 * from.stage}.arrive();
          from.advance(l.stages);
        }
      }
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        sums.x += __shfl_xor_sync(0xFFFFFFFFu, sums.x, distance);
        sums.y += __shfl_xor_sync(0xFFFFFFFFu, sums.y, distance);
      }
      if (t == 0) {
        parts[buffer][held][warp][row_of(g)] = sums.x;
        parts[buffer][held][warp][8 + row_of(g)] = sums.y;
      }
    }
    meet<32 * kWarps>();
    if (SPLIT > 1 ? thread < kHeld * PAIRS : finishes) {
      float2 sum = make_float2(0, 0);
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        const float* const of_warp = parts[buffer][thread / PAIRS][i];
        sum.x += of_warp[kTwoMatrices ? thread % PAIRS : 2 * (thread % PAIRS)];
        sum.y += of_warp[kTwoMatrices ? PAIRS + thread % PAIRS : 2 * (thread % PAIRS) + 1];
      }
#if SPLIT > 1
      sum = sum_of_cluster(sum, &of_other[thread], pushed);
#endif
      if (finishes && is_first()) of.write(mine, sum.x * kUnit, sum.y * kUnit, add.sum(picks));
    }
    buffer ^= 1;
  }
  if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
)cuda";

}  // namespace ct
