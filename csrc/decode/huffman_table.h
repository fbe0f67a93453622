// A Huffman table of a JPEG. A code is looked up by the next bits of the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

// jpeglib.h uses size_t and FILE, so the headers with these types come first.
#include <jpeglib.h>

namespace decode {

class HuffmanTable {
 public:
  // The run of a symbol that ends the block. A place in a block plus the run of any other symbol is
  // less than this number.
  static constexpr int kEndOfBlock = 100;

  // set makes this object a copy of the table `from`, which libjpeg must have accepted. If this
  // object is already a copy of an equal table, `set` does nothing. Most images of one origin have
  // equal tables. If `ac` is true, each value of the table is a run of zeros and a size. If `ac` is
  // false, each value is a size.
  void set(const JHUFF_TBL& from, bool ac);

  // Symbol is a code, and the size of the value that follows the code.
  struct Symbol {
    uint8_t total;   // bits of the code and of the value
    uint8_t length;  // bits of the code, 0 where the bits are no code
    uint8_t size;    // bits of the value
    uint8_t run;     // coefficients of 0 before the value
  };
  Symbol symbol(uint64_t bits) const {  // the next bits, of which the first is the highest
    const Symbol s = symbols_[bits >> (64 - kBits)];
    return s.length != 0 ? s : longer(bits);
  }

  // Pair has up to two symbols of an AC table with their values. Both symbols must fit into kBits
  // bits. If only one symbol fits, the second repeats the first.
  struct Pair {
    uint8_t total;          // bits of all symbols here, 0 if not even one symbol fits
    uint8_t first, second;  // places of the two values, counted from the next coefficient
    uint8_t advance;        // by how many coefficients the place moves on
    int16_t value, next;
  };
  const Pair& pair(uint64_t bits) const { return pairs_[bits >> (64 - kBits)]; }

 private:
  // Values from 9 to 12 were measured on photographs. With fewer bits, fewer symbols form pairs.
  // With more bits, the tables do not fit into the processor's cache.
  static constexpr int kBits = 10;

  Symbol longer(uint64_t bits) const;
  Symbol meaning(int length, uint8_t value) const;
  void pair_up();

  Pair pairs_[1 << kBits];
  Symbol symbols_[1 << kBits];
  // For each length, a bound. If the next 16 bits are below it, they begin with a code of that
  // length or of a shorter length.
  uint32_t limit_[17];
  int32_t offset_[17];  // for each length: the number to add to a code to find its place among the values
  JHUFF_TBL from_{};
  bool ac_ = false, ready_ = false;
};

// value_of returns the value of the `size` highest bits of `bits`. A value whose first bit is 0
// is negative.
inline int value_of(uint64_t bits, int size) {
  const int v = static_cast<int>(bits >> 1 >> (63 - size));
  const int negative = static_cast<int>(~(static_cast<int64_t>(bits) >> 63));  // all ones or 0
  return v + (negative & (static_cast<int>(~0u << size) + 1));
}

}  // namespace decode
