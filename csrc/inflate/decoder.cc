#include "inflate/decoder.h"

#include <algorithm>
#include <cstring>

#include "decode/status.h"

namespace inflater {

using decode::Error;

Bits::Bits(Bytes bytes, uint64_t position)
    : begin_(bytes.data()), next_(begin_ + position / 8), end_(begin_ + bytes.size()) {
  refill();
  drop(static_cast<int>(position % 8));
}

void Bits::refill() {
  if (end_ - next_ >= 8) {
    uint64_t word;
    std::memcpy(&word, next_, 8);  // little-endian, as x86-64 and arm64
    bits_ |= word << count_;
    next_ += (63 - count_) >> 3;
    count_ |= 56;
    return;
  }
  while (count_ <= 56) {
    if (next_ < end_) {
      bits_ |= uint64_t{*next_++} << count_;
    } else {
      ++beyond_;
    }
    count_ += 8;
  }
}

const char* read_header(Bits& bits, Header& header) {
  constexpr uint8_t kOrder[kPrecodes] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  bits.refill();
  header.literals = static_cast<int>(bits.take(5)) + 257;
  header.distances = static_cast<int>(bits.take(5)) + 1;
  const int precodes = static_cast<int>(bits.take(4)) + 4;
  if (header.literals > 286 || header.distances > 30) return "too many length or distance codes";
  uint8_t precode[kPrecodes] = {};
  for (int i = 0; i < precodes; ++i) {
    if (i == 10) bits.refill();
    precode[kOrder[i]] = static_cast<uint8_t>(bits.take(3));
  }
  Entry table[kPrecodeEntries];
  if (!build(Alphabet::kPrecode, precode, table)) return "invalid code lengths set";
  const int total = header.literals + header.distances;
  for (int i = 0; i < total;) {
    bits.refill();
    const Entry entry = table[bits.peek() & (kPrecodeEntries - 1)];
    if (entry & kInvalid) return "invalid code lengths set";
    bits.drop(bits_of(entry));
    const uint32_t symbol = value_of(entry);
    if (symbol < 16) {
      header.lengths[i++] = static_cast<uint8_t>(symbol);
      continue;
    }
    if (symbol == 16 && i == 0) return "invalid bit length repeat";
    const uint8_t length = symbol == 16 ? header.lengths[i - 1] : 0;
    const int repeat = static_cast<int>(symbol == 16 ? 3 + bits.take(2) : symbol == 17 ? 3 + bits.take(3) : 11 + bits.take(7));
    if (i + repeat > total) return "invalid bit length repeat";
    std::memset(header.lengths + i, length, static_cast<size_t>(repeat));
    i += repeat;
  }
  if (header.lengths[kEndOfBlock] == 0) return "missing end-of-block";
  return nullptr;
}

namespace {

// The most bits that the header of a block has: three bits, the counts, nineteen precodes, and
// 316 lengths of 14 bits. A header is read only when all of it is there.
constexpr uint64_t kHeaderBits = 3 + 14 + 19 * 3 + 316 * 14 + 64;
constexpr uint64_t kSymbolBits = 48;  // the most bits that a length and a distance have, each with its extra bits

// Copies `length` elements to `to`. The first of them is `distance` elements before `to`. If
// `length` is larger than `distance`, the elements repeat.
template <class T>
inline void copy(T* to, size_t distance, size_t length) {
  const T* from = to - distance;
  constexpr size_t kStep = 16 / sizeof(T);
  if (distance >= kStep) {  // writes up to kStep - 1 further elements: see CTD_INFLATE_ROOM
    for (T* const end = to + length; to < end; to += kStep, from += kStep) std::memcpy(to, from, 16);
  } else if (distance == 1) {
    std::fill_n(to, length, *from);
  } else {
    for (size_t i = 0; i < length; ++i) to[i] = from[i];
  }
}

bool has_unknown(const uint16_t* p, size_t n) {
  uint16_t all = 0;
  for (size_t i = 0; i < n; ++i) all |= p[i];
  return all >= CTD_INFLATE_UNKNOWN;
}

}  // namespace

const char* Decoder::begin_block(Bits& bits) {
  bits.refill();
  final_ = bits.take(1) != 0;
  switch (bits.take(2)) {
    case 0: {
      bits.drop(static_cast<int>((8 - bits.position() % 8) % 8));
      bits.refill();
      const uint32_t length = bits.take(16), inverse = bits.take(16);
      if (length != (inverse ^ 0xFFFF)) return "invalid stored block lengths";
      left_ = length;
      in_ = In::kStored;
      return nullptr;
    }
    case 1: {
      in_ = In::kCodes;
      // To make the tables takes as long as to inflate a thousand bytes, and a block may have only ten
      // bits. So the tables of the fixed codes are kept.
      if (fixed_) return nullptr;
      uint8_t lengths[kLiterals];
      std::fill_n(lengths, 144, 8);
      std::fill_n(lengths + 144, 112, 9);
      std::fill_n(lengths + 256, 24, 7);
      std::fill_n(lengths + 280, 8, 8);
      build(Alphabet::kLiterals, lengths, literals_.data());
      std::fill_n(lengths, kDistances, 5);
      build(Alphabet::kDistances, {lengths, kDistances}, distances_.data());
      fixed_ = true;
      return nullptr;
    }
    case 2: {
      Header header;
      if (const char* wrong = read_header(bits, header)) return wrong;
      fixed_ = false;
      const auto literals = static_cast<size_t>(header.literals), distances = static_cast<size_t>(header.distances);
      if (!build(Alphabet::kLiterals, {header.lengths, literals}, literals_.data())) return "invalid literal/lengths set";
      if (!build(Alphabet::kDistances, {header.lengths + literals, distances}, distances_.data())) return "invalid distances set";
      in_ = In::kCodes;
      return nullptr;
    }
    default:
      return "invalid block type";
  }
}

// Output is the memory into which one run writes elements.
template <class T>
struct Output {
  T* const first;        // element 0
  const T* const begin;  // no match reaches back beyond this element
  const T* const full;   // no symbol is begun at this element or after it
  T* to;
  const T* unknown;  // the element after the last unknown element

  bool is_known() const { return sizeof(T) == 2 && to - unknown >= static_cast<ptrdiff_t>(kWindow); }
};

// A Why is the reason for which a step ended: a CTD_INFLATE_ value, or 0 at the end of a block.
using Why = int32_t;

template <class T>
Why Decoder::stored(Bits& bits, Input in, Output<T>& out) {
  const uint64_t begin = bits.position() / 8;
  const size_t there = in.bytes.size() - begin;
  const size_t room = out.to < out.full ? static_cast<size_t>(out.full - out.to) : 0;
  const size_t n = std::min({left_, there, room});
  std::copy_n(in.bytes.data() + begin, n, out.to);
  out.to += n;
  left_ -= n;
  bits = Bits(in.bytes, (begin + n) * 8);
  if (left_ == 0) return 0;
  if (n < there) return CTD_INFLATE_FULL;
  if (in.last) throw Error(CTD_TRUNCATED, "the data end in a stored block");
  return CTD_INFLATE_MORE;
}

template <class T>
Why Decoder::codes(Bits& bits, Input in, Output<T>& out) {
  const Entry* const literals = literals_.data();
  const Entry* const distances = distances_.data();
  const uint64_t in_end = uint64_t{in.bytes.size()} * 8;
  T* to = out.to;
  // The end of the elements that come from the data alone, and not from zeros read after the data.
  T* sure = to;
  const auto fail = [&](int32_t code, const char* what) {
    out.to = sure;
    if (bits.position() > in_end) throw Error(CTD_TRUNCATED, "the data end in the middle of a block");
    throw Error(code, what);
  };
  for (;; out.to = to) {
    bits.refill();
    if (bits.near_end()) {
      if (!in.last && bits.position() + kSymbolBits > in_end) return CTD_INFLATE_MORE;
      if (bits.position() > in_end) fail(CTD_TRUNCATED, "");
    }
    sure = to;
    if (to >= out.full) return CTD_INFLATE_FULL;
    if (out.is_known()) return CTD_INFLATE_KNOWN;
    // 56 bits are enough for three literals of at most 15 bits. They are also enough for two literals
    // and a length of at most 20 bits.
    Entry entry = literals[bits.peek() & ((1u << kLiteralBits) - 1)];
    if (entry & kLiteral) {
      bits.drop(bits_of(entry));
      *to++ = static_cast<T>(value_of(entry));
      entry = literals[bits.peek() & ((1u << kLiteralBits) - 1)];
      if (entry & kLiteral) {
        bits.drop(bits_of(entry));
        *to++ = static_cast<T>(value_of(entry));
        entry = literals[bits.peek() & ((1u << kLiteralBits) - 1)];
        if (entry & kLiteral) {
          bits.drop(bits_of(entry));
          *to++ = static_cast<T>(value_of(entry));
          continue;
        }
      }
    }
    if (entry & kLink) {
      bits.drop(kLiteralBits);
      entry = literals[value_of(entry) + (bits.peek() & ((1u << extra_of(entry)) - 1))];
      if (entry & kLiteral) {
        bits.drop(bits_of(entry));
        *to++ = static_cast<T>(value_of(entry));
        continue;
      }
    }
    bits.drop(bits_of(entry));
    if (entry & kEnd) {
      if (bits.position() > in_end) fail(CTD_TRUNCATED, "");
      out.to = to;
      return 0;
    }
    if (entry & kInvalid) fail(CTD_CORRUPT, "invalid literal/length code");
    const size_t length = value_of(entry) + bits.take(extra_of(entry));
    bits.refill();
    entry = distances[bits.peek() & ((1u << kDistanceBits) - 1)];
    if (entry & kLink) {
      bits.drop(kDistanceBits);
      entry = distances[value_of(entry) + (bits.peek() & ((1u << extra_of(entry)) - 1))];
    }
    if (entry & kInvalid) fail(CTD_CORRUPT, "invalid distance code");
    bits.drop(bits_of(entry));
    const size_t distance = value_of(entry) + bits.take(extra_of(entry));
    if (distance > static_cast<size_t>(to - out.begin)) fail(CTD_CORRUPT, "invalid distance too far back");
    copy(to, distance, length);
    if constexpr (sizeof(T) == 2) {
      if (has_unknown(to, length)) out.unknown = to + length;
    }
    to += length;
  }
}

template <class T>
void Decoder::run(Input in, T* first, size_t size, ctd_inflate& io) {
  Output<T> out{first,          first + io.at - io.history, first + (size > CTD_INFLATE_ROOM ? size - CTD_INFLATE_ROOM : 0),
                first + io.at, first + io.unknown};
  const uint64_t in_end = uint64_t{in.bytes.size()} * 8;
  Bits bits(in.bytes, io.bit);
  const auto keep_place = [&] {
    io.bit = bits.position();
    io.history += static_cast<uint64_t>(out.to - first) - io.at;
    io.at = static_cast<uint64_t>(out.to - first);
    io.unknown = static_cast<uint64_t>(out.unknown - first);
  };
  try {
    Why why = 0;
    while (why == 0) {
      if (in_ != In::kNone) {
        why = in_ == In::kStored ? stored(bits, in, out) : codes(bits, in, out);
        if (why != 0) break;
        in_ = In::kNone;
        if (final_) {
          final_ = false;
          why = CTD_INFLATE_FINAL;
          break;
        }
      }
      const uint64_t place = bits.position();
      if (place >= io.stop_bit || static_cast<uint64_t>(out.to - first) >= io.stop_at) {
        why = CTD_INFLATE_BOUNDARY;
      } else if (out.to >= out.full) {
        why = CTD_INFLATE_FULL;
      } else if (out.is_known()) {
        why = CTD_INFLATE_KNOWN;
      } else if (!in.last && place + kHeaderBits > in_end) {
        why = CTD_INFLATE_MORE;
      } else if (place >= in_end) {
        throw Error(CTD_TRUNCATED, "the data end between two blocks");
      } else {
        const char* const wrong = begin_block(bits);
        if (bits.position() > in_end) throw Error(CTD_TRUNCATED, "the data end in the header of a block");
        if (wrong) throw Error(CTD_CORRUPT, wrong);
      }
    }
    keep_place();
    io.stopped = why;
  } catch (...) {
    keep_place();
    throw;
  }
}

template void Decoder::run<uint8_t>(Input, uint8_t*, size_t, ctd_inflate&);
template void Decoder::run<uint16_t>(Input, uint16_t*, size_t, ctd_inflate&);

}  // namespace inflater
