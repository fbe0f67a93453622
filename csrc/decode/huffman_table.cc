#include "decode/huffman_table.h"

#include <cstring>

namespace decode {

HuffmanTable::Symbol HuffmanTable::meaning(int length, uint8_t value) const {
  constexpr int kRunOfZeros = 15;  // the only run without a value that does not end the block
  Symbol s{};
  s.length = static_cast<uint8_t>(length);
  s.size = value & 15;
  s.total = static_cast<uint8_t>(s.length + s.size);
  if (!ac_) return s;
  s.run = value >> 4;
  if (s.size == 0 && s.run != kRunOfZeros) s.run = kEndOfBlock;
  return s;
}

void HuffmanTable::set(const JHUFF_TBL& from, bool ac) {
  if (ready_ && ac == ac_ && std::memcmp(from.bits, from_.bits, sizeof from.bits) == 0 &&
      std::memcmp(from.huffval, from_.huffval, sizeof from.huffval) == 0) {
    return;
  }
  from_ = from;
  ac_ = ac;
  ready_ = true;
  std::memset(symbols_, 0, sizeof symbols_);
  uint32_t code = 0;
  int place = 0;
  for (int length = 1; length <= 16; ++length, code <<= 1) {
    offset_[length] = place - static_cast<int32_t>(code);
    for (int i = 0; i < from.bits[length] && place < 256; ++i, ++place, ++code) {
      if (length > kBits) continue;
      const Symbol s = meaning(length, from.huffval[place]);
      const uint32_t begin = code << (kBits - length), end = (code + 1) << (kBits - length);
      for (uint32_t j = begin; j < end && j < 1u << kBits; ++j) symbols_[j] = s;
    }
    limit_[length] = code << (16 - length);
  }
  if (ac) pair_up();
}

HuffmanTable::Symbol HuffmanTable::longer(uint64_t bits) const {
  const auto top = static_cast<uint32_t>(bits >> 48);
  for (int length = kBits + 1; length <= 16; ++length) {
    if (top >= limit_[length]) continue;
    const int place = static_cast<int>(top >> (16 - length)) + offset_[length];
    return place >= 0 && place < 256 ? meaning(length, from_.huffval[place]) : Symbol{};
  }
  return {};
}

void HuffmanTable::pair_up() {
  for (uint32_t i = 0; i < 1u << kBits; ++i) {
    Pair& p = pairs_[i];
    p = {};
    const uint64_t bits = static_cast<uint64_t>(i) << (64 - kBits);
    const Symbol a = symbol(bits);
    if (a.length == 0 || a.total > kBits) continue;
    const bool ends = a.run == kEndOfBlock;
    p.total = a.total;
    p.first = p.second = ends ? 0 : a.run;
    p.advance = a.run + 1;
    p.value = p.next = static_cast<int16_t>(value_of(bits << a.length, a.size));
    const uint64_t rest = bits << a.total;
    const Symbol b = symbol(rest);
    if (ends || b.length == 0 || a.total + b.total > kBits) continue;
    p.total += b.total;
    p.second = p.advance + (b.run == kEndOfBlock ? 0 : b.run);
    p.advance += b.run + 1;
    p.next = static_cast<int16_t>(value_of(rest << b.length, b.size));
  }
}

}  // namespace decode
