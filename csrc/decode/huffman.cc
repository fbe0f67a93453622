#include "decode/huffman.h"

#include <algorithm>
#include <bit>
#include <cstring>

#define INLINE __attribute__((always_inline))

// Note [Reading bits]
// Decoding is one chain of steps that depend on each other: the place of a code is known only
// when the code before it has been decoded. So each step must be short.
//
// The 0 after each 0xFF of the file, and the markers, are removed before the chain begins. Eight
// bytes are read at once, without a check how many are left. One lookup gives up to two
// coefficients with their values. A read after the end of the data is noticed only after each
// MCU. Until then it gives zeros, or the data of the next interval.

namespace decode {
namespace {

constexpr int kMostBits = 31;  // the bits of a symbol: 16 of its code and 15 of its value
constexpr size_t kSlack = D_MAX_BLOCKS_IN_MCU * DCTSIZE2 * 4 + 2 * sizeof(uint64_t);  // the number of zeros after the data

// Maps the order of coefficients in the file to their order in a block. A place after the end of
// a block is mapped to the block's last place.
struct Order {
  static constexpr int kSize = DCTSIZE2 + HuffmanTable::kEndOfBlock + 1;
  uint8_t place[kSize];

  constexpr Order() : place{} {
    int i = 0;
    for (int diagonal = 0; diagonal < 2 * DCTSIZE - 1; ++diagonal) {
      for (int step = 0; step <= diagonal; ++step) {
        const int row = diagonal % 2 ? step : diagonal - step, column = diagonal - row;
        if (row < DCTSIZE && column < DCTSIZE) place[i++] = static_cast<uint8_t>(row * DCTSIZE + column);
      }
    }
    while (i < kSize) place[i++] = DCTSIZE2 - 1;
  }
};
constexpr Order kOrder;

INLINE inline uint64_t big_endian(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return std::endian::native == std::endian::little ? __builtin_bswap64(v) : v;
}

// Returns an upper bound of the number of intervals between restart markers. The image gives one
// bound: its own number of intervals, and one more, because a marker may follow the last
// interval. The size of the data gives another bound, because a marker has two bytes.
size_t intervals_of(size_t data, size_t mcus, unsigned every) {
  return every != 0 ? std::min((mcus + every - 1) / every + 1, data / 2 + 1) : 1;
}

}  // namespace

Huffman::Huffman([[maybe_unused]] bool portable) : decode_(&Huffman::decode_portable) {
#ifdef __x86_64__
  if (!portable && __builtin_cpu_supports("bmi2")) decode_ = &Huffman::decode_bmi2;
#endif
}

// An encoder never writes a scan that is longer than its coefficients, which take 2 bytes each. A
// scan that is longer is left to libjpeg, which copies nothing. So the memory taken depends on
// the size of the image and not on that of the file.
Need Huffman::need(size_t data, size_t coefficients, size_t mcus, unsigned every) {
  Need need;
  need.scan = std::min(data, coefficients) + kSlack;
  need.vectors = intervals_of(data, mcus, every) * sizeof(size_t);
  return need;
}

Need Huffman::held() const {
  Need held;
  held.scan = buffer_.size();
  held.vectors = ends_.capacity() * sizeof(size_t);
  return held;
}

Huffman::Result Huffman::begin(const jpeg_decompress_struct& header, Bytes data) {
  if (header.progressive_mode || header.arith_code || header.data_precision != 8 ||
      header.comps_in_scan != header.num_components) {
    return Result::kUnsuited;
  }
  blocks_ = header.blocks_in_MCU;
  for (int i = 0; i < blocks_; ++i) {
    const int component = header.MCU_membership[i];
    const jpeg_component_info& c = *header.cur_comp_info[component];
    const JHUFF_TBL* const dc = header.dc_huff_tbl_ptrs[c.dc_tbl_no];
    const JHUFF_TBL* const ac = header.ac_huff_tbl_ptrs[c.ac_tbl_no];
    if (!dc || !ac) return Result::kUnsuited;
    dc_[c.dc_tbl_no].set(*dc, false);
    ac_[c.ac_tbl_no].set(*ac, true);
    places_[i] = {component, c.dc_tbl_no, c.ac_tbl_no};
  }
  every_ = header.restart_interval;
  interval_ = 0;
  const size_t mcus = size_t{header.MCUs_per_row} * header.MCU_rows_in_scan;
  const Result found = unstuff(data, mcus * blocks_ * sizeof(JBLOCK), intervals_of(data.size(), mcus, every_));
  return found == Result::kOk ? restart() : found;
}

Huffman::Result Huffman::unstuff(Bytes data, size_t most, size_t intervals) {
  most = std::min(data.size(), most);
  uint8_t* const begin = buffer_.bytes(most + kSlack);
  uint8_t* to = begin;
  uint8_t* const full = begin + most;
  const uint8_t* from = data.data();
  const uint8_t* const end = from + data.size();
  ends_.clear();
  ends_.reserve(intervals);
  for (;;) {
    const auto* mark = static_cast<const uint8_t*>(std::memchr(from, 0xFF, end - from));
    if (!mark || mark + 1 == end) return Result::kTruncated;
    if (mark - from >= full - to) return Result::kUnsuited;
    std::memcpy(to, from, mark - from);
    to += mark - from;
    from = mark + 2;
    const int code = mark[1];
    if (code == 0) {
      *to++ = 0xFF;
    } else if (code == 0xFF) {  // a fill byte; the byte after it may begin a marker
      --from;
    } else if (code == JPEG_EOI) {
      ends_.push_back(to - begin);
      std::memset(to, 0, kSlack);
      return Result::kOk;
    } else if (ends_.size() + 1 < intervals && code == JPEG_RST0 + static_cast<int>(ends_.size() % 8)) {
      ends_.push_back(to - begin);
    } else {
      return Result::kUnsuited;
    }
  }
}

// restart begins the next interval. Intervals lie between restart markers.
Huffman::Result Huffman::restart() {
  if (interval_ == ends_.size()) return Result::kShort;
  const uint8_t* const begin = buffer_.bytes(0);
  next_ = begin + (interval_ == 0 ? 0 : ends_[interval_ - 1]);
  end_ = begin + ends_[interval_++];
  bits_ = 0;
  left_ = 0;
  togo_ = every_;
  std::memset(predicted_, 0, sizeof predicted_);
  return Result::kOk;
}

template <bool kKeep>
INLINE inline Huffman::Result Huffman::block(const HuffmanTable& dc, const HuffmanTable& ac, int& predicted, JCOEF* out) {
  uint64_t bits = bits_;
  const uint8_t* next = next_;
  int left = left_;
  const auto fill = [&]() INLINE {  // after the call, `bits` has 56 bits or more
    bits |= big_endian(next) >> left;
    next += (63 - left) >> 3;
    left |= 56;
  };
  const auto drop = [&](int count) INLINE {
    bits <<= count;
    left -= count;
  };

  fill();
  const HuffmanTable::Symbol s = dc.symbol(bits);
  if (s.length == 0) [[unlikely]] return Result::kBadCode;
  // Damaged data can add up to more than an int holds, so the sum is computed with unsigned
  // numbers.
  predicted = static_cast<int>(static_cast<unsigned>(predicted) + static_cast<unsigned>(value_of(bits << s.length, s.size)));
  if (kKeep) out[0] = static_cast<JCOEF>(predicted);
  drop(s.total);

  int k = 1;  // the next coefficient
  const auto step = [&]() INLINE {
    const HuffmanTable::Pair& p = ac.pair(bits);
    // If the first symbol gives the last coefficient of the block, the symbol after it belongs to the
    // next block. That symbol must not be taken as the second symbol of a pair.
    if (p.total != 0 && k + p.first < DCTSIZE2 - 1) [[likely]] {
      if (kKeep) {
        out[kOrder.place[k + p.first]] = p.value;
        out[kOrder.place[k + p.second]] = p.next;
      }
      k += p.advance;
      drop(p.total);
      return true;
    }
    fill();
    const HuffmanTable::Symbol s = ac.symbol(bits);
    k += s.run;
    if (kKeep) out[kOrder.place[k]] = static_cast<JCOEF>(value_of(bits << s.length, s.size));
    ++k;
    drop(s.total);
    return s.length != 0;
  };
  // One call of `fill` serves three steps: two pairs leave more bits than the third step's lookup
  // needs.
  for (;;) {
    fill();
    if (!step()) [[unlikely]] return Result::kBadCode;
    if (k >= DCTSIZE2) break;
    if (!step()) [[unlikely]] return Result::kBadCode;
    if (k >= DCTSIZE2) break;
    if (!step()) [[unlikely]] return Result::kBadCode;
    if (k >= DCTSIZE2) break;
  }
  bits_ = bits;
  next_ = next;
  left_ = left;
  return k == DCTSIZE2 || k > HuffmanTable::kEndOfBlock ? Result::kOk : Result::kOverfull;
}

INLINE inline Huffman::Result Huffman::mcu(JBLOCKROW* blocks) {
  if (every_ != 0 && togo_-- == 0) {
    const Result result = restart();
    if (result != Result::kOk) return result;
    --togo_;
  }
  for (int i = 0; i < blocks_; ++i) {
    const Place& p = places_[i];
    const Result result = blocks ? block<true>(dc_[p.dc], ac_[p.ac], predicted_[p.component], *blocks[i])
                                 : block<false>(dc_[p.dc], ac_[p.ac], predicted_[p.component], nullptr);
    if (result != Result::kOk) return result;
  }
  return (next_ - end_) * 8 > left_ ? Result::kShort : Result::kOk;
}

#ifdef __x86_64__
__attribute__((target("bmi2"))) Huffman::Result Huffman::decode_bmi2(JBLOCKROW* blocks) { return mcu(blocks); }
#endif

Huffman::Result Huffman::decode_portable(JBLOCKROW* blocks) { return mcu(blocks); }

}  // namespace decode
