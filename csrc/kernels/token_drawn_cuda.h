// The CUDA text of token_drawn: token_drawn.cc compiles and launches it, behind token_best_cuda.h.
//
// Each token has a place: tokens that are likelier come first, or, without both, those with smaller
// numbers. The kernel searches for three tokens, one after the other: the last one of the top-k,
// the last one of the top-p among those, and the drawn one. A search looks at eight bits of the
// places at a time. It counts the tokens of each of 256 bins, and adds their weights, which are
// probabilities in units of 2^-31 of the largest. Sums of integers do not depend on the order, so a
// draw gives the same token each time.
//
// The text is compiled for one set of these macros, besides those of token_best_cuda.h:
//
//   ITEMS   the tokens of a thread
//   KEEP    1: they are measured once, and kept in shared memory, 0: each time
//   TOP     1: there is a top-k
//   FILTER  1: there are a top-p and a min-p
#pragma once

namespace ct {

inline constexpr char kTokenDrawnText[] = R"cuda(
using Wide = unsigned long long;
constexpr int kBins = 256, kThreads = 1024;
constexpr bool kByNumber = !TOP && !FILTER;
constexpr int kFirstShift = kByNumber ? 24 : 56;
constexpr unsigned kTooFar = 0xFFFFFFFFu;

struct Drawn {
  const float* logits;
  const float* changed;   // what is drawn from
  const float* numbers;   // temperature, top-p, min-p, top-k
  const float* uniforms;  // of each position
  long long* token;
  long long* position;
  double* result;
  int count;
};

// The bins of a round of a search. A block may zero bins one round after other blocks have read
// them, so rounds use two of them in turn.
struct Bins {
  Wide weights[kBins], counts[kBins];
};

struct Search {
  Bins bins[2];
  Wide sums[kBins / 32], before, total;
  Wide count;
  unsigned bin;
};

__device__ __forceinline__ Wide load_from(const Wide* shared, int block) {
  Wide v = *shared;
#if BLOCKS > 1
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(v) : "r"(address_in(shared, block)) : "memory");
#endif
  return v;
}

// The tokens of a thread.
struct Tokens {
  const float* changed;
  float largest, scale;  // a token is so many units of 2^-27 below the largest
  int count;
  unsigned* kept;  // this thread's first measure; the next ones are kThreads apart

  __device__ __forceinline__ int token(int i) const { return i * (BLOCKS * kThreads) + static_cast<int>(blockIdx.x * kThreads + threadIdx.x); }

  __device__ __forceinline__ unsigned measure(int i) const {
    const float far = (largest - __ldcg(changed + token(i))) * scale;
    return far < 31.5f ? static_cast<unsigned>(far * 134217728.0f) : kTooFar;
  }

  __device__ __forceinline__ void load() {
#pragma unroll 4
    for (int i = 0; KEEP && i < ITEMS && token(i) < count; ++i) kept[i * kThreads] = measure(i);
  }

  __device__ __forceinline__ unsigned far(int i) const {
    return KEEP ? kept[i * kThreads] : measure(i);
  }
};

__device__ __forceinline__ Wide place_of(unsigned far, int token) { return kByNumber ? static_cast<Wide>(token) : static_cast<Wide>(far) << 32 | static_cast<unsigned>(token); }

__device__ __forceinline__ unsigned weight_of(unsigned far) {
  if (far == kTooFar) return 0;
  return static_cast<unsigned>(exp2f(static_cast<float>(far) * (-1.4426950408889634f / 134217728.0f)) * 2147483648.0f);
}

// What a search looks for: the first token at which the running count, or the running weight,
// reaches a goal.
struct Goal {
  bool counts;
  Wide count;    // with `counts`
  double share;  // else, of the weight of all tokens of the set
  bool above;    // whether the weight is to be above the share
};

// Places from `first` to `last`.
struct Range {
  Wide first, last;
};

// Returns the places around the token of a goal, among the tokens with places up to `last` that are
// at most `farthest` below the largest. With weights the range has no other token of these. With
// counts its last place ends the goal, and if there are too few tokens, it ends at `last`. All
// threads of all blocks call it. `turn` counts the uses of bins.
__device__ __noinline__ Range search_for(const Tokens& tokens, Wide last, unsigned farthest, const Goal& goal, Search& search, int& turn) {
  const int thread = threadIdx.x;
  Wide prefix = 0, rest = goal.count;
  for (int shift = kFirstShift; shift >= 0; shift -= 8) {
    Bins& bins = search.bins[turn++ & 1];
    if (thread < kBins) bins.weights[thread] = bins.counts[thread] = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = 0; i < ITEMS && tokens.token(i) < tokens.count; ++i) {
      const int token = tokens.token(i);
      const unsigned far = tokens.far(i);
      const Wide place = place_of(far, token);
      if (place > last || far > farthest || (shift < 56 && place >> (shift + 8) != prefix)) continue;
      const int bin = static_cast<int>(place >> shift & 255);
      atomicAdd(&bins.counts[bin], Wide{1});
      atomicAdd(&bins.weights[bin], static_cast<Wide>(weight_of(far)));
    }
    meet();
    Wide own = 0, sum = 0, count = 0;
    if (thread < kBins) {
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) {
        own += load_from(&bins.weights[thread], block);
        count += load_from(&bins.counts[thread], block);
      }
      if (goal.counts) own = count;
      sum = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const Wide other = __shfl_up_sync(0xFFFFFFFFu, sum, distance);
        if (thread % 32 >= distance) sum += other;
      }
      if (thread % 32 == 31) search.sums[thread / 32] = sum;
    }
    __syncthreads();
    Wide total = 0;
#pragma unroll
    for (int i = 0; i < kBins / 32; ++i) {
      if (i < thread / 32) sum += search.sums[i];
      total += search.sums[i];
    }
    if (shift == kFirstShift && !goal.counts) {
      const double share = goal.share * static_cast<double>(total);
      rest = goal.above ? static_cast<Wide>(floor(share)) + 1 : static_cast<Wide>(ceil(share));
      if (rest > total) rest = total;
      if (rest == 0) rest = 1;
    }
    if (total < rest) return Range{0, last};
    if (thread < kBins && sum >= rest && sum - own < rest) {
      search.bin = thread;
      search.before = sum - own;
      search.count = count;
      search.total = own;
    }
    __syncthreads();
    prefix = prefix << 8 | search.bin;
    rest -= search.before;
    const bool found = search.count == 1 || (goal.counts && rest == search.total);
    __syncthreads();
    if (found || shift == 0) return Range{prefix << shift, prefix << shift | ((Wide{1} << shift) - 1)};
  }
  return Range{0, last};  // never
}

extern "C" __global__ void __launch_bounds__(1024) token_drawn(const Drawn d) {
  __shared__ Bests bests, others;
  __shared__ Search search;
  extern __shared__ unsigned kept[];
  begin();
  wait();
  const long long at = *d.position + 1;
  const Best best = best_of(d.logits, d.count, bests);
  const Best drawn = d.changed == d.logits ? best : best_of(d.changed, d.count, others);
  const bool usable = drawn.logit - drawn.logit == 0;  // else there are no probabilities: the token is the likeliest

  int token = drawn.token;
  bool writes = blockIdx.x == 0 && threadIdx.x == 0;
  if (usable) {
    Tokens tokens{d.changed, drawn.logit, fminf(1 / __ldcg(d.numbers), 1e30f), d.count, kept + threadIdx.x};
    tokens.load();
    Wide last = ~Wide{0};
    unsigned farthest = kTooFar;
    int turn = 0;
    const auto search_in = [&](const Goal& goal) { return search_for(tokens, last, farthest, goal, search, turn); };
    if (TOP) last = search_in(Goal{true, static_cast<Wide>(fmaxf(__ldcg(d.numbers + 3), 1)), 0, false}).last;
    if (FILTER) {
      const float top_p = __ldcg(d.numbers + 1), min_p = __ldcg(d.numbers + 2);
      if (top_p < 1) last = min(last, search_in(Goal{false, 0, top_p, false}).last);
      if (min_p > 0) farthest = static_cast<unsigned>(fminf(-logf(min_p), 31.5f) * 134217728.0f);
    }
    const Range range = search_in(Goal{false, 0, __ldcg(d.uniforms + at), true});
    last = min(last, range.last);
    writes = false;
#pragma unroll 4
    for (int i = 0; i < ITEMS && tokens.token(i) < d.count; ++i) {
      const int own = tokens.token(i);
      const unsigned far = tokens.far(i);
      const Wide place = place_of(far, own);
      if (place < range.first || place > last || far > farthest) continue;
      token = own;
      writes = true;
    }
  }
  if (writes) {
    *d.token = token;
    *d.position = at;
    d.result[0] = token;
    d.result[1] = best.logit - best.logit == 0 ? __ldcg(d.logits + token) - best.logit - logf(best.sum) : __int_as_float(0x7FC00000);
  }
  meet();  // other blocks may still read bins of this one
}
)cuda";

}  // namespace ct
