// The CUDA text of token_drawn: token_drawn.cc compiles and launches it, behind token_best_cuda.h.
//
// Each token has a place. With a top-k, a top-p or a min-p, likelier tokens come first. Otherwise
// tokens come by their numbers. The kernel looks for three tokens, one after the other: the last
// one of the top-k, the last one of the top-p among those, and the drawn one. A round of a search
// counts the tokens of each of 256 bins of places, and adds their weights, which are probabilities
// in units of 2^-31 of the largest. The next round divides the bin that reaches the goal. If a
// first round finds few tokens up to the end of that bin, one block sorts them, and looks for the
// other tokens there. Sums of integers do not depend on the order, so a draw gives the same token
// each time.
//
// The text is compiled for one set of these macros, besides those of token_best_cuda.h:
//
//   ITEMS   the tokens of a thread
//   KEEP    1: they are measured once, and kept in shared memory, 0: each time
//   TOP     1: there is a top-k
//   FILTER  1: there are a top-p and a min-p
//   ROWS    1: the launch has several rows, whose numbers tell what each of them has; TOP and
//           FILTER are then 0
#pragma once

namespace ct {

inline constexpr char kTokenDrawnText[] = R"cuda(
using Wide = unsigned long long;
constexpr int kBins = 256, kThreads = 1024;
constexpr int kFew = 512;   // sorting them takes a time that grows by the square
constexpr int kAtOnce = 8;  // a thread's loads that are on their way together
constexpr unsigned kTooFar = 0xFFFFFFFFu;

// Returns by how many bits the places of a first round are shifted, for 256 bins.
__device__ constexpr int first_shift(bool by_number) {
  int shift = by_number ? 0 : 56;
  while (by_number && (ITEMS * BLOCKS * kThreads - 1) >> shift >= kBins) ++shift;
  return shift;
}

struct Drawn {
  const float* logits;
  const float* changed;   // what is drawn from
  const float* numbers;   // temperature, top-p, min-p, top-k
  const float* uniforms;  // of each position
  long long* token;
  long long* position;
  double* result;
  int count;
  int of_numbers;         // the elements of a row
  int of_uniforms;
  int of_result;
};

// The bins of a round of a search. A block may zero bins one round after other blocks have read
// them, so rounds use two of them in turn.
struct Bins {
  Wide weights[kBins];
  unsigned counts[kBins];
};

struct Search {
  Bins bins[2];
  Wide few[kFew];  // their places, in block 0
  unsigned ranks[kFew];
  Wide sums[kFew / 32];
  bool reached;    // whether a goal was reached
  int at;          // at which thread
  Wide before;     // the sum before that thread
  unsigned count;  // the tokens of that thread
  unsigned crowd;  // the tokens up to the end of that thread's bin
  unsigned slot;   // where this block puts its next one of the few
};
static_assert(kFew >= kBins && kFew % 32 == 0 && kFew <= kThreads, "`reaches` adds up bins and the few");
static_assert(sizeof(Search) + 2 * sizeof(Bests) <= 15360, "token_drawn.cc leaves so much shared memory");

// Adds to a sum in shared memory, in halves: only 32 bits have fast atomics.
__device__ __forceinline__ void add_to(Wide& sum, Wide v) {
  if (v == 0) return;
  unsigned* const halves = reinterpret_cast<unsigned*>(&sum);
  const unsigned low = static_cast<unsigned>(v), carry = atomicAdd(halves, low) > ~low;
  const unsigned high = static_cast<unsigned>(v >> 32) + carry;
  if (high != 0) atomicAdd(halves + 1, high);
}

// Loads a variable of the shared memory of another block, of 4 or 8 bytes.
template <typename T>
__device__ __forceinline__ T load_from(const T* shared, int block) {
#if BLOCKS > 1
  T v;
  if constexpr (sizeof(T) == 8) {
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(v) : "r"(address_in(shared, block)) : "memory");
  } else {
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(address_in(shared, block)) : "memory");
  }
  return v;
#else
  return *shared;
#endif
}

__device__ __forceinline__ void store_in(Wide* shared, int block, Wide v) {
#if BLOCKS > 1
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address_in(shared, block)), "l"(v) : "memory");
#else
  *shared = v;
#endif
}

// The tokens of a thread.
struct Tokens {
  const float* changed;
  float largest, scale;  // a token is so many units of 2^-27 below the largest
  int count;
  unsigned* kept;  // this thread's first measure; the next ones are kThreads apart

  __device__ __forceinline__ unsigned measure(int token) const {
    const float far = (largest - __ldcg(changed + min(token, count - 1))) * scale;  // a branch would end the batch of loads
    return token < count && far < 31.5f ? static_cast<unsigned>(far * 134217728.0f) : kTooFar;
  }

  // Calls `use` with the number of each token, its measure, and where this is kept. All threads
  // call it equally often: the last numbers may be past the last token, and are too far.
  template <bool kKept, typename Use>
  __device__ __forceinline__ void each(const Use& use) const {
    const int first = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
#pragma unroll 1
    for (int i = 0; i < ITEMS; i += kAtOnce) {
      unsigned far[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (i + k < ITEMS) far[k] = kKept ? kept[(i + k) * kThreads] : measure(first + (i + k) * (BLOCKS * kThreads));
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (i + k < ITEMS) use(first + (i + k) * (BLOCKS * kThreads), far[k], kept + (i + k) * kThreads);
      }
    }
  }

  __device__ __forceinline__ void load() const {
    if (KEEP) each<false>([&](int, unsigned far, unsigned* at) { *at = far; });
  }
};

template <bool kByNumber>
__device__ __forceinline__ Wide place_of(unsigned far, int token) {
  return kByNumber ? static_cast<Wide>(token) : static_cast<Wide>(far) << 32 | static_cast<unsigned>(token);
}

__device__ __forceinline__ unsigned weight_of(unsigned far) {
  if (far == kTooFar) return 0;
  return static_cast<unsigned>(exp2f(static_cast<float>(far) * (-1.4426950408889634f / 134217728.0f)) * 2147483648.0f);
}

// Places from `first` to `last`.
struct Range {
  Wide first, last;

  __device__ __forceinline__ bool has(Wide place) const { return place - first <= last - first; }
};

// The token that a search looks for: the first one at which a running sum reaches `rest`.
struct Goal {
  bool counts;  // the sum is that of tokens, and else of their weights
  float share;  // of the weight of all tokens of the range
  bool above;   // the sum is to be above the share
  Wide rest;    // 0 until `reaches` has computed it from the share
};

// Returns whether the sum of `own` over the first kFew threads reaches a goal. It tells in `search`
// at which thread. All threads of a block call it. Only the first kFew know the goal's rest then.
__device__ __forceinline__ bool reaches(Goal& goal, Wide own, unsigned count, Search& search) {
  const int thread = threadIdx.x;
  Wide sum = own, total = 0;
  if (thread < kFew) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const Wide other = __shfl_up_sync(0xFFFFFFFFu, sum, distance);
      if (thread % 32 >= distance) sum += other;
    }
    if (thread % 32 == 31) search.sums[thread / 32] = sum;
  }
  __syncthreads();
  if (thread < kFew) {
#pragma unroll
    for (int i = 0; i < kFew / 32; ++i) {
      if (i < thread / 32) sum += search.sums[i];
      total += search.sums[i];
    }
    if (goal.rest == 0) {
      const double share = static_cast<double>(goal.share) * static_cast<double>(total);
      goal.rest = goal.above ? static_cast<Wide>(floor(share)) + 1 : static_cast<Wide>(ceil(share));
      goal.rest = max(min(goal.rest, total), Wide{1});
    }
    if (thread == 0) search.reached = total >= goal.rest;
    if (sum >= goal.rest && sum - own < goal.rest) {
      search.at = thread;
      search.before = sum - own;
      search.count = count;
    }
  }
  __syncthreads();
  return search.reached;
}

// Narrows a range to the places around the token of a goal. With weights no other token is in it.
// With counts its last place ends the goal. Returns false, and leaves the range, if its tokens do
// not reach the goal. All threads of all blocks call it. `turn` counts the uses of bins.
//
// If the first round shows that few tokens have places up to the end of the bin, it ends there.
// `few` is then their number, the range ends behind them, and the goal counts from the first place.
template <bool kByNumber>
__device__ __forceinline__ bool search_for(const Tokens& tokens, Range& range, Goal& goal, Search& search, int& turn, int& few) {
  constexpr int kFirstShift = first_shift(kByNumber);
  const int thread = threadIdx.x;
  for (int shift = kFirstShift;; shift = max(shift - 8, 0)) {
    Bins& bins = search.bins[turn++ & 1];
    if (thread < kBins) bins.weights[thread] = bins.counts[thread] = 0;
    __syncthreads();
    if (thread == 0) search.crowd = search.slot = 0;
    tokens.each<KEEP>([&](int token, unsigned far, unsigned*) {
      const Wide place = place_of<kByNumber>(far, token);
      const int bin = static_cast<int>((place - range.first) >> shift);
      const bool in = range.has(place);
      if (kByNumber && shift >= 5) {  // 32 numbers behind each other, those of a warp, have one bin
        Wide weight = in ? weight_of(far) : 0;
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) weight += __shfl_xor_sync(0xFFFFFFFFu, weight, distance);
        if (in && thread % 32 == 0) add_to(bins.weights[bin], weight);
      } else if (in) {
        if (!kByNumber) atomicAdd(&bins.counts[bin], 1u);
        if (!goal.counts) add_to(bins.weights[bin], weight_of(far));
      }
    });
    meet();
    Wide weight = 0;
    unsigned count = 0, before = 0;  // of all blocks, and of the blocks before this one
    if (thread < kBins) {
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) {
        if (block == static_cast<int>(blockIdx.x)) before = count;
        if (!kByNumber) count += load_from(&bins.counts[thread], block);
        if (!goal.counts) weight += load_from(&bins.weights[thread], block);
      }
    }
    if (!reaches(goal, goal.counts ? count : weight, count, search)) return false;
    range.first += static_cast<Wide>(search.at) << shift;
    range.last = min(range.last, range.first + ((Wide{1} << shift) - 1));
    if (!kByNumber && shift == kFirstShift) {
      if (thread <= search.at && count != 0) {
        atomicAdd(&search.crowd, count);
        atomicAdd(&search.slot, before);
      }
      __syncthreads();
      if (search.crowd <= kFew) {
        few = static_cast<int>(search.crowd);
        return true;
      }
    }
    goal.rest -= search.before;
    if (shift == 0 || search.count == 1 || (goal.counts && goal.rest == search.count)) return true;
  }
}

// Brings the few tokens, with places up to `last`, into block 0. All threads of all blocks call it.
// Nobody needs the shared memory of other blocks after it.
__device__ __forceinline__ void gather(const Tokens& tokens, Wide last, Search& search) {
  if (threadIdx.x < kFew) search.ranks[threadIdx.x] = 0;
  tokens.each<KEEP>([&](int token, unsigned far, unsigned*) {
    const Wide place = place_of<false>(far, token);
    if (place <= last) store_in(&search.few[atomicAdd(&search.slot, 1u)], 0, place);
  });
  meet();
}

// Sorts the few tokens. Returns the place of each thread's one. All threads of block 0 call it.
__device__ __forceinline__ Wide sorted(int few, Search& search) {
  constexpr int kOwners = 128;
  const int thread = threadIdx.x;
  for (int own = thread % kOwners; own < few; own += kOwners) {
    const Wide place = search.few[own];
    unsigned rank = 0;
    for (int other = thread / kOwners; other < few; other += kThreads / kOwners) rank += search.few[other] < place;
    atomicAdd(&search.ranks[own], rank);
  }
  const Wide own = thread < few ? search.few[thread] : 0;
  __syncthreads();
  if (thread < few) search.few[search.ranks[thread]] = own;
  __syncthreads();
  return thread < few ? search.few[thread] : ~Wide{0};
}

// What the rules of a draw are.
struct Rules {
  bool top, filter;
  float top_p, min_p, top_k, uniform;
};

// Draws one of the tokens. Returns whether this thread writes the token. All threads of all blocks
// call it. Other blocks may read shared memory of this one until all have met, unless `few` is set.
template <bool kByNumber>
__device__ __forceinline__ bool draw(const Tokens& tokens, const Rules& rules, Search& search, int& token, int& few) {
  bool writes = blockIdx.x == 0 && threadIdx.x == 0;
  tokens.load();
  Range range{0, place_of<kByNumber>(kTooFar, tokens.count - 1)};
  enum Step { kTopK, kTopP, kDraw };
  bool found = false;
  Wide place = 0;  // of this thread's one of the few
  int turn = 0;
  for (int step = rules.top ? kTopK : kTopP; step <= kDraw; ++step) {
    if (step == kTopP && !(rules.filter && rules.top_p < 1)) continue;
    if (step == kDraw && rules.filter && rules.min_p > 0) {
      const unsigned farthest = static_cast<unsigned>(fminf(-logf(rules.min_p), 31.5f) * 134217728.0f);
      range.last = min(range.last, place_of<kByNumber>(farthest, -1));  // with all numbers of tokens
    }
    range.first = 0;
    Goal goal{step == kTopK, step == kTopP ? rules.top_p : rules.uniform, step == kDraw, step == kTopK ? static_cast<Wide>(fmaxf(rules.top_k, 1)) : 0};
    if (few == 0) {
      found = search_for<kByNumber>(tokens, range, goal, search, turn, few);
      if (few == 0) continue;
      gather(tokens, range.last, search);
      if (blockIdx.x != 0) return false;
      place = sorted(few, search);
    }
    found = reaches(goal, place > range.last ? 0 : goal.counts ? 1 : weight_of(static_cast<unsigned>(place >> 32)), 0, search);
    if (found) range.first = range.last = search.few[search.at];
  }
  if (found && few != 0) token = static_cast<int>(range.last);
  if (found && few == 0) {
    writes = false;
    tokens.each<KEEP>([&](int own, unsigned far, unsigned*) {
      if (!range.has(place_of<kByNumber>(far, own))) return;
      token = own;
      writes = true;
    });
  }
  return writes;
}

extern "C" __global__ void __launch_bounds__(1024, 1) token_drawn(const Drawn given) {
  __shared__ Bests bests, others;
  __shared__ Search search;
  extern __shared__ unsigned kept[];
  begin();
  wait();
  Drawn d = given;
#if ROWS
  const size_t row = blockIdx.y;
  d.token += row, d.position += row;
  if (__ldcg(d.position) < 0) return;  // all blocks of the cluster do
  d.logits += row * d.count, d.changed += row * d.count, d.numbers += row * d.of_numbers, d.uniforms += row * d.of_uniforms, d.result += row * d.of_result;
#endif
  const long long at = *d.position + 1;
  const float temperature = __ldcg(d.numbers), top_p = __ldcg(d.numbers + 1), min_p = __ldcg(d.numbers + 2), top_k = __ldcg(d.numbers + 3);
  const float uniform = __ldcg(d.uniforms + at);
  const Best best = best_of(d.logits, d.count, bests);
  const Best drawn = d.changed == d.logits ? best : best_of(d.changed, d.count, others);

  int token = drawn.token, few = 0;
  bool writes = blockIdx.x == 0 && threadIdx.x == 0;
  if (drawn.logit - drawn.logit == 0) {  // else there are no probabilities: the token is the likeliest
    const Tokens tokens{d.changed, drawn.logit, fminf(1 / temperature, 1e30f), d.count, kept + threadIdx.x};
#if ROWS
    const Rules rules{top_k >= 1, top_p < 1 || min_p > 0, top_p, min_p, top_k, uniform};
    if (!rules.top && !rules.filter) {
      writes = draw<true>(tokens, rules, search, token, few);
    } else if (!(rules.top && top_k < 2)) {  // else there is but the likeliest
      writes = draw<false>(tokens, rules, search, token, few);
    }
#else
    writes = draw<!TOP && !FILTER>(tokens, Rules{TOP, FILTER, top_p, min_p, top_k, uniform}, search, token, few);
#endif
  }
  if (writes) {
    *d.token = token;
    *d.position = at;
    d.result[0] = token;
    d.result[1] = best.logit - best.logit == 0 ? __ldcg(d.logits + token) - best.logit - logf(best.sum) : __int_as_float(0x7FC00000);
  }
  if (few == 0) meet();  // other blocks may still read bins of this one
}
)cuda";

}  // namespace ct
