#include "kernels/token_attention_cpu.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/heads.h"
#include "kernels/on_threads.h"

namespace ct {
namespace {

// What is inlined into attend_on_avx2 is compiled for AVX2. A call would lead to code for any CPU.
#define CT_INLINE inline __attribute__((always_inline))

constexpr int64_t kLanes = 8;  // numbers that vector instructions take together

template <typename Wide>
struct Lanes {
  typedef Wide All __attribute__((vector_size(kLanes * sizeof(Wide))));
  All all;

  CT_INLINE explicit Lanes(const Wide* from) { std::memcpy(&all, from, sizeof all); }
  CT_INLINE void store(Wide* to) const { std::memcpy(to, &all, sizeof all); }
};

int64_t in_lanes(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// A CpuAttention with its types: Raw is that of the cache, and Wide that of queries and sums.
template <typename Raw, typename Wide>
struct Attention {
  const CpuAttention& a;
  const Raw* memory;
  const Wide* query;
  const Wide* sinks;
  Raw* out;
  int64_t head, key_heads, group;  // group is the number of queries that share a head of keys
};

// Adds the products of four keys with kLanes queries to `to`, four rows that lie `lanes` apart.
template <typename Wide>
CT_INLINE void score(const Wide* keys, int64_t stride, const Wide* queries, int64_t lanes, int64_t head, Wide* to) {
  Lanes a(to), b(to + lanes), c(to + 2 * lanes), d(to + 3 * lanes);
  for (int64_t i = 0; i < head; ++i) {
    const Lanes query(queries + i * lanes);
    a.all += keys[i] * query.all;
    b.all += keys[i + stride] * query.all;
    c.all += keys[i + 2 * stride] * query.all;
    d.all += keys[i + 3 * stride] * query.all;
  }
  a.store(to), b.store(to + lanes), c.store(to + 2 * lanes), d.store(to + 3 * lanes);
}

// Makes weights of scores `first` up to `end` of a query, by a softmax with a sink, which may be
// null. The scores lie `lanes` apart.
template <typename Wide>
CT_INLINE void softmax(Wide* scores, int64_t lanes, int64_t first, int64_t end, const Wide* sink) {
  Wide largest = sink != nullptr ? *sink : scores[first * lanes], sum = 0;
  for (int64_t k = first; k < end; ++k) largest = std::max(largest, scores[k * lanes]);
  for (int64_t k = first; k < end; ++k) sum += scores[k * lanes] = std::exp(scores[k * lanes] - largest);
  if (sink != nullptr) sum += std::exp(*sink - largest);
  for (int64_t k = first; k < end; ++k) scores[k * lanes] /= sum;
}

// Computes the queries of one row that share a head of keys. `room` is memory for it to use.
template <typename Raw, typename Wide>
CT_INLINE void attend(const Attention<Raw, Wide>& of, const SeenKeys& row, int64_t key_head, const Wide* query, const Wide* sinks, Raw* out,
                      std::vector<Wide>& room) {
  const int64_t first = row.oldest / kPage, blocks = row.newest / kPage + 1 - first, padded = in_lanes(of.head), lanes = in_lanes(of.group);
  room.assign(static_cast<size_t>(kPage * padded + of.head * lanes + of.group * padded + blocks * kPage * lanes), 0);
  Wide *const page = room.data(), *const queries = page + kPage * padded, *const sums = queries + of.head * lanes, *const scores = sums + of.group * padded;
  // Brings the keys, kind 0, or the values, kind 1, of each block into `page`, and calls `use` with
  // the scores of that block. Zeros are in place of those that the row does not see.
  const auto each = [&](int64_t kind, const auto& use) {
    for (int64_t b = 0; b < blocks; ++b) {
      const Raw* const from = of.memory + (row.pages[kind * row.values + first + b] * of.key_heads + key_head) * kPage * of.head;
      for (int64_t t = 0; t < kPage; ++t) {
        const int64_t number = (first + b) * kPage + t;
        const bool seen = number >= row.oldest && number <= row.newest;
        for (int64_t d = 0; d < of.head; ++d) page[t * padded + d] = seen ? static_cast<Wide>(from[t * of.head + d]) : 0;
      }
      use(scores + b * kPage * lanes);
    }
  };
  const auto cap = static_cast<Wide>(of.a.cap), scale = static_cast<Wide>(of.a.scale);
  for (int64_t g = 0; g < of.group; ++g) {
    for (int64_t d = 0; d < of.head; ++d) queries[d * lanes + g] = query[g * of.head + d] * scale;
  }
  each(0, [&](Wide* of_page) {
    for (int64_t t = 0; t < kPage; t += 4) {
      for (int64_t g = 0; g < lanes; g += kLanes) score(page + t * padded, padded, queries + g, lanes, of.head, of_page + t * lanes + g);
    }
  });
  for (int64_t i = 0; cap > 0 && i < blocks * kPage * lanes; ++i) scores[i] = cap * std::tanh(scores[i] / cap);
  const int64_t oldest = row.oldest - first * kPage, end = row.newest + 1 - first * kPage;
  for (int64_t g = 0; g < of.group; ++g) softmax(scores + g, lanes, oldest, end, sinks != nullptr ? sinks + g : nullptr);
  each(1, [&](const Wide* of_page) {
    for (int64_t g = 0; g < of.group; ++g) {
      for (int64_t d = 0; d < padded; d += kLanes) {
        Lanes sum(sums + g * padded + d);
        for (int64_t t = 0; t < kPage; ++t) sum.all += of_page[t * lanes + g] * Lanes(page + t * padded + d).all;
        sum.store(sums + g * padded + d);
      }
    }
  });
  for (int64_t g = 0; g < of.group; ++g) {
    for (int64_t d = 0; d < of.head; ++d) out[g * of.head + d] = static_cast<Raw>(sums[g * padded + d]);
  }
}

// Computes units `from` up to `to`. A unit is a head of keys of a row. A padded row gets zeros.
template <typename Raw, typename Wide>
CT_INLINE void attend_units(const Attention<Raw, Wide>& of, int64_t from, int64_t to) {
  std::vector<Wide> room;
  for (int64_t unit = from; unit < to; ++unit) {
    const int64_t key_head = unit % of.key_heads, at = unit * of.group * of.head;
    const SeenKeys& row = of.a.rows[static_cast<size_t>(unit / of.key_heads)];
    if (row.oldest < 0) {
      std::fill(of.out + at, of.out + at + of.group * of.head, Raw(0));
      continue;
    }
    attend(of, row, key_head, of.query + at, of.sinks != nullptr ? of.sinks + key_head * of.group : nullptr, of.out + at, room);
  }
}

#ifdef __x86_64__
template <typename Raw, typename Wide>
__attribute__((target("avx2,fma"))) void attend_on_avx2(const Attention<Raw, Wide>& of, int64_t from, int64_t to) {
  attend_units(of, from, to);
}
#endif

template <typename Raw, typename Wide>
void attend_on_any(const Attention<Raw, Wide>& of, int64_t from, int64_t to) {
#ifdef __x86_64__
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2) return attend_on_avx2(of, from, to);
#endif
  attend_units(of, from, to);
}

// Writes new keys or values, `kind` 0 or 1, into the cache.
template <typename Raw, typename Wide>
void write(const CpuAttention& a, int kind, const Wide* fresh) {
  const int64_t key_heads = a.memory.size(2), head = a.memory.size(4);
  Raw* const memory = a.memory.mutable_data_ptr<Raw>();
  for (const SeenKeys& row : a.rows) {
    for (int64_t h = 0; h < key_heads; ++h, fresh += head) {
      if (row.oldest < 0) continue;
      Raw* const to = memory + ((row.pages[kind * row.values + row.newest / kPage] * key_heads + h) * kPage + row.newest % kPage) * head;
      for (int64_t d = 0; d < head; ++d) to[d] = static_cast<Raw>(fresh[d]);
    }
  }
}

template <typename Raw, typename Wide>
void attend_all(const CpuAttention& a, const at::Tensor& out) {
  const int64_t rows = a.query.size(0), heads = a.query.size(1), head = a.query.size(2), key_heads = a.memory.size(2), group = heads / key_heads;
  const Wide* const sinks = a.sinks.defined() ? a.sinks.const_data_ptr<Wide>() : nullptr;
  const Attention<Raw, Wide> of{a, a.memory.const_data_ptr<Raw>(), a.query.const_data_ptr<Wide>(), sinks, out.mutable_data_ptr<Raw>(), head, key_heads, group};
  if (a.key.defined()) {
    write<Raw>(a, 0, a.key.const_data_ptr<Wide>());
    write<Raw>(a, 1, a.value.const_data_ptr<Wide>());
  }
  int64_t products = 0;
  for (const SeenKeys& row : a.rows) products += (row.newest - row.oldest + 1) * heads * head;
  const at::Tensor firsts = out.view({rows * key_heads, group * head}).select(1, 0);
  on_threads(firsts, products, [&](int64_t from, int64_t to) { attend_on_any(of, from, to); });
}

}  // namespace

SeenKeys seen_by(const char* op, const at::Tensor& table, int64_t newest, int64_t window, int64_t pages) {
  const int64_t blocks = table.size(1);
  TORCH_CHECK(newest >= 0 && newest < blocks * kPage, op, ": the token is number ", newest, " of a table of ", blocks, " blocks");
  const int64_t oldest = window > 0 ? std::max<int64_t>(0, newest - window + 1) : 0;
  const SeenKeys seen{oldest, newest, table.const_data_ptr<int64_t>(), table.stride(0)};
  int64_t least = seen.pages[oldest / kPage], most = least;
  for (const int64_t* kind : {seen.pages, seen.pages + seen.values}) {
    const auto [low, high] = std::minmax_element(kind + oldest / kPage, kind + newest / kPage + 1);
    least = std::min(least, *low), most = std::max(most, *high);
  }
  TORCH_CHECK(least >= 0 && most < pages, op, ": the table has the pages ", least, " to ", most, ", and memory has ", pages);
  return seen;
}

at::Tensor attend_on_cpu(const CpuAttention& a) {
  at::Tensor out = at::empty({a.query.size(0), a.query.size(1) * a.query.size(2)}, a.memory.options());
  switch (a.memory.scalar_type()) {
    case at::kDouble: attend_all<double, double>(a, out); break;
    case at::kFloat: attend_all<float, float>(a, out); break;
    case at::kBFloat16: attend_all<c10::BFloat16, float>(a, out); break;
    default: attend_all<c10::Half, float>(a, out);
  }
  return out;
}

}  // namespace ct
