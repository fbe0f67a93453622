// The CUDA text of the attention of one token: token_attention.cc compiles and launches it.
//
// A cluster of blocks serves one key head, with the group of query heads that share it. A long
// context has several clusters a key head, the splits. A page of the cache is a tile of 16 keys and
// their values. Tiles go round all warps of a key head, so each warp has as many as the others.
//
// A warp copies its tiles through a ring of its own in shared memory. A stage of the ring has the
// keys or the values of one tile. All stages are asked for before the wait: Note [Programmatic
// edges]. Behind the wait, each block makes the queries of its group. The block of the last tile
// makes the new key and value, too. They go into the cache, and into the tile when it has come.
//
// Products are those of tensor cores, 16 x 8 x 16. Eight rows are heads. The other eight have what
// rounding left over of the first, so queries and weights keep about twice the bits of DTYPE. The
// order of elements in a product of query and key is free, so 16 bytes of a lane serve two of them.
//
// Each block adds up what its warps have, and pushes the sums to the blocks of its cluster that
// finish them. Splits write their sums to memory, and the last of them to arrive adds these up. All
// sums have a fixed order for one position and one size of the table.
//
// A launch of several rows, of different sequences, has blockIdx.y for the row, and clusters of one
// block. Rows and key heads keep the device busy, so blocks are small, and lie several on a
// multiprocessor. A row has as many splits as its own keys take, and the other blocks of the row
// end at once. So its sums have one order beside any other rows, and for tables of any size.
//
// The text is compiled for one set of these macros:
//
//   DTYPE    BFloat16 or Half: the dtype of the cache and of the result
//   QKV      that of queries, keys and values: Float or DTYPE
//   MMA      "bf16" or "f16", the same for tensor cores
//   HEAD     elements of a head, a multiple of 16 up to 256
//   GROUP    query heads of a key head, 1 to 8
//   STAGES   of a warp's ring
//   CLUSTER  blocks of a cluster: 8, 4 or 2, or 1 with rows or below compute capability 9.0
//   WARPS    of a block
//   NEIGHBOURS  elements that a lane loads at once: 2, or 1 if HEAD is at most 64, if norms or
//            rotations are not aligned to 8 bytes, or if no multiple of 4 is turned
//   NORM     0: no norm of queries and keys, 1: one of each head, 2: one of all heads together
//   CAP      1: scores go through cap * tanh(score / cap)
//   SINKS    1: each head has a score that takes weight and has no value
//   ROWS     1: the launch has several rows, of which those with a position below 0 are zeros
//   EDGE     see edges.h
// Its parts are in token_heads_cuda.h, whose text comes before this one.
#pragma once

namespace ct {

inline constexpr char kTokenAttentionText[] = R"cuda(
#if ROWS
#define BOUNDS 32 * WARPS, HEAD <= 128 ? 3 : 2  // as many blocks have room on a multiprocessor: token_attention.cc
#else
#define BOUNDS 32 * WARPS
#endif
extern "C" __global__ void __launch_bounds__(BOUNDS) token_attention(const TokenAttention given) {
  constexpr int kPiece = kPart / 2 + GROUP;  // pairs of a block in `partial`
  constexpr int kThreadsOfHead = kThreads / (GROUP > 4 ? 8 : GROUP > 2 ? 4 : GROUP);  // that add up its sums
  extern __shared__ __align__(128) unsigned char rings[];
  __shared__ __align__(16) Raw queries[2][GROUP * kRow];
  __shared__ __align__(16) Raw fresh[2][HEAD];
  __shared__ float2 warp_states[WARPS][GROUP], states[CLUSTER][GROUP], parts[CLUSTER][kPart / 2];
  __shared__ bool last_to_arrive;
  begin();
#if ROWS
  const TokenAttention a = given.of_row(blockIdx.y, 2 * kPiece);
#else
  const TokenAttention& a = given;
#endif
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int rank = blockIdx.x % CLUSTER, cluster = blockIdx.x / CLUSTER, split = cluster % a.splits, key_head = cluster / a.splits;

  const long long position = __ldcg(a.position), before = __ldcg(a.before);
#if ROWS
  if (position < 0) {
    wait();
    if (split == 0) {
      for (int i = thread; i < GROUP * HEAD / 2; i += kThreads) reinterpret_cast<unsigned*>(a.out + key_head * GROUP * HEAD)[i] = 0;
    }
    return;
  }
#endif
  // Keys are counted from the first of the table. The newest is that of this token.
  const int newest = static_cast<int>(position - before) - 1, oldest = a.window > 0 ? max(0, newest - a.window + 1) : 0;
  const int first_tile = oldest / kTile, tiles = newest / kTile - first_tile + 1;
  const int splits = min(a.splits, (tiles + a.share - 1) / a.share);
  if (split >= splits) {
    wait();
    return;
  }
  cluster_runs(false);
  const int step = WARPS * CLUSTER * splits, own = (warp * CLUSTER + rank) * splits + split;
  const int count = tiles > own ? (tiles - own + step - 1) / step : 0;  // tiles of this warp: own, own + step and so on
  const bool brings = (tiles - 1) % (CLUSTER * splits) == rank * splits + split;  // the last tile is one of this block's
  const size_t page_size = static_cast<size_t>(a.key_heads) * kTile * HEAD;
  Raw* const memory = a.memory + key_head * kTile * HEAD;

  // Asks for the keys or the values of the n-th tile of this warp. Each lane keeps the pages of one
  // of 32 tiles. What the token does not see becomes zeros.
  Raw* const ring = reinterpret_cast<Raw*>(rings) + warp * STAGES * kStage;
  int key_page = 0, value_page = 0;
  const auto ask = [&](int n, bool values, int stage) {
    if (n < count) {
      if (!values && n % 32 == 0) {
        const int tile = own + (n + lane) * step;
        if (tile < tiles) {
          key_page = static_cast<int>(__ldcg(a.table + first_tile + tile));
          value_page = static_cast<int>(__ldcg(a.table + a.values + first_tile + tile));
        }
      }
      const Raw* const page = memory + __shfl_sync(kAll, values ? value_page : key_page, n % 32) * page_size;
      const int from = (first_tile + own + n * step) * kTile;
      const unsigned to = address_of(ring + stage * kStage);
#pragma unroll
      for (int i = 0; i < kTile * kChunks / 32; ++i) {
        const int at = i * 32 + lane, row = at / kChunks, chunk = at % kChunks;
        copy(to + (values ? value_at(row, chunk) : key_at(row, chunk)) * 2, page + row * HEAD + chunk * 8,
             from + row >= oldest && from + row < newest ? 16 : 0);
      }
    }
    end_group();
  };
#pragma unroll
  for (int i = 0; i < STAGES; ++i) ask(i / 2, i % 2 == 1, i);

  Raw *key_place = nullptr, *value_place = nullptr;
  if (brings) {
    const long long* const pages = a.table + newest / kTile;
    key_place = memory + __ldcg(pages) * page_size + newest % kTile * HEAD;
    value_place = memory + __ldcg(pages + a.values) * page_size + newest % kTile * HEAD;
  }
  Heads heads;
  heads.load_norms(a, key_head, brings);
  cluster_runs(true);
  wait();
  heads.make(a, key_head, brings, queries, fresh, key_place, value_place);
  __syncthreads();

  // A lane has elements t * 8 + i * 32 to t * 8 + i * 32 + 7 of query g.
  const auto load_query = [&](int i, uint4& high, uint4& low) {
    high = low = make_uint4(0, 0, 0, 0);
    if (g >= GROUP || t + 4 * i >= kChunks) return;
    high = load_chunk(queries[0] + key_at(g, t + 4 * i));
    low = load_chunk(queries[1] + key_at(g, t + 4 * i));
  };
  constexpr bool kKeep = HEAD <= (ROWS ? 96 : 128);  // more queries need too many registers
  uint4 high[kKeep ? kSteps : 1], low[kKeep ? kSteps : 1];
  if constexpr (kKeep) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) load_query(i, high[i], low[i]);
  }

  State state;  // of head g; the sum is that of this lane's keys
  float sums[kWide * 8][4];
#pragma unroll
  for (int i = 0; i < kWide * 8; ++i) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
  int stage = 0;
  const auto next_stage = [&] { stage = stage + 1 == STAGES ? 0 : stage + 1; };
  // Waits for the stage. The new key or value goes into its row of the last tile.
  const auto wait_for_stage = [&](int n, int kind) {
    wait_for_group<STAGES - 1>();
    __syncwarp();
    Raw* const tile = ring + stage * kStage;
    if (own + n * step == tiles - 1) {
      const int row = newest % kTile;
      if (lane < kChunks) *reinterpret_cast<uint4*>(tile + (kind == 0 ? key_at(row, lane) : value_at(row, lane))) = load_chunk(fresh[kind] + lane * 8);
      __syncwarp();
    }
    return static_cast<const Raw*>(tile);
  };
  for (int n = 0; n < count; ++n) {
    const Raw* const keys = wait_for_stage(n, 0);
    float scores[4][4];  // keys g and 8 + g of even steps, then those of odd steps
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i][0] = scores[i][1] = scores[i][2] = scores[i][3] = 0;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      uint4 h, l;
      if constexpr (kKeep) {
        h = high[i], l = low[i];
      } else {
        load_query(i, h, l);
      }
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const uint4 k = t + 4 * i < kChunks ? load_chunk(keys + key_at(8 * u + g, t + 4 * i)) : make_uint4(0, 0, 0, 0);
        multiply(scores[i % 2 * 2 + u], h.x, l.x, h.y, l.y, k.x, k.y);
        multiply(scores[i % 2 * 2 + u], h.z, l.z, h.w, l.w, k.z, k.w);
      }
    }
    __syncwarp();
    ask((2 * n + STAGES) / 2, STAGES % 2 == 1, stage);
    next_stage();

    // The lane has keys 2 * t, 2 * t + 1 and eight further.
    float weights[2][2];
    float most = state.most;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = (first_tile + own + n * step) * kTile + 8 * u + 2 * t + e;
        float score = ((scores[u][e] + scores[2 + u][e]) + (scores[u][e + 2] + scores[2 + u][e + 2])) * a.scale;
#if CAP
        score = a.cap * tanhf(score);
#endif
        weights[u][e] = key >= oldest && key <= newest ? score : lowest();
        most = fmaxf(most, weights[u][e]);
      }
    }
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kAll, most, 2));
    const float factor = power(state.most - most);  // a tile has visible keys, so `most` is finite
    state.most = most;
    state.sum *= factor;
    unsigned w[4];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        weights[u][e] = power(weights[u][e] - most);
        state.sum += weights[u][e];
      }
      split_up(weights[u][0], weights[u][1], w[2 * u], w[2 * u + 1]);
    }
    if (!__all_sync(kAll, factor == 1)) {
#pragma unroll
      for (int i = 0; i < kWide * 8; ++i) sums[i][0] *= factor, sums[i][1] *= factor, sums[i][2] *= factor, sums[i][3] *= factor;
    }

    // A lane has elements g * 8 + i * 64 to g * 8 + i * 64 + 7 of four values.
    const Raw* const values = wait_for_stage(n, 1);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      uint4 v[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) v[u] = load_chunk(values + value_at(2 * t + u % 2 + u / 2 * 8, g + 8 * i));
      const auto add = [&](int at, unsigned a0, unsigned a1, unsigned b0, unsigned b1) {
        multiply(sums[i * 8 + at], w[0], w[1], w[2], w[3], __byte_perm(a0, a1, 0x5410), __byte_perm(b0, b1, 0x5410));
        multiply(sums[i * 8 + at + 1], w[0], w[1], w[2], w[3], __byte_perm(a0, a1, 0x7632), __byte_perm(b0, b1, 0x7632));
      };
      add(0, v[0].x, v[1].x, v[2].x, v[3].x);
      add(2, v[0].y, v[1].y, v[2].y, v[3].y);
      add(4, v[0].z, v[1].z, v[2].z, v[3].z);
      add(6, v[0].w, v[1].w, v[2].w, v[3].w);
    }
    __syncwarp();
    ask((2 * n + 1 + STAGES) / 2, STAGES % 2 == 0, stage);
    next_stage();
  }

  // Sums of this warp go where its ring was: [GROUP][HEAD].
  state.sum += __shfl_xor_sync(kAll, state.sum, 1);
  state.sum += __shfl_xor_sync(kAll, state.sum, 2);
  if (g < GROUP) {
    float* const to = reinterpret_cast<float*>(ring) + g * HEAD;
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = 64 * i + 16 * t + 8 * e;
        if (HEAD % 64 != 0 && at >= HEAD) continue;
        const float(*const s)[4] = sums + i * 8;
        *reinterpret_cast<float4*>(to + at) = make_float4(s[0][e] + s[0][e + 2], s[1][e] + s[1][e + 2], s[2][e] + s[2][e + 2], s[3][e] + s[3][e + 2]);
        *reinterpret_cast<float4*>(to + at + 4) = make_float4(s[4][e] + s[4][e + 2], s[5][e] + s[5][e + 2], s[6][e] + s[6][e + 2], s[7][e] + s[7][e + 2]);
      }
    }
    if (t == 0) warp_states[warp][g] = make_float2(state.most, state.sum);
  }
  __syncthreads();

  // Each block pushes its sums to the blocks that finish them, and its states to all blocks.
  if (thread / kThreadsOfHead < GROUP) {
    const int head = thread / kThreadsOfHead, own = thread % kThreadsOfHead;
    const Merge<WARPS> merge(&warp_states[0][head], GROUP);
#pragma unroll 1
    for (int i = own; i < HEAD / 2; i += kThreadsOfHead) {
      const int to = head * (HEAD / 2) + i;
      float2 sum = make_float2(0, 0);
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        const float2 v = reinterpret_cast<const float2*>(reinterpret_cast<const Raw*>(rings) + w * STAGES * kStage)[to];
        sum.x = fmaf(merge.factors[w], v.x, sum.x), sum.y = fmaf(merge.factors[w], v.y, sum.y);
      }
      push(&parts[rank][to % (kPart / 2)], to / (kPart / 2), sum);
    }
    if (own < CLUSTER) push(&states[rank][head], own, make_float2(merge.all.most, merge.all.sum));
  }
  cluster_meets();

  // The block finishes kPart numbers, and writes them as results or as sums of a split.
  float2* const partial = reinterpret_cast<float2*>(a.partial);
#pragma unroll 1
  for (int i = thread; i < kPart / 2; i += kThreads) {
    const int at = rank * kPart + 2 * i;
    const Merge<CLUSTER> merge(&states[0][at / HEAD], GROUP);
    Sums of_cluster{merge.all};
#pragma unroll
    for (int r = 0; r < CLUSTER; ++r) {
      of_cluster.v.x = fmaf(merge.factors[r], parts[r][i].x, of_cluster.v.x), of_cluster.v.y = fmaf(merge.factors[r], parts[r][i].y, of_cluster.v.y);
    }
    if (splits == 1) {
      write(a, key_head, at, of_cluster);
    } else {
      __stcg(partial + static_cast<size_t>(blockIdx.x) * kPiece + i, of_cluster.v);
    }
  }
  if (splits == 1) return;
  if (thread < GROUP) {
    const State of_cluster = Merge<CLUSTER>(&states[0][thread], GROUP).all;
    __stcg(partial + static_cast<size_t>(blockIdx.x) * kPiece + kPart / 2 + thread, make_float2(of_cluster.most, of_cluster.sum));
  }

  // The last of the splits adds up what all of them wrote.
  __syncthreads();
  int* const arrived = a.arrived + key_head * 8 + rank;
  if (thread == 0) {
    __threadfence();
    last_to_arrive = atomicAdd(arrived, 1) == splits - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last_to_arrive) return;
  if (thread == 0) *arrived = 0;
#pragma unroll 1
  for (int i = thread; i < kPart / 2; i += kThreads) {
    constexpr int kTogether = 8;
    const int at = rank * kPart + 2 * i;
    Sums of_all;
#pragma unroll 1
    for (int from = 0; from < splits; from += kTogether) {
      float2 of[kTogether], v[kTogether];
#pragma unroll
      for (int s = 0; s < kTogether; ++s) {
        of[s] = make_float2(lowest(), 0), v[s] = make_float2(0, 0);
        if (from + s >= splits) continue;
        const float2* const piece = partial + (static_cast<size_t>(key_head * a.splits + from + s) * CLUSTER + rank) * kPiece;
        of[s] = __ldcg(piece + kPart / 2 + at / HEAD), v[s] = __ldcg(piece + i);
      }
#pragma unroll
      for (int s = 0; s < kTogether; ++s) of_all.add(of[s], v[s]);
    }
    write(a, key_head, at, of_all);
  }
}
)cuda";

}  // namespace ct
