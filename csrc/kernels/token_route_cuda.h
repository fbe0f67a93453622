// The CUDA text of token_route. The texts of edges.h and of
// token_instructions_cuda.h come before it.
//
// With CLUSTER 1 a block computes the score of one expert. The last block to arrive finds the top
// of all scores in its first warp, while its other warps fetch the table.
//
// With a cluster each block computes the scores of EXPERTS / CLUSTER experts. It pushes them to the
// first block, which finds the top. That takes half as long as an arrival in global memory and the
// loads behind it.
//
// Weights are asked for before the wait.
//
// The text is compiled for one set of these macros:
//
//   THREADS  of a block
//   COLUMNS  the elements of the input, a multiple of 4
//   EXPERTS  the number of experts
//   TOP      the number of picks
//   NORM     1: the input goes through an RMS norm
//   OFFSET   what is added to its weights
//   OF_TOP   1: the softmax is over the top scores
//   OFTEN    1: the slot that was picked least often is given up
//   CLUSTER  the number of blocks, which are a cluster, each with EXPERTS / CLUSTER experts; else 1
#pragma once

namespace ct {

inline constexpr int kTokenRouteThreads = 256;

inline constexpr char kTokenRouteText[] = R"cuda(
constexpr int kWarps = THREADS / 32, kSteps = (COLUMNS / 4 + THREADS - 1) / THREADS;
constexpr unsigned kAll = 0xFFFFFFFFu;

struct Route {
  const float* input;
  const float* weight;
  const float* bias;  // or NULL
  const float* norm;
  float* scores;      // [EXPERTS]; not used with a cluster
  int* arrived;
  int* table;         // of slots, or NULL
  long long* counts;  // with a table
  int4* picks;
  float* shares;
  float eps;
  int slots;
};

// Returns a number that is larger for a larger score. NaN has the largest one, and no score has 0.
__device__ __forceinline__ unsigned key_of(float score) {
  if (score != score) return 0xFFFFFFFFu;
  const unsigned bits = __float_as_uint(score + 0.f);  // there is one zero
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float score_of(unsigned key) { return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key); }

// Returns the pick of lane k, whose expert is the k-th: its slot, and the expert if it is to be
// copied there. One warp runs it. `held` is the table in shared memory.
__device__ __forceinline__ int4 find_slots(const Route& r, int* held, int expert) {
  const int lane = threadIdx.x % 32, clock = EXPERTS + 2 * r.slots;
  int *const slot_of = held, *const owner = slot_of + EXPERTS, *const stamp = owner + r.slots;
  const auto set = [&](int* at, int value) { *at = value, r.table[at - held] = value; };
  constexpr int kTaken = 0x7FFFFFFF;  // in shared memory alone: the stamp of a slot that this token uses
  const int now = held[clock] == kTaken - 1 ? -kTaken : held[clock] + 1;
  int slot = lane < TOP ? slot_of[expert] : -1;
  const unsigned here = __ballot_sync(kAll, lane < TOP && slot >= 0);
  if (lane < TOP && slot >= 0) {
    set(stamp + slot, OFTEN ? min(stamp[slot] + 1, kTaken - 1) : now);
    stamp[slot] = kTaken;
  }
  __syncwarp();
#pragma unroll 1
  for (int k = 0; k < TOP; ++k) {
    if (here >> k & 1) continue;
    int best = kTaken, at = kTaken;
#pragma unroll 1
    for (int i = lane; i < r.slots; i += 32) {
      if (stamp[i] < best) best = stamp[i], at = i;
    }
    const int least = __reduce_min_sync(kAll, best);
    at = __reduce_min_sync(kAll, best == least ? at : kTaken);
    const int in = __shfl_sync(kAll, expert, k);
    if (lane == 0) {
      if (owner[at] >= 0) set(slot_of + owner[at], -1);
      set(owner + at, in);
      set(slot_of + in, at);
      set(stamp + at, OFTEN ? 1 : now);
      stamp[at] = kTaken;
    }
    if (lane == k) slot = at;
    __syncwarp();
  }
  if (lane == 0) {
    r.table[clock] = now;
    atomicAdd(reinterpret_cast<unsigned long long*>(r.counts), static_cast<unsigned long long>(__popc(here)));
    atomicAdd(reinterpret_cast<unsigned long long*>(r.counts) + 1, static_cast<unsigned long long>(TOP - __popc(here)));
  }
  return make_int4(slot, here >> lane & 1 ? -1 : expert, expert, 0);
}

// Finds the top of all scores, and writes their shares. Returns the expert that is the k-th in lane
// k. One warp runs it. `score_at` returns the score of an expert.
template <typename F>
__device__ __forceinline__ int find_top(const Route& r, const F& score_at) {
  constexpr int kKeysOfLane = (EXPERTS + 31) / 32;
  const int lane = threadIdx.x % 32;
  unsigned own[kKeysOfLane];  // keys; what was taken becomes 0
#pragma unroll
  for (int i = 0; i < kKeysOfLane; ++i) own[i] = i * 32 + lane < EXPERTS ? key_of(score_at(i * 32 + lane)) : 0;
  float all = 0;  // the sum of the softmax over all scores
  if (!OF_TOP) {
    unsigned most = 0;
#pragma unroll
    for (int i = 0; i < kKeysOfLane; ++i) most = max(most, own[i]);
    const float largest = score_of(__reduce_max_sync(kAll, most));
#pragma unroll
    for (int i = 0; i < kKeysOfLane; ++i) all += i * 32 + lane < EXPERTS ? expf(score_of(own[i]) - largest) : 0;
    all = sum_of_warp(all);
  }
  unsigned mine = 0;
  int expert = 0;
#pragma unroll 1
  for (int k = 0; k < TOP; ++k) {
    unsigned best = 0;
    int at = 0x7FFFFFFF;
#pragma unroll
    for (int i = 0; i < kKeysOfLane; ++i) {
      if (own[i] > best) best = own[i], at = i * 32 + lane;
    }
    const unsigned most = __reduce_max_sync(kAll, best);
    at = __reduce_min_sync(kAll, best == most ? at : 0x7FFFFFFF);
#pragma unroll
    for (int i = 0; i < kKeysOfLane; ++i) {
      if (i * 32 + lane == at) own[i] = 0;
    }
    if (lane == k) mine = most, expert = at;
  }
  const float largest = score_of(__shfl_sync(kAll, mine, 0)), share = lane < TOP ? expf(score_of(mine) - largest) : 0;
  const float sum = OF_TOP ? sum_of_warp(share) : all;
  if (lane < TOP) r.shares[lane] = share / sum;
  return expert;
}

#if CLUSTER > 1
constexpr int kExperts = EXPERTS / CLUSTER;  // of a block
constexpr int kWide = kExperts > 8 ? 16 : kExperts > 4 ? 8 : kExperts > 2 ? 4 : kExperts;  // a power of two that has room for them
static_assert(kExperts <= 16 && EXPERTS % CLUSTER == 0, "a thread has weights of each expert of its block");

// Adds up kWide numbers over the lanes of a warp. Number i ends in lane i * 32 / kWide.
__device__ __forceinline__ float sums_of_warp(float (&v)[kWide]) {
  const int lane = threadIdx.x % 32;
  int distance = 16;
#pragma unroll
  for (int half = kWide / 2; half > 0; half /= 2, distance /= 2) {
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) v[i] = (upper ? v[i + half] : v[i]) + __shfl_xor_sync(kAll, upper ? v[i] : v[i + half], distance);
  }
#pragma unroll
  for (distance = 16 / kWide; distance > 0; distance /= 2) v[0] += __shfl_xor_sync(kAll, v[0], distance);
  return v[0];
}

extern "C" __global__ void __launch_bounds__(THREADS) token_route(const Route r) {
  __shared__ int held[3 * EXPERTS + 1];  // the table
  __shared__ float scores[EXPERTS], dots[kWarps][kWide], squares[kWarps];
  __shared__ unsigned long long of_pushed;
  const Barrier pushed{address_of(&of_pushed)};
  begin();
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, first = blockIdx.x * kExperts;
  expect_pushes(pushed, sizeof scores);
  float4 w[kExperts][kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int at = (i * THREADS + thread) * 4;
    float4 n = make_float4(1, 1, 1, 1);
    if (NORM && at < COLUMNS) n = __ldcg(reinterpret_cast<const float4*>(r.norm + at));
    if (NORM) n.x += OFFSET, n.y += OFFSET, n.z += OFFSET, n.w += OFFSET;
#pragma unroll
    for (int k = 0; k < kExperts; ++k) {
      float4& of = w[k][i] = make_float4(0, 0, 0, 0);
      if (at < COLUMNS) of = __ldcg(reinterpret_cast<const float4*>(r.weight + static_cast<size_t>(first + k) * COLUMNS + at));
      of.x *= n.x, of.y *= n.y, of.z *= n.z, of.w *= n.w;
    }
  }
  const float bias = r.bias == nullptr || thread >= kExperts ? 0 : __ldcg(r.bias + first + thread);
  await_cluster();
  wait();
  float sums[kWide] = {}, square = 0;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int at = (i * THREADS + thread) * 4;
    const float4 v = at < COLUMNS ? __ldcg(reinterpret_cast<const float4*>(r.input + at)) : make_float4(0, 0, 0, 0);
    square = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, square))));
#pragma unroll
    for (int k = 0; k < kExperts; ++k) sums[k] = fmaf(w[k][i].x, v.x, fmaf(w[k][i].y, v.y, fmaf(w[k][i].z, v.z, fmaf(w[k][i].w, v.w, sums[k]))));
  }
  const float sum = sums_of_warp(sums);
  square = sum_of_warp(square);
  if (lane % (32 / kWide) == 0) dots[warp][lane / (32 / kWide)] = sum;
  if (lane == 0) squares[warp] = square;
  if (blockIdx.x == 0 && r.table != nullptr) {
#pragma unroll 1
    for (int i = thread; i < EXPERTS + 2 * r.slots + 1; i += THREADS) held[i] = __ldcg(r.table + i);
  }
  __syncthreads();
  if (warp != 0) return;
  if (lane < kExperts) {
    float dot = square = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) dot += dots[i][lane], square += squares[i];
    if (NORM) dot *= rsqrtf(square / COLUMNS + r.eps);
    push_to(0, dot + bias, scores + first + lane, pushed);
  }
  if (blockIdx.x != 0) return;
  wait_for_pushes(pushed, 0);
  __syncwarp();
  const int expert = find_top(r, [&](int i) { return scores[i]; });
  const int4 pick = r.table != nullptr ? find_slots(r, held, expert) : make_int4(expert, -1, expert, 0);
  if (lane < TOP) r.picks[lane] = pick;
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) token_route(const Route r) {
  __shared__ int held[3 * EXPERTS + 1];  // the table
  __shared__ float dots[kWarps], squares[kWarps];
  __shared__ bool last;
  begin();
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  float4 w[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int at = (i * THREADS + thread) * 4;
    w[i] = at < COLUMNS ? __ldcg(reinterpret_cast<const float4*>(r.weight + static_cast<size_t>(blockIdx.x) * COLUMNS + at)) : make_float4(0, 0, 0, 0);
    if (NORM && at < COLUMNS) {
      const float4 n = __ldcg(reinterpret_cast<const float4*>(r.norm + at));
      w[i].x *= n.x + OFFSET, w[i].y *= n.y + OFFSET, w[i].z *= n.z + OFFSET, w[i].w *= n.w + OFFSET;
    }
  }
  const float bias = r.bias == nullptr ? 0 : __ldcg(r.bias + blockIdx.x);
  wait();
  float4 v[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int at = (i * THREADS + thread) * 4;
    v[i] = at < COLUMNS ? __ldcg(reinterpret_cast<const float4*>(r.input + at)) : make_float4(0, 0, 0, 0);
  }
  float dot = 0, square = 0;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    dot = fmaf(w[i].x, v[i].x, fmaf(w[i].y, v[i].y, fmaf(w[i].z, v[i].z, fmaf(w[i].w, v[i].w, dot))));
    square = fmaf(v[i].x, v[i].x, fmaf(v[i].y, v[i].y, fmaf(v[i].z, v[i].z, fmaf(v[i].w, v[i].w, square))));
  }
  dot = sum_of_warp(dot), square = sum_of_warp(square);
  if (lane == 0) dots[warp] = dot, squares[warp] = square;
  __syncthreads();
  if (thread == 0) {
    dot = square = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) dot += dots[i], square += squares[i];
    if (NORM) dot *= rsqrtf(square / COLUMNS + r.eps);
    __stcg(r.scores + blockIdx.x, dot + bias);
    int before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(r.arrived) : "memory");
    last = before == EXPERTS - 1;
  }
  __syncthreads();
  if (!last) return;
  if (thread == 0) *r.arrived = 0;
  if (r.table != nullptr) {
#pragma unroll 1
    for (int i = thread; i < EXPERTS + 2 * r.slots + 1; i += THREADS) held[i] = __ldcg(r.table + i);
  }
  int expert = 0;
  if (warp == 0) expert = find_top(r, [&](int i) { return __ldcg(r.scores + i); });
  __syncthreads();
  if (warp != 0) return;
  const int4 pick = r.table != nullptr ? find_slots(r, held, expert) : make_int4(expert, -1, expert, 0);
  if (lane < TOP) r.picks[lane] = pick;
}
#endif
)cuda";

}  // namespace ct
