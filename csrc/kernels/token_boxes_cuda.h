// The CUDA text of token_linear_boxes, a form of token_linear_cuda.h. That text and the one of
// token_ring_cuda.h come before it.
//
// Four warps compute, each one pair of a group.
#pragma once

namespace ct {

inline constexpr char kTokenBoxesText[] = R"cuda(
constexpr int kWarps = PAIRS;
static_assert(WIDTH % 256 == 0, "a warp multiplies 256 columns at a time");

extern "C" __global__ void __launch_bounds__(160) token_linear_boxes(const Linear l, const __grid_constant__ Map map) {
  extern __shared__ __align__(128) unsigned char shared[];
  const Shared s(shared, l, kWarps);
  if (!begin_block<kWarps>(l, map, s, nullptr)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pairs = pairs_of(l);
  Place from;
  for (int group = blockIdx.x; group * kWarps < pairs; group += gridDim.x) {
    const int pair = group * kWarps + warp;
    const Pair of(l, pair);
    float a[2] = {0, 0}, b[2] = {0, 0};
    Addends add;
    if (lane == 0 && pair < pairs) add = of.addends(l, l.bias);
    for (int box = 0; box < BOXES; ++box) {
      Barrier{s.full + 8 * from.stage}.wait_for(from.phase);
      const Raw* const first = reinterpret_cast<const Raw*>(s.ring + from.stage * kBoxBytes) + warp * (kTwoMatrices ? 1 : 2) * WIDTH;
      const Raw* const second = first + (kTwoMatrices ? kWarps : 1) * WIDTH;
#pragma unroll
      for (int i = 0; i < WIDTH / 256; ++i) {
        const int at = i * 256 + lane * 8;
        float v[8];
        widen(*reinterpret_cast<const Eight*>(s.x + box * WIDTH + at), v);
        multiply(a[0], a[1], *reinterpret_cast<const uint4*>(first + at), v);
        multiply(b[0], b[1], *reinterpret_cast<const uint4*>(second + at), v);
      }
      __syncwarp();
      if (lane == 0) Barrier{s.empty + 8 * from.stage}.arrive();
      from.advance(l.stages);
    }
    const float sum_a = sum_of_warp(a[0] + a[1]), sum_b = sum_of_warp(b[0] + b[1]);
    if (lane == 0 && pair < pairs) of.write(l, sum_a, sum_b, add.sum());
  }
}
)cuda";

}  // namespace ct
