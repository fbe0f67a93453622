// The kernels of prompt_attention.cc.
// The text of token_instructions_cuda.h comes before it.
//
// A block has some rows of a prompt, with the group of query heads that share a key head: a tile of
// up to 128 queries, 16 or 32 of each warp. It goes over the keys that the last of them sees, 64 or
// 32 at a time. While tensor cores work on some, the next keys and values come into shared memory.
// The sums of the softmax are those of flash attention: each query has the largest score so far,
// and what was added before is made smaller when a larger one comes.
//
// A prompt of few rows has few tiles. Its keys are split: each split is a block of its own, which
// writes its sums and its largest scores to memory, and merge_splits adds them up. Each split of a
// tile has as many keys as the others, by what the position tells, so one graph serves all
// positions. `most` is kept as an exponent, so a score that is not larger leaves the sums as they
// are.
//
// The text is compiled for one set of these macros:
//
//   DTYPE  BFloat16 or Half: of queries, the cache and the result
//   MMA    "bf16" or "f16", the same for tensor cores
//   HEAD   elements of a head, a multiple of 16 up to 256
//   GROUP  query heads of a key head, up to 64
//   SINKS  1: each head has a score that takes weight and has no value
#pragma once

namespace ct {

inline constexpr char kPromptAttentionText[] = R"cuda(
using Raw = DTYPE::Raw;

struct PromptAttention {
  const Raw* query;           // [rows][heads][HEAD]
  const long long* position;  // [rows]
  const long long* last;
  const long long* before;
  const long long* table;     // [2][blocks]
  const Raw* memory;          // [pages][key_heads][16][HEAD]
  const Raw* sinks;           // [heads]
  Raw* out;                   // [rows][heads][HEAD]
  float* sums;                // [splits][rows][heads][HEAD]
  float2* states;             // [splits][rows][heads]: the exponent of the largest weight, and the sum of weights
  long long values;           // where the pages of values begin in the table
  int rows;
  int key_heads;
  int window;                 // 0: all keys are visible
  int tiles;
  int splits;
  float scale;                // of a score's exponent to base 2
};

constexpr int kWarps = 4;
constexpr int kWide = HEAD <= 128 ? 2 : 1;      // groups of 16 queries that a warp has
constexpr int kQueries = kWarps * kWide * 16;   // of a tile
constexpr int kTokens = kQueries / GROUP;       // of a tile
constexpr int kKeys = HEAD <= 128 ? 64 : 32;    // that are worked on together
constexpr int kChunks = HEAD / 8;               // 16 bytes each
constexpr int kRow = (HEAD + 63) / 64 * 64;     // elements between rows in shared memory
constexpr int kPages = kKeys / 16;
constexpr int kLeast = 256 / kKeys;             // of a split: fewer keys take no longer
constexpr unsigned kAll = 0xFFFFFFFFu;
constexpr float kLog2e = 1.4426950408889634f;

// Where a chunk of a row lies. The rows that ldmatrix reads at the same time use all banks.
__device__ __forceinline__ int place(int row, int chunk) { return row * kRow + (chunk ^ (row & 7)) * 8; }

// The bytes between the start of a row and the chunk `even` of it, or the chunk behind that: `turn`
// is 16 times the exclusive or of the row and the last bit of the chunk.
__device__ __forceinline__ unsigned within(int even, unsigned turn) { return even / 8 * 128 + (even % 8 * 16 ^ turn); }

__device__ __forceinline__ void load_four(unsigned (&to)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void load_four_turned(unsigned (&to)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply(sum, a[0], a[1], a[2], a[3], b0, b1);
}

// The weight of a sink beside weights that are relative to `most`, an exponent to base 2.
__device__ __forceinline__ float sink_of(const PromptAttention& a, int head, float most) {
#if SINKS
  return power(DTYPE::widen(a.sinks[head]) * kLog2e - most);
#else
  return 0;
#endif
}

extern "C" __global__ void __launch_bounds__(32 * kWarps, 2) prompt_attention(const PromptAttention a) {
  extern __shared__ __align__(128) unsigned char room[];
  const unsigned shared = address_of(room);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int tile = blockIdx.x % a.tiles, split = blockIdx.x / a.tiles % a.splits, key_head = blockIdx.x / a.tiles / a.splits;
  const int heads = a.key_heads * GROUP, token = tile * kTokens;
  const auto row_of = [&](int query) { return static_cast<size_t>(token + query / GROUP) * heads + key_head * GROUP + query % GROUP; };

  // Keys are counted from the first of the table. Rows follow each other, so the first one tells the
  // others. Queries beyond the last row see no key.
  const int first = static_cast<int>(a.position[token] - *a.before) - 1, newest_of_all = static_cast<int>(*a.last - *a.before) - 1;
  const bool passed_over = a.position[token] < 0;
  const int count = passed_over ? 0 : min(min(kTokens, a.rows - token), newest_of_all - first + 1);
  if (passed_over) {
    if (a.splits == 1) {
      for (int i = thread; i < kTokens * GROUP * kChunks; i += 32 * kWarps) {
        if (token + i / kChunks / GROUP < a.rows) reinterpret_cast<uint4*>(a.out + row_of(i / kChunks) * HEAD)[i % kChunks] = make_uint4(0, 0, 0, 0);
      }
    }
    return;
  }
  const int newest = first + count - 1, oldest = a.window > 0 ? max(0, first - a.window + 1) : 0;
  const int from_all = oldest / kKeys, of_all = newest / kKeys - from_all + 1;
  const int splits = min(a.splits, (of_all + kLeast - 1) / kLeast);  // the others have no key
  const auto part = [&](int n) { return from_all + static_cast<int>(static_cast<long long>(of_all) * min(n, splits) / splits); };
  const int begin = part(split), end = part(split + 1);

  constexpr int kTile = kKeys * kRow * 2;  // bytes of some keys or values
  const unsigned queries = shared, keys = shared + kQueries * kRow * 2, values = keys + 2 * kTile;
  for (int i = thread; i < kQueries * kChunks; i += 32 * kWarps) {
    const int query = i / kChunks, chunk = i % kChunks;
    const bool there = query < count * GROUP;
    copy(queries + place(query, chunk) * 2, a.query + (there ? row_of(query) * HEAD + chunk * 8 : 0), there ? 16 : 0);
  }
  const size_t page_size = static_cast<size_t>(a.key_heads) * 16 * HEAD;
  const Raw* const memory = a.memory + static_cast<size_t>(key_head) * 16 * HEAD;
  // Lanes 0 to kPages - 1 have the pages of the next keys, and the lanes behind them those of values.
  const auto pages_of = [&](int n) {
    const int page = n * kPages + lane % kPages;
    return lane < 2 * kPages && n < end && page * 16 <= newest ? static_cast<int>(__ldg(a.table + page + (lane < kPages ? 0 : a.values))) : 0;
  };
  const auto ask = [&](unsigned to, int n, int pages, int from_lane) {
    if (n < end) {
#pragma unroll
      for (int i = 0; i < kKeys * kChunks; i += 32 * kWarps) {
        const int at = i + thread, row = at / kChunks % kKeys, chunk = at % kChunks;
        const int page = __shfl_sync(kAll, pages, from_lane + row / 16);
        if (kKeys * kChunks % (32 * kWarps) != 0 && at >= kKeys * kChunks) continue;
        copy(to + place(row, chunk) * 2, memory + page * page_size + (row % 16) * HEAD + chunk * 8, n * kKeys + row <= newest ? 16 : 0);
      }
    }
    end_group();
  };
  int pages = pages_of(begin);
  ask(keys, begin, pages, 0);
  ask(values, begin, pages, kPages);
  pages = pages_of(begin + 1);

  // A lane has rows g and g + 8 of each 16 queries.
  float most[kWide][2], sum[kWide][2], sums[kWide][HEAD / 8][4];
  int limit[kWide][2];
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = (warp * kWide + i) * 16 + r * 8 + g;
      most[i][r] = lowest(), sum[i][r] = 0;
      limit[i][r] = query < count * GROUP ? first + query / GROUP : -1;
    }
#pragma unroll
    for (int d = 0; d < HEAD / 8; ++d) sums[i][d][0] = sums[i][d][1] = sums[i][d][2] = sums[i][d][3] = 0;
  }

  // Where a lane reads 16 x 16 elements, beside what `within` tells: of queries, keys and values.
  const unsigned turn = (lane % 8 ^ lane / 16) * 16, key_turn = (lane % 8 ^ lane / 8 % 2) * 16;
  const unsigned query_row = queries + (warp * kWide * 16 + lane % 16) * kRow * 2, value_row = values + lane % 16 * kRow * 2;
  const unsigned key_row = keys + (lane % 8 + lane / 16 * 8) * kRow * 2;
  constexpr int kSquare = 16 * kRow * 2;  // bytes between 16 rows and the next ones
  for (int n = begin; n < end; ++n) {
    const int stage = (n - begin) % 2;
    ask(keys + (stage ^ 1) * kTile, n + 1, pages, 0);
    wait_for_group<2>();
    __syncthreads();
    float scores[kWide][kKeys / 8][4];
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) scores[i][j][0] = scores[i][j][1] = scores[i][j][2] = scores[i][j][3] = 0;
    }
#pragma unroll
    for (int k = 0; k < HEAD / 16; ++k) {
      unsigned q[kWide][4];
#pragma unroll
      for (int i = 0; i < kWide; ++i) load_four(q[i], query_row + i * kSquare + within(2 * k, turn));
#pragma unroll
      for (int j = 0; j < kKeys / 16; ++j) {
        unsigned b[4];
        load_four(b, key_row + stage * kTile + j * kSquare + within(2 * k, key_turn));
#pragma unroll
        for (int i = 0; i < kWide; ++i) multiply(scores[i][2 * j], q[i], b[0], b[1]), multiply(scores[i][2 * j + 1], q[i], b[2], b[3]);
      }
    }

    const bool near = n * kKeys + kKeys - 1 > first || (a.window > 0 && n * kKeys <= newest - a.window);  // some query does not see all of these
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float largest = lowest();
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = scores[i][j][2 * r + e];
            if (near) {
              const int key = n * kKeys + j * 8 + 2 * t + e;
              if (key > limit[i][r] || (a.window > 0 && key <= limit[i][r] - a.window)) score = lowest();
            }
            largest = fmaxf(largest, score);
          }
        }
        largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 2));
        largest = fmaxf(most[i][r], largest * a.scale);
        const float base = largest == lowest() ? 0 : largest;
        const float factor = power(most[i][r] - base);  // 1 without a larger score
        most[i][r] = largest;
        sum[i][r] *= factor;
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = scores[i][j][2 * r + e];
            score = power(score * a.scale - base);
            sum[i][r] += score;
          }
        }
        if (!__all_sync(kAll, factor == 1)) {
#pragma unroll
          for (int d = 0; d < HEAD / 8; ++d) sums[i][d][2 * r] *= factor, sums[i][d][2 * r + 1] *= factor;
        }
      }
    }

    unsigned weights[kWide][kKeys / 16][4];
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
#pragma unroll
      for (int u = 0; u < kKeys / 16; ++u) {
#pragma unroll
        for (int e = 0; e < 4; ++e) weights[i][u][e] = DTYPE::narrow(scores[i][2 * u + e / 2][e % 2 * 2], scores[i][2 * u + e / 2][e % 2 * 2 + 1]);
      }
    }
    ask(values + (stage ^ 1) * kTile, n + 1, pages, kPages);
    pages = pages_of(n + 2);
    wait_for_group<2>();
    __syncthreads();
#pragma unroll
    for (int u = 0; u < kKeys / 16; ++u) {
#pragma unroll
      for (int d = 0; d < HEAD / 16; ++d) {
        unsigned b[4];
        load_four_turned(b, value_row + stage * kTile + u * kSquare + within(2 * d, turn));
#pragma unroll
        for (int i = 0; i < kWide; ++i) multiply(sums[i][2 * d], weights[i][u], b[0], b[1]), multiply(sums[i][2 * d + 1], weights[i][u], b[2], b[3]);
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kWide; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = (warp * kWide + i) * 16 + r * 8 + g;
      float all = sum[i][r];
      all += __shfl_xor_sync(kAll, all, 1);
      all += __shfl_xor_sync(kAll, all, 2);
      if (query >= kTokens * GROUP || token + query / GROUP >= a.rows) continue;
      if (a.splits > 1) {
        const size_t at = static_cast<size_t>(split) * a.rows * heads + row_of(query);
        if (t == 0) a.states[at] = make_float2(most[i][r], all);
        if (all == 0) continue;
#pragma unroll
        for (int d = 0; d < HEAD / 8; ++d) *reinterpret_cast<float2*>(a.sums + at * HEAD + d * 8 + 2 * t) = make_float2(sums[i][d][2 * r], sums[i][d][2 * r + 1]);
        continue;
      }
      const float share = 1 / (all + sink_of(a, key_head * GROUP + query % GROUP, most[i][r]));
      unsigned* const to = reinterpret_cast<unsigned*>(a.out + row_of(query) * HEAD);
#pragma unroll
      for (int d = 0; d < HEAD / 8; ++d) to[d * 4 + t] = limit[i][r] < 0 ? 0 : DTYPE::narrow(sums[i][d][2 * r] * share, sums[i][d][2 * r + 1] * share);
    }
  }
}

// Adds up what the splits have, at most 32. A warp has a head of a row.
extern "C" __global__ void __launch_bounds__(128) merge_splits(const PromptAttention a) {
  const int lane = threadIdx.x % 32, heads = a.key_heads * GROUP;
  const size_t all = static_cast<size_t>(a.rows) * heads, at = static_cast<size_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  if (at >= all) return;
  const bool passed_over = a.position[at / heads] < 0;
  const float2 state = lane < a.splits && !passed_over ? a.states[lane * all + at] : make_float2(lowest(), 0);
  float most = state.x;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) most = fmaxf(most, __shfl_xor_sync(kAll, most, distance));
  const float weight = state.y == 0 ? 0 : power(state.x - most);
  const float sum = sum_of_warp(weight * state.y);
  const float share = sum == 0 ? 0 : weight / (sum + sink_of(a, static_cast<int>(at % heads), most));
  unsigned* const to = reinterpret_cast<unsigned*>(a.out + at * HEAD);
  for (int from = 0; from < HEAD; from += 64) {
    const int element = from + 2 * lane;
    float2 made = make_float2(0, 0);
    for (int s = 0; s < a.splits; ++s) {
      const float of = __shfl_sync(kAll, share, s);
      if (of == 0 || element >= HEAD) continue;
      const float2 v = *reinterpret_cast<const float2*>(a.sums + (s * all + at) * HEAD + element);
      made.x += v.x * of, made.y += v.y * of;
    }
    if (element < HEAD) to[element / 2] = DTYPE::narrow(made.x, made.y);
  }
}
)cuda";

}  // namespace ct
