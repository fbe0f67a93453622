// The CUDA text of token_linear_boxes, a form of token_linear_cuda.h. That text and the one of
// token_ring_cuda.h come before it.
//
// Four warps compute, each one pair of a group.
#pragma once

namespace ct {

inline constexpr char kTokenBoxesText[] = R"cuda(
constexpr int kWarps = PAIRS;

extern "C" __global__ void __launch_bounds__(160) token_linear_boxes(const Linear l, const __grid_constant__ Map map) {
  extern __shared__ __align__(128) unsigned char shared[];
  Raw* const x = reinterpret_cast<Raw*>(shared + l.stages * kBoxBytes);
  float* const room = reinterpret_cast<float*>(x + kPadded);
  unsigned long long* const barriers = reinterpret_cast<unsigned long long*>(room + 2 * kWarps);
  const unsigned full = address_of(barriers), empty = full + 8 * l.stages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  begin();
  if (warp == kWarps) {
    if (lane == 0) make_ring(l, map, full, empty, kWarps);
    __syncwarp();
    asm volatile("bar.arrive 2, 160;" ::: "memory");  // the barriers of the ring are made
    if (lane == 0) copy_boxes(l, map, address_of(shared), full, empty);
    return;  // other threads of the block wait for the kernel before
  }
  Norms<32 * kWarps> norms;
  norms.load(l);
  asm volatile("bar.sync 2, 160;" ::: "memory");
  wait();
  make_input<32 * kWarps>(l, norms, x, room);
  const int pairs = pairs_of(l);
  Place from;
  for (int group = blockIdx.x; group * kWarps < pairs; group += gridDim.x) {
    const int pair = group * kWarps + warp;
    const Pair of(l, pair);
    float a[2] = {0, 0}, b[2] = {0, 0};
    float2 add = make_float2(0, 0);
    if (lane == 0 && pair < pairs) add = of.addends(l);
    for (int box = 0; box < kBoxes; ++box) {
      Barrier{full + 8 * from.stage}.wait_for(from.phase);
      const Raw* const first = reinterpret_cast<const Raw*>(shared + from.stage * kBoxBytes) + warp * (kTwoMatrices ? 1 : 2) * kWidth;
      const Raw* const second = first + (kTwoMatrices ? kWarps : 1) * kWidth;
#pragma unroll
      for (int i = 0; i < (kWidth + 255) / 256; ++i) {
        const int at = i * 256 + lane * 8;
        if (kWidth % 256 != 0 && at >= kWidth) continue;
        float v[8];
        widen(*reinterpret_cast<const Eight*>(x + box * kWidth + at), v);
        multiply(a[0], a[1], *reinterpret_cast<const uint4*>(first + at), v);
        multiply(b[0], b[1], *reinterpret_cast<const uint4*>(second + at), v);
      }
      __syncwarp();
      if (lane == 0) Barrier{empty + 8 * from.stage}.arrive();
      from.advance(l.stages);
    }
    const float sum_a = sum_of_warp(a[0] + a[1]), sum_b = sum_of_warp(b[0] + b[1]);
    if (lane == 0 && pair < pairs) of.write(l, sum_a, sum_b, add);
  }
}
)cuda";

}  // namespace ct
