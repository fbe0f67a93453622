#ifdef __x86_64__  // on other processors this file is empty
#include "decode/resize_avx2.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define AVX2 __attribute__((target("avx2")))

// Note [Weights in halves]
// AVX2 has a fast multiplication of signed 16-bit words. It multiplies sixteen pairs and adds the
// products two by two. A weight has 23 bits, which do not fit. So each weight is cut into a low
// half of 15 bits and a high half of 8 bits. The products with low halves have one sum, and the
// products with high halves have a second sum. The result is low + (high << 15). It is equal, bit
// for bit, to a sum with whole weights.

namespace decode {
namespace {

constexpr int kRgb = 3;
constexpr int kBlock = 4;      // how many taps are multiplied together
constexpr size_t kLoad = 16;   // how many bytes are read for a block of taps

// Sum has two sums that are not added yet: of the products with low halves of weights, and of the
// products with high halves.
struct Sum {
  __m256i low, high;
};

AVX2 inline void add(Sum& sum, __m256i words, __m256i low, __m256i high) {
  sum.low = _mm256_add_epi32(sum.low, _mm256_madd_epi16(words, low));
  sum.high = _mm256_add_epi32(sum.high, _mm256_madd_epi16(words, high));
}

AVX2 inline __m256i whole(const Sum& sum) {
  return _mm256_srai_epi32(_mm256_add_epi32(sum.low, _mm256_slli_epi32(sum.high, kLowBits)), kWeightBits);
}

// Returns 16 bytes of each of two rows.
AVX2 inline __m256i two_rows(const uint8_t* a, const uint8_t* b) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
}

// Stores a pixel. A pixel has 3 bytes, but 4 bytes are stored, except for the last pixel of a
// row. The fourth byte belongs to the next pixel, which is written afterwards.
AVX2 inline void store(uint8_t* to, int pixel, bool last) {
  if (last) {
    std::memcpy(to, &pixel, kRgb);
  } else {
    std::memcpy(to, &pixel, 4);
  }
}

// Columns has four rows to read and four to write. If there are fewer than four rows, the last
// row is repeated.
struct Columns {
  const uint8_t* in[4];
  uint8_t* out[4];
};

// Writes one pixel in each of four output rows, at byte `to`. The pixel's blocks of taps begin at
// byte `from` of the input row. A block reads 16 bytes, four more than it needs. kLast: a block may
// reach beyond the `width` bytes of the input row. Such a block reads that row's last 16 bytes.
template <bool kLast>
AVX2 inline void pixel(const Columns& c, size_t from, size_t width, const int32_t* halves, int blocks, size_t to,
                       bool last) {
  constexpr char o = -128;
  const __m256i first = _mm256_setr_epi8(0, o, 3, o, 1, o, 4, o, 2, o, 5, o, o, o, o, o,  //
                                         0, o, 3, o, 1, o, 4, o, 2, o, 5, o, o, o, o, o);
  const __m256i second = _mm256_setr_epi8(6, o, 9, o, 7, o, 10, o, 8, o, 11, o, o, o, o, o,  //
                                          6, o, 9, o, 7, o, 10, o, 8, o, 11, o, o, o, o, o);
  const __m256i half = _mm256_set1_epi32(1 << (kWeightBits - 1));
  Sum top{half, _mm256_setzero_si256()}, bottom = top;
  for (int b = 0; b < blocks; ++b, halves += kBlock, from += kBlock * kRgb) {
    size_t at = from;
    __m256i early = first, late = second;
    if (kLast && from + kLoad > width) {
      if (from >= width) break;  // all weights of this block are 0
      at = width - kLoad;
      // For taps beyond the row's end, the index is outside of the 16 bytes. It then selects a byte
      // that has nothing to do with the tap. The weight of that byte is 0.
      const __m256i shift = _mm256_set1_epi8(static_cast<char>(from - at));
      early = _mm256_add_epi8(first, shift);
      late = _mm256_add_epi8(second, shift);
    }
    const __m256i x = two_rows(c.in[0] + at, c.in[1] + at), y = two_rows(c.in[2] + at, c.in[3] + at);
    const __m256i low = _mm256_set1_epi32(halves[0]), high = _mm256_set1_epi32(halves[1]);
    add(top, _mm256_shuffle_epi8(x, early), low, high);
    add(bottom, _mm256_shuffle_epi8(y, early), low, high);
    const __m256i low2 = _mm256_set1_epi32(halves[2]), high2 = _mm256_set1_epi32(halves[3]);
    add(top, _mm256_shuffle_epi8(x, late), low2, high2);
    add(bottom, _mm256_shuffle_epi8(y, late), low2, high2);
  }
  const __m256i words = _mm256_packs_epi32(whole(top), whole(bottom));
  const __m256i pixels = _mm256_packus_epi16(words, words);
  const __m128i even = _mm256_castsi256_si128(pixels), odd = _mm256_extracti128_si256(pixels, 1);
  store(c.out[0] + to, _mm_cvtsi128_si32(even), last);
  store(c.out[1] + to, _mm_cvtsi128_si32(odd), last);
  store(c.out[2] + to, _mm_extract_epi32(even, 1), last);
  store(c.out[3] + to, _mm_extract_epi32(odd, 1), last);
}

}  // namespace

AVX2 void across_rgb_avx2(const Pass& pass, const Axis& x, size_t rows) {
  const size_t many = x.first.size();
  const int blocks = (x.most + kBlock - 1) / kBlock;
  const size_t width = static_cast<size_t>(x.source) * kRgb;
  const size_t reach = static_cast<size_t>(blocks - 1) * kBlock * kRgb + kLoad;
  size_t inside = many;  // the number of result pixels that read nothing beyond the row
  while (inside > 0 && x.first[inside - 1] * kRgb + reach > width) --inside;
  for (size_t y = 0; y < rows; y += 4) {
    Columns c;
    for (size_t r = 0; r < 4; ++r) {
      const size_t row = std::min(y + r, rows - 1);
      c.in[r] = pass.in + row * pass.in_stride;
      c.out[r] = pass.out + row * pass.out_stride;
    }
    const int32_t* halves = x.halves.data();
    for (size_t i = 0; i < many; ++i, halves += x.taps) {
      const bool last = i + 1 == many;
      const size_t from = static_cast<size_t>(x.first[i]) * kRgb;
      if (i < inside) {
        pixel<false>(c, from, width, halves, blocks, i * kRgb, last);
      } else {
        pixel<true>(c, from, width, halves, blocks, i * kRgb, last);
      }
    }
  }
}

AVX2 void down_avx2(const Pass& pass, const Axis& y, size_t row) {
  constexpr size_t kStep = 32;
  const __m256i half = _mm256_set1_epi32(1 << (kWeightBits - 1)), zero = _mm256_setzero_si256();
  for (size_t i = 0; i < y.first.size(); ++i) {
    const int32_t* const halves = &y.halves[i * y.taps];
    const int32_t* const w = &y.weights[i * y.taps];
    const uint8_t* in = pass.in + y.first[i] * pass.in_stride;
    uint8_t* out = pass.out + i * pass.out_stride;
    size_t b = 0;
    for (; b + kStep <= row; b += kStep) {
      Sum sum[4] = {{half, zero}, {half, zero}, {half, zero}, {half, zero}};
      const uint8_t* p = in + b;
      for (int j = 0; j < y.count[i]; j += 2, p += 2 * pass.in_stride) {
        const __m256i low = _mm256_set1_epi32(halves[j]), high = _mm256_set1_epi32(halves[j + 1]);
        const __m256i even = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        // If the number of rows is odd, the last row has no partner. The row is then loaded twice,
        // because its partner's weight is 0 and the partner may not exist.
        const uint8_t* const next = j + 1 < y.count[i] ? p + pass.in_stride : p;
        const __m256i odd = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(next));
        const __m256i left = _mm256_unpacklo_epi8(even, odd), right = _mm256_unpackhi_epi8(even, odd);
        add(sum[0], _mm256_unpacklo_epi8(left, zero), low, high);
        add(sum[1], _mm256_unpackhi_epi8(left, zero), low, high);
        add(sum[2], _mm256_unpacklo_epi8(right, zero), low, high);
        add(sum[3], _mm256_unpackhi_epi8(right, zero), low, high);
      }
      const __m256i left = _mm256_packs_epi32(whole(sum[0]), whole(sum[1]));
      const __m256i right = _mm256_packs_epi32(whole(sum[2]), whole(sum[3]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + b), _mm256_packus_epi16(left, right));
    }
    for (; b < row; ++b) {
      int32_t sum = 1 << (kWeightBits - 1);
      for (int j = 0; j < y.count[i]; ++j) sum += in[j * pass.in_stride + b] * w[j];
      out[b] = static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
    }
  }
}

}  // namespace decode
#endif
