// The CUDA text of token_experts: products of one token with the matrices that it picked. The texts
// of token_linear_cuda.h and of token_ring_cuda.h come before it, with PICKS 1 or 2.
//
// It is token_linear_boxes for several matrices. It reads picks and shares early, so the kernel
// before is not the one that makes them, or the edge is `wait`.
//
// A pick (slot, -1, expert) is a matrix of the slots. A pick (slot, expert, expert) is one of all
// experts, which may lie in page-locked memory of the host. Its boxes are multiplied as they come,
// and written into the slot from shared memory.
#pragma once

namespace ct {

inline constexpr char kTokenExpertsText[] = R"cuda(
constexpr int kWarps = PAIRS;
static_assert(WIDTH % 256 == 0, "a warp multiplies 256 columns at a time");

struct Maps { Map all, slots; };

// Writes a box from shared memory into a slot. One thread runs it.
__device__ __forceinline__ void fill(const Map& slots, const unsigned char* box, int column, int row, int matrix) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];\ncp.async.bulk.commit_group;" ::"l"(&slots), "r"(column),
               "r"(row), "r"(matrix), "r"(address_of(box))
               : "memory");
}

extern "C" __global__ void __launch_bounds__(160) token_experts(const Linear l, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Pick picks[TOP];
  const Shared s(shared, l, kWarps);
  if (!begin_block<kWarps>(l, maps.all, s, picks)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pairs = pairs_of(l);
  Place from;
  for (Turn turn(groups_of(l)); !turn.is_over(); turn.advance()) {
    const int pair = turn.group * kWarps + warp, k = turn.matrix;
    const Pair of(l, pair);
    Linear own = l;  // of this pick
    if (PICKS == 1) own.out = static_cast<Raw*>(l.out) + static_cast<size_t>(k) * (l.rows / 2);
    AddendsOfPicks add;
    if (lane == 0 && pair < pairs) add.load(l, of, picks, k);
    float a = 0, b = 0;
    for (int part = 0; part < kParts; ++part) {
      const int4 pick = picks[PICKS == 1 ? k : part].of;
      const bool fills = pick.y >= 0 && threadIdx.x == 0;
      float c[2] = {0, 0}, d[2] = {0, 0};
      for (int box = 0; box < BOXES; ++box) {
        Barrier{s.full + 8 * from.stage}.wait_for(from.phase);
        if (fills) fill(maps.slots, s.ring + from.stage * kBoxBytes, box * (kLine / 8), turn.group * kRowsOfGroup, (kTwoMatrices ? 2 : 1) * pick.x);
        const Raw* const first = reinterpret_cast<const Raw*>(s.ring + from.stage * kBoxBytes) + warp * (kTwoMatrices ? 1 : 2) * WIDTH;
        const Raw* const second = first + (kTwoMatrices ? kWarps : 1) * WIDTH;
#pragma unroll
        for (int i = 0; i < WIDTH / 256; ++i) {
          const int at = i * 256 + lane * 8;
          float v[8];
          widen(*reinterpret_cast<const Eight*>(s.x + part * PADDED + box * WIDTH + at), v);
          multiply(c[0], c[1], *reinterpret_cast<const uint4*>(first + at), v);
          multiply(d[0], d[1], *reinterpret_cast<const uint4*>(second + at), v);
        }
        __syncwarp();
        if (fills) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the box may be replaced
        if (lane == 0) Barrier{s.empty + 8 * from.stage}.arrive();
        from.advance(l.stages);
      }
      a = fmaf(picks[part].share, c[0] + c[1], a);
      b = fmaf(picks[part].share, d[0] + d[1], b);
    }
    const float sum_a = sum_of_warp(a), sum_b = sum_of_warp(b);
    if (lane == 0 && pair < pairs) of.write(own, sum_a, sum_b, add.sum(picks));
  }
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
)cuda";

}  // namespace ct
