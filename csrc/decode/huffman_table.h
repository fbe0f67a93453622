// The codes of a JPEG's Huffman table, looked up by the bits that come next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

// jpeglib.h needs size_t and FILE before it.
#include <jpeglib.h>

namespace decode {

class HuffmanTable {
 public:
  // A run that ends the block. No sum of a run and a place in a block comes to it.
  static constexpr int kEndOfBlock = 100;

  // set needs a table that libjpeg has accepted. It does nothing when it has that table already, as
  // in most images of one origin. ac: the values are those of an AC table, a run of zeros and a size.
  // Those of a DC table are sizes.
  void set(const JHUFF_TBL& from, bool ac);

  // Symbol is one code and the size of the value that follows it.
  struct Symbol {
    uint8_t total;   // bits of both
    uint8_t length;  // bits of the code, 0 where the bits are no code
    uint8_t size;    // bits of the value
    uint8_t run;     // coefficients of 0 before the value
  };
  Symbol symbol(uint64_t bits) const {  // the next bits, the first on top
    const Symbol s = symbols_[bits >> (64 - kBits)];
    return s.length != 0 ? s : longer(bits);
  }

  // Pair is up to two symbols of an AC table with their values: as many as kBits bits hold. With less
  // than two the second symbol repeats the first.
  struct Pair {
    uint8_t total;          // bits of all, 0 where not even one symbol is held
    uint8_t first, second;  // places of the values, counted from the next coefficient
    uint8_t advance;        // coefficients taken
    int16_t value, next;
  };
  const Pair& pair(uint64_t bits) const { return pairs_[bits >> (64 - kBits)]; }

 private:
  // Measured from 9 to 12 on photographs. With fewer bits fewer symbols are pairs, with more the
  // tables leave the cache.
  static constexpr int kBits = 10;

  Symbol longer(uint64_t bits) const;
  Symbol meaning(int length, uint8_t value) const;
  void pair_up();

  Pair pairs_[1 << kBits];
  Symbol symbols_[1 << kBits];
  // For each length a bound. The next 16 bits are below it when they begin with a code no longer than
  // that.
  uint32_t limit_[17];
  int32_t offset_[17];  // of each length: from code to place among the values
  JHUFF_TBL from_{};
  bool ac_ = false, ready_ = false;
};

// value_of returns the value of the `size` bits on top of `bits`. Values whose bits begin with 0
// are negative.
inline int value_of(uint64_t bits, int size) {
  const int v = static_cast<int>(bits >> 1 >> (63 - size));
  const int negative = static_cast<int>(~(static_cast<int64_t>(bits) >> 63));  // all ones or 0
  return v + (negative & (static_cast<int>(~0u << size) + 1));
}

}  // namespace decode
