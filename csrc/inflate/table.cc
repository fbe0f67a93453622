#include "inflate/table.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace inflater {
namespace {

constexpr uint16_t kLengthBase[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                    31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr uint8_t kLengthExtra[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
constexpr uint16_t kDistanceBase[] = {1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
                                      193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
constexpr uint8_t kDistanceExtra[] = {0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};

// entry_of returns the entry of a symbol, without the length of the symbol's code.
Entry entry_of(Alphabet alphabet, size_t symbol) {
  const auto entry = [](uint32_t value, uint32_t extra, uint32_t kind) { return value << 16 | kind | extra << 8; };
  switch (alphabet) {
    case Alphabet::kPrecode:
      return entry(static_cast<uint32_t>(symbol), 0, 0);
    case Alphabet::kLiterals:
      if (symbol < kEndOfBlock) return entry(static_cast<uint32_t>(symbol), 0, kLiteral);
      if (symbol == kEndOfBlock) return entry(0, 0, kEnd);
      symbol -= kEndOfBlock + 1;
      return symbol < std::size(kLengthBase) ? entry(kLengthBase[symbol], kLengthExtra[symbol], 0) : Entry{kInvalid};
    default:
      return symbol < std::size(kDistanceBase) ? entry(kDistanceBase[symbol], kDistanceExtra[symbol], 0) : Entry{kInvalid};
  }
}

// next_code returns the code that follows `code`. Each has `length` bits, stored with the first
// bit lowest. After the last code it returns 0.
uint32_t next_code(uint32_t code, int length) {
  const uint32_t zeros = code ^ ((1u << length) - 1);
  if (zeros == 0) return 0;
  const uint32_t highest = std::bit_floor(zeros);
  return (code & (highest - 1)) | highest;
}

}  // namespace

bool build(Alphabet alphabet, std::span<const uint8_t> lengths, Entry* table) {
  int count[kLongestCode + 1] = {};
  for (const uint8_t length : lengths) ++count[length];
  count[0] = 0;
  int longest = kLongestCode;
  while (longest > 0 && count[longest] == 0) --longest;
  int left = 1;
  for (int length = 1; length <= kLongestCode; ++length) {
    left = 2 * left - count[length];
    if (left < 0) return false;
  }
  if (left > 0 && (alphabet == Alphabet::kPrecode || longest > 1)) return false;

  uint16_t order[kLiterals];  // symbols by length, then by number
  int at[kLongestCode + 2] = {};
  for (int length = 1; length <= kLongestCode; ++length) at[length + 1] = at[length] + count[length];
  for (size_t symbol = 0; symbol < lengths.size(); ++symbol) {
    if (lengths[symbol] > 0) order[at[lengths[symbol]]++] = static_cast<uint16_t>(symbol);
  }

  const int index = alphabet == Alphabet::kPrecode ? kPrecodeBits : alphabet == Alphabet::kLiterals ? kLiteralBits : kDistanceBits;
  const uint16_t* next = order;
  uint32_t code = 0;
  table[0] = kInvalid | 1;
  size_t filled = 1;  // number of entries that are right for all codes so far
  for (int length = 1; length <= index; ++length) {
    std::memcpy(table + filled, table, filled * sizeof *table);
    filled *= 2;
    for (int i = 0; i < count[length]; ++i) {
      table[code] = entry_of(alphabet, *next++) | static_cast<Entry>(length);
      code = next_code(code, length);
    }
  }

  const uint32_t mask = (1u << index) - 1;
  uint32_t linked = ~0u;  // the number of the entry whose subtable is being filled
  size_t begin = 0;
  int width = 0;
  for (int length = index + 1; length <= longest; ++length) {
    for (int i = 0; i < count[length]; ++i) {
      if ((code & mask) != linked) {
        linked = code & mask;
        width = length - index;
        int room = (1 << width) - (count[length] - i);
        while (room > 0 && index + width < longest) {
          ++width;
          room = 2 * room - count[index + width];
        }
        begin = filled;
        filled += size_t{1} << width;
        table[linked] = static_cast<Entry>(begin << 16) | kLink | static_cast<Entry>(width) << 8 | static_cast<Entry>(index);
      }
      const Entry entry = entry_of(alphabet, *next++) | static_cast<Entry>(length - index);
      for (size_t j = code >> index; j < size_t{1} << width; j += size_t{1} << (length - index)) table[begin + j] = entry;
      code = next_code(code, length);
    }
  }
  return true;
}

}  // namespace inflater
