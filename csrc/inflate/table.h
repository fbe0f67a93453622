// Decoding tables for the Huffman codes of deflate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace inflater {

constexpr int kLongestCode = 15;
// The number of symbols of each alphabet. In each of the first two alphabets, two symbols are
// never legal.
constexpr int kLiterals = 288, kDistances = 32, kPrecodes = 19;
constexpr int kEndOfBlock = 256;

// An Entry says what the next bits of the data mean. A lookup takes some of these bits as the
// index of an entry. If a code is longer than the index, the entry is a link to a subtable. The
// bits after the index are then the index of an entry in the subtable.
//
//   bits 0-7    number of bits to consume; in a link, how many bits the index of this table has
//   bits 8-11   number of extra bits that follow; in a link, how many bits the subtable's index has
//   bits 12-15  kind
//   bits 16-31  literal, base of a length or distance, length code, or start of the subtable
using Entry = uint32_t;

enum Kind : uint32_t { kLiteral = 1u << 12, kLink = 1u << 13, kEnd = 1u << 14, kInvalid = 1u << 15 };  // none of these: length or distance

constexpr int bits_of(Entry e) { return static_cast<int>(e & 0xFF); }
constexpr int extra_of(Entry e) { return static_cast<int>(e >> 8 & 0xF); }
constexpr uint32_t value_of(Entry e) { return e >> 16; }

// The most entries that a decoding table needs, with its subtables, for any code that deflate
// allows in its alphabet. A lookup takes 11, 8 or 7 bits as its index. zlib's program enough.c
// computes these numbers.
constexpr int kLiteralBits = 11, kDistanceBits = 8, kPrecodeBits = 7;
constexpr size_t kLiteralEntries = 2342, kDistanceEntries = 402, kPrecodeEntries = 128;

enum class Alphabet { kPrecode, kLiterals, kDistances };

// build fills a table from the lengths of the codes. It returns false if deflate does not allow
// codes of these lengths. deflate allows codes that together use every pattern of bits. For
// literals and for distances it also allows a single code of one bit, or no code at all, as zlib
// does.
bool build(Alphabet alphabet, std::span<const uint8_t> lengths, Entry* table);

}  // namespace inflater
