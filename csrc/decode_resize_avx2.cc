#include "decode_resize_avx2.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define AVX2 __attribute__((target("avx2")))

namespace decode {
namespace {

constexpr int kRgb = 3;

// Two RGB pixels as R G B 0 R G B 0, of 32 bits each. Reads 8 bytes where there are that many.
AVX2 inline __m256i two_pixels(const uint8_t* p, const uint8_t* end) {
  const __m128i spread = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  int64_t bytes = 0;
  if (end - p >= 8) {
    std::memcpy(&bytes, p, 8);
  } else {
    std::memcpy(&bytes, p, std::min<ptrdiff_t>(end - p, 2 * kRgb));
  }
  return _mm256_cvtepu8_epi32(_mm_shuffle_epi8(_mm_cvtsi64_si128(bytes), spread));
}

AVX2 inline __m256i eight_bytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

AVX2 inline uint32_t four_bytes(__m128i sums) {
  const __m128i words = _mm_packs_epi32(_mm_srai_epi32(sums, kWeightBits), _mm_setzero_si128());
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_packus_epi16(words, words)));
}

}  // namespace

AVX2 void across_rgb_avx2(const Pass& pass, const Axis& x, size_t rows) {
  const __m256i twice = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  const __m128i half = _mm_set1_epi32(1 << (kWeightBits - 1));
  const size_t many = x.first.size();
  for (size_t y = 0; y < rows; ++y) {
    const uint8_t* in = pass.in + y * pass.in_stride;
    const uint8_t* const end = in + static_cast<size_t>(x.source) * kRgb;
    uint8_t* out = pass.out + y * pass.out_stride;
    const int32_t* w = x.weights.data();
    for (size_t i = 0; i < many; ++i, w += x.taps, out += kRgb) {
      const uint8_t* p = in + static_cast<size_t>(x.first[i]) * kRgb;
      __m256i sum = _mm256_setzero_si256();
      for (int j = 0; j < x.count[i]; j += 2, p += 2 * kRgb) {
        const __m128i pair = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(w + j));
        const __m256i weights = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(pair), twice);
        sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(two_pixels(p, end), weights));
      }
      const uint32_t pixel = four_bytes(_mm_add_epi32(
          half, _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1))));
      std::memcpy(out, &pixel, i + 1 < many ? 4 : kRgb);  // the fourth byte is the next pixel's, written next
    }
  }
}

AVX2 void down_avx2(const Pass& pass, const Axis& y, size_t row) {
  constexpr size_t kStep = 32;
  const __m256i half = _mm256_set1_epi32(1 << (kWeightBits - 1));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const int32_t* w = y.weights.data();
  for (size_t i = 0; i < y.first.size(); ++i, w += y.taps) {
    const uint8_t* in = pass.in + y.first[i] * pass.in_stride;
    uint8_t* out = pass.out + i * pass.out_stride;
    size_t b = 0;
    for (; b + kStep <= row; b += kStep) {
      __m256i sum[4] = {half, half, half, half};
      const uint8_t* p = in + b;
      for (int j = 0; j < y.count[i]; ++j, p += pass.in_stride) {
        const __m256i weight = _mm256_set1_epi32(w[j]);
        for (int k = 0; k < 4; ++k) {
          sum[k] = _mm256_add_epi32(sum[k], _mm256_mullo_epi32(eight_bytes(p + 8 * k), weight));
        }
      }
      for (__m256i& s : sum) s = _mm256_srai_epi32(s, kWeightBits);
      const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(sum[0], sum[1]), _mm256_packs_epi32(sum[2], sum[3]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + b), _mm256_permutevar8x32_epi32(bytes, order));
    }
    for (; b < row; ++b) {
      int32_t sum = 1 << (kWeightBits - 1);
      for (int j = 0; j < y.count[i]; ++j) sum += in[j * pass.in_stride + b] * w[j];
      out[b] = static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
    }
  }
}

}  // namespace decode
