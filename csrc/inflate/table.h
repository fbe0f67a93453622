// Decoding tables of deflate's Huffman codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace inflater {

constexpr int kLongestCode = 15;
// Symbols of each alphabet, the two that are never legal included.
constexpr int kLiterals = 288, kDistances = 32, kPrecodes = 19;
constexpr int kEndOfBlock = 256;

// An entry gives the meaning of the next bits. A code longer than the table's index leads to a
// subtable.
//
//   bits 0-7    bits of the code, to be consumed. Of a link, those of the first index
//   bits 8-11   extra bits that follow. Of a link, the bits of the second index
//   bits 12-15  kind
//   bits 16-31  literal, base of a length or distance, length code, or the start of the subtable
using Entry = uint32_t;

enum Kind : uint32_t { kLiteral = 1u << 12, kLink = 1u << 13, kEnd = 1u << 14, kInvalid = 1u << 15 };  // none: length or distance

constexpr int bits_of(Entry e) { return static_cast<int>(e & 0xFF); }
constexpr int extra_of(Entry e) { return static_cast<int>(e >> 8 & 0xF); }
constexpr uint32_t value_of(Entry e) { return e >> 16; }

// The largest tables that complete codes of these alphabets need, with 11, 8 and 7 bits of index.
// zlib's program enough.c finds them.
constexpr int kLiteralBits = 11, kDistanceBits = 8, kPrecodeBits = 7;
constexpr size_t kLiteralEntries = 2342, kDistanceEntries = 402, kPrecodeEntries = 128;

enum class Alphabet { kPrecode, kLiterals, kDistances };

// build fills a table from the lengths of the codes. It returns false where the lengths are not
// those of a code that deflate allows. Complete codes are allowed. For literals or distances a
// single code of one bit and no code at all are allowed too, as in zlib.
bool build(Alphabet alphabet, std::span<const uint8_t> lengths, Entry* table);

}  // namespace inflater
