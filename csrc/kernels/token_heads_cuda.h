// The parts of token_attention_cuda.h, which has the macros: instructions, sums, and the heads of
// the token. The text of token_instructions_cuda.h comes before it.
#pragma once

namespace ct {

inline constexpr char kTokenHeadsText[] = R"cuda(
using Raw = DTYPE::Raw;

struct TokenAttention {
  const QKV::Raw* qkv;      // [heads + 2 * key_heads][HEAD]
  const float* query_norm;
  const float* key_norm;
  const float* cosines;     // [turned]
  const float* sines;
  const long long* position;
  const long long* before;
  const long long* table;   // [2][blocks]
  Raw* memory;              // [pages][key_heads][16][HEAD]
  const Raw* sinks;
  Raw* out;                 // [heads][HEAD]
  float* partial;           // of splits: for each block kPart sums and GROUP states
  int* arrived;             // [key_heads][8]
  long long values;         // the distance of the pages of values from those of keys
  int key_heads;
  int turned;
  int window;               // 0: all keys are visible
  int splits;               // clusters of a key head in the launch
  int share;                // tiles for which a key head gets one cluster more
  float eps;
  float offset;             // is added to the weights of norms
  float scale;              // of a score's exponent to base 2; with CAP, of the argument of tanh
  float cap;                // in exponents to base 2
  long long next;           // the distance of the tables of two rows

  // Returns what the n-th row of the launch takes. Each block has a piece of `partial`.
  __device__ __forceinline__ TokenAttention of_row(size_t n, int piece) const {
    TokenAttention of = *this;
    const size_t elements = static_cast<size_t>(key_heads) * GROUP * HEAD;
    of.qkv += n * (elements + 2 * key_heads * HEAD), of.out += n * elements;
    of.cosines += n * turned, of.sines += n * turned;
    of.position += n, of.before += n, of.table += n * next;
    of.partial += n * gridDim.x * piece, of.arrived += n * key_heads * 8;
    return of;
  }
};

constexpr int kThreads = 32 * WARPS;
constexpr int kTile = 16;                          // tokens of a page
constexpr int kChunks = HEAD / 8;                  // 16 bytes each
constexpr int kRow = (HEAD + 63) / 64 * 64;        // elements between rows in shared memory
constexpr int kStage = kTile * kRow;               // elements
constexpr int kSteps = (HEAD + 31) / 32;           // of a product of query and key
constexpr int kWide = (HEAD + 63) / 64;            // groups of 64 elements of a value
constexpr int kPart = GROUP * HEAD / CLUSTER;      // numbers that one block of a cluster finishes
constexpr int kRows = (GROUP + 2 + WARPS - 1) / WARPS;  // heads that a warp makes
constexpr int kCouples = (HEAD / 2 + 32 * NEIGHBOURS - 1) / (32 * NEIGHBOURS);  // of a head, that a lane makes
constexpr unsigned kAll = 0xFFFFFFFFu;

// ---- instructions

// Writes v to the place that `at` has in a block of the cluster.
__device__ __forceinline__ void push(float2* at, int block, float2 v) {
#if CLUSTER > 1
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.v2.f32 [there], {%2, %3};\n}" ::"r"(address_of(at)),
               "r"(block), "f"(v.x), "f"(v.y)
               : "memory");
#else
  *at = v;
#endif
}

// Tells the cluster that this block runs, or waits for that of all its blocks.
__device__ __forceinline__ void cluster_runs(bool waits) {
#if CLUSTER > 1
  __syncwarp();
  if (waits) {
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  } else {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
#endif
}

// Waits for all threads of the cluster, and for what they pushed.
__device__ __forceinline__ void cluster_meets() {
#if CLUSTER > 1
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// ---- small things

// Splits two numbers into those that DTYPE has, and what is left over.
__device__ __forceinline__ void split_up(float a, float b, unsigned& high, unsigned& low) {
  high = DTYPE::narrow(a, b);
  low = DTYPE::narrow(a - DTYPE::widen(static_cast<Raw>(high & 0xFFFFu)), b - DTYPE::widen(static_cast<Raw>(high >> 16)));
}

// Where a chunk of a row lies in a stage. The lanes that read at the same time use all banks.
__device__ __forceinline__ int key_at(int row, int chunk) { return row * kRow + (chunk ^ (row & 1) << 2) * 8; }
__device__ __forceinline__ int value_at(int row, int chunk) { return row * kRow + (chunk ^ (row & 6)) * 8; }

// Loads four neighbours of qkv.
__device__ __forceinline__ float4 load_four(const QKV::Raw* from) {
  if constexpr (sizeof(QKV::Raw) == 4) return __ldcg(reinterpret_cast<const float4*>(from));
  const uint2 v = __ldcg(reinterpret_cast<const uint2*>(from));
  const auto widen = [](unsigned bits) { return QKV::widen(static_cast<QKV::Raw>(bits & 0xFFFFu)); };
  return make_float4(widen(v.x), widen(v.x >> 16), widen(v.y), widen(v.y >> 16));
}

__device__ __forceinline__ uint4 load_chunk(const Raw* from) { return *reinterpret_cast<const uint4*>(from); }

// The sum of power(score - most) of some keys, and `most`, the greatest score.
struct State {
  float most = lowest(), sum = 0;

  // Adds a state. Returns the factor for what the caller has added up so far. Sets the one for what
  // belongs to the state.
  __device__ __forceinline__ float add(float2 of, float& factor) {
    const float greatest = fmaxf(most, of.x), base = greatest == lowest() ? 0 : greatest, own = power(most - base);
    factor = power(of.x - base);
    most = greatest;
    sum = fmaf(factor, of.y, sum * own);
    return own;
  }
};

// The sums of two neighbouring elements of a head, with the state of the head.
struct Sums {
  State state;
  float2 v = {0, 0};

  __device__ __forceinline__ void add(float2 of, float2 numbers) {
    float factor;
    const float own = state.add(of, factor);
    v.x = fmaf(factor, numbers.x, v.x * own), v.y = fmaf(factor, numbers.y, v.y * own);
  }
};

// The factors with which the sums of n states are added up, and the state of all of them.
template <int n>
struct Merge {
  float factors[n];
  State all;

  // A state is `distance` behind the one before.
  __device__ __forceinline__ Merge(const float2* states, int distance) {
#pragma unroll
    for (int i = 0; i < n; ++i) all.most = fmaxf(all.most, states[i * distance].x);
    const float base = all.most == lowest() ? 0 : all.most;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      factors[i] = power(states[i * distance].x - base);
      all.sum = fmaf(factors[i], states[i * distance].y, all.sum);
    }
  }
};

// Writes the result of elements `at` and at + 1 of the key head's group.
__device__ __forceinline__ void write(const TokenAttention& a, int key_head, int at, Sums sums) {
#if SINKS
  const float sink = DTYPE::widen(a.sinks[key_head * GROUP + at / HEAD]) * 1.4426950408889634f;
  sums.add(make_float2(sink, 1), make_float2(0, 0));
#endif
  const float factor = 1 / sums.state.sum;
  *reinterpret_cast<unsigned*>(a.out + key_head * GROUP * HEAD + at) = DTYPE::narrow(sums.v.x * factor, sums.v.y * factor);
}

// ---- the heads of the token

// Loads NEIGHBOURS neighbours.
template <typename From>
__device__ __forceinline__ void load_neighbours(float* to, const typename From::Raw* from) {
  if constexpr (NEIGHBOURS == 1) {
    to[0] = From::widen(__ldcg(from));
  } else if constexpr (sizeof(typename From::Raw) == 4) {
    const float2 v = __ldcg(reinterpret_cast<const float2*>(from));
    to[0] = v.x, to[1] = v.y;
  } else {
    const unsigned v = __ldcg(reinterpret_cast<const unsigned*>(from));
    to[0] = From::widen(static_cast<typename From::Raw>(v & 0xFFFFu)), to[1] = From::widen(static_cast<typename From::Raw>(v >> 16));
  }
}

// Writes NEIGHBOURS neighbours as DTYPE, and what rounding left over to `left`, unless that is NULL.
__device__ __forceinline__ void store_neighbours(Raw* to, Raw* left, const float* v) {
  if constexpr (NEIGHBOURS == 1) {
    *to = DTYPE::narrow(v[0]);
    if (left != nullptr) *left = DTYPE::narrow(v[0] - DTYPE::widen(*to));
  } else {
    unsigned high, low;
    split_up(v[0], v[1], high, low);
    *reinterpret_cast<unsigned*>(to) = high;
    if (left != nullptr) *reinterpret_cast<unsigned*>(left) = low;
  }
}

// What a lane needs of the heads that its warp makes: queries, then the key, then the value. A lane
// makes couples of elements that are turned together, each NEIGHBOURS neighbours. Elements that are not
// turned are couples, too.
struct Heads {
  float norm[NORM ? kRows : 1][kCouples][2 * NEIGHBOURS];

  static __device__ __forceinline__ int row(int i) { return threadIdx.x / 32 + i * WARPS; }
  static __device__ __forceinline__ bool inside(int i) { return HEAD % (64 * NEIGHBOURS) == 0 || couple(i) < HEAD / 2; }
  static __device__ __forceinline__ int couple(int i) { return (threadIdx.x % 32 + 32 * i) * NEIGHBOURS; }

  // Returns the first element of one half of a couple.
  static __device__ __forceinline__ int element(const TokenAttention& a, int i, int half) {
    const int at = couple(i), half_turned = a.turned / 2;
    return at < half_turned ? at + half * half_turned : at + half_turned + half * (HEAD - a.turned) / 2;
  }

  // Loads the weights of norms. No kernel writes them, so they are loaded before the wait.
  __device__ __forceinline__ void load_norms(const TokenAttention& a, int key_head, bool newest) {
#if NORM
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row(r) > GROUP || (row(r) == GROUP && !newest)) continue;
      const float* from = row(r) < GROUP ? a.query_norm : a.key_norm;
      if (NORM == 2) from += (row(r) < GROUP ? key_head * GROUP + row(r) : key_head) * HEAD;
#pragma unroll
      for (int i = 0; i < 2 * kCouples; ++i) {
        if (inside(i / 2)) load_neighbours<Float>(norm[r][i / 2] + i % 2 * NEIGHBOURS, from + element(a, i / 2, i % 2));
      }
    }
#endif
  }

  // Makes the heads. `queries` gets two matrices [GROUP][kRow], high and low, laid out as a stage.
  // With `newest` the key and the value go into `fresh`, and into their places in the cache.
  __device__ __forceinline__ void make(const TokenAttention& a, int key_head, bool newest, Raw (*queries)[GROUP * kRow], Raw (*fresh)[HEAD],
                                       Raw* key_place, Raw* value_place) const {
    float v[kRows][kCouples][2 * NEIGHBOURS], cosine[kCouples][2 * NEIGHBOURS], sine[kCouples][2 * NEIGHBOURS];
    const int heads = a.key_heads * GROUP;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int of = row(r);
      const QKV::Raw* const from = a.qkv + static_cast<size_t>(of < GROUP ? key_head * GROUP + of : heads + key_head + (of - GROUP) * a.key_heads) * HEAD;
#pragma unroll
      for (int i = 0; i < 2 * kCouples; ++i) {
        float* const to = v[r][i / 2] + i % 2 * NEIGHBOURS;
        to[0] = to[NEIGHBOURS - 1] = 0;
        if (of < (newest ? GROUP + 2 : GROUP) && inside(i / 2)) load_neighbours<QKV>(to, from + element(a, i / 2, i % 2));
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kCouples; ++i) {
      float *const c = cosine[i / 2] + i % 2 * NEIGHBOURS, *const s = sine[i / 2] + i % 2 * NEIGHBOURS;
      c[0] = c[NEIGHBOURS - 1] = 1, s[0] = s[NEIGHBOURS - 1] = 0;
      if (couple(i / 2) < a.turned / 2) {
        load_neighbours<Float>(c, a.cosines + element(a, i / 2, i % 2));
        load_neighbours<Float>(s, a.sines + element(a, i / 2, i % 2));
      }
    }
#if NORM == 2
    __shared__ float room[2][WARPS];
    const int columns[2] = {heads * HEAD, newest ? a.key_heads * HEAD : 0};
    float of_all[2];
#pragma unroll
    for (int kind = 0; kind < 2; ++kind) {
      const QKV::Raw* const from = a.qkv + (kind == 0 ? 0 : heads * HEAD);
      float squares = 0;
#pragma unroll 8
      for (int i = threadIdx.x; i < columns[kind] / 4; i += kThreads) {
        const float4 f = load_four(from + 4 * i);
        squares = fmaf(f.x, f.x, fmaf(f.y, f.y, fmaf(f.z, f.z, fmaf(f.w, f.w, squares))));
      }
      squares = sum_of_warp(squares);
      if (threadIdx.x % 32 == 0) room[kind][threadIdx.x / 32] = squares;
    }
    __syncthreads();
#pragma unroll
    for (int kind = 0; kind < 2; ++kind) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < WARPS; ++i) squares += room[kind][i];
      of_all[kind] = rsqrtf(squares / ((kind == 0 ? heads : a.key_heads) * HEAD) + a.eps);
    }
#endif
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int of = row(r);
      if (of >= (newest ? GROUP + 2 : GROUP)) continue;
#if NORM == 1
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kCouples; ++i) {
#pragma unroll
        for (int e = 0; e < 2 * NEIGHBOURS; ++e) squares = fmaf(v[r][i][e], v[r][i][e], squares);
      }
      const float factor = rsqrtf(sum_of_warp(squares) / HEAD + a.eps);
#elif NORM == 2
      const float factor = of < GROUP ? of_all[0] : of_all[1];
#endif
#pragma unroll
      for (int i = 0; i < kCouples; ++i) {
        if (!inside(i)) continue;
        float normed[2 * NEIGHBOURS], made[2 * NEIGHBOURS];
#pragma unroll
        for (int e = 0; e < 2 * NEIGHBOURS; ++e) {
          normed[e] = v[r][i][e];
#if NORM
          if (of <= GROUP) normed[e] *= factor * (norm[r][i][e] + a.offset);
#endif
        }
#pragma unroll
        for (int e = 0; e < 2 * NEIGHBOURS; ++e) made[e] = of <= GROUP ? fmaf(normed[e], cosine[i][e], normed[(e + NEIGHBOURS) % (2 * NEIGHBOURS)] * sine[i][e]) : normed[e];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = element(a, i, half);
          if (of < GROUP) {
            const int to = key_at(of, at / 8) + at % 8;
            store_neighbours(queries[0] + to, queries[1] + to, made + half * NEIGHBOURS);
          } else {
            store_neighbours(fresh[of - GROUP] + at, nullptr, made + half * NEIGHBOURS);
            store_neighbours((of == GROUP ? key_place : value_place) + at, nullptr, made + half * NEIGHBOURS);
          }
        }
      }
    }
  }
};
)cuda";

}  // namespace ct
