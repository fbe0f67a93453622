// The entropy-coded data of a sequential JPEG with one scan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

// jpeglib.h needs size_t and FILE before it.
#include <jpeglib.h>

#include "decode/exif.h"
#include "decode/huffman_table.h"
#include "decode/need.h"
#include "decode/pages.h"
#include "decode/raster.h"

namespace decode {

// Huffman decodes one scan after another, MCU by MCU, and keeps its memory and its tables between
// them. It gives the coefficients that libjpeg's decoder gives, in half its time. It takes damage
// for an error where libjpeg would guess.
class Huffman {
 public:
  enum class Result {
    kOk,
    // Not a sequential Huffman scan of 8 bits, or with markers that such a file has not, or very long.
    kUnsuited,
    kTruncated,  // the data end before the marker that ends the image
    kBadCode,    // bits that are no code
    kOverfull,   // more coefficients than a block has, which libjpeg overlooks
    kShort       // a marker stands before the last MCU
  };

  explicit Huffman(bool portable = false);  // portable: without BMI2, with the same result

  // begin needs the header of a scan, jpeg_start_decompress called, and the bytes that follow it. It
  // finds the end of the image in them: kOk means that the file is not cut off. The bytes are copied.
  Result begin(const jpeg_decompress_struct& header, Bytes data);

  // decode fills in the blocks of the next MCU, which must be 0. With NULL it drops them. After any
  // result but kOk it must not be called again.
  Result decode(JBLOCKROW* blocks) { return (this->*decode_)(blocks); }

  // need returns the most memory that begin takes. data and coefficients are in bytes. every is the
  // number of MCUs between restart markers, 0 without any.
  static Need need(size_t data, size_t coefficients, size_t mcus, unsigned every);
  Need held() const;
  void free() {
    buffer_.free();
    decltype(ends_)().swap(ends_);
  }

 private:
  Result unstuff(Bytes data, size_t most, size_t intervals);
  Result restart();
  Result decode_bmi2(JBLOCKROW* blocks);
  Result decode_portable(JBLOCKROW* blocks);
  Result mcu(JBLOCKROW* blocks);
  template <bool kKeep>
  Result block(const HuffmanTable& dc, const HuffmanTable& ac, int& predicted, JCOEF* out);

  Result (Huffman::*decode_)(JBLOCKROW*);
  HuffmanTable dc_[NUM_HUFF_TBLS], ac_[NUM_HUFF_TBLS];

  // The tables and the component of each block of an MCU.
  struct Place {
    int component, dc, ac;
  } places_[D_MAX_BLOCKS_IN_MCU] = {};
  int blocks_ = 0;
  unsigned every_ = 0;  // MCUs between restart markers, 0 without any

  Buffer buffer_;                            // the scan without stuffing and markers
  std::vector<size_t, Pages<size_t>> ends_;  // of the intervals between restart markers, in the buffer
  size_t interval_ = 0;                      // the number of the next interval
  unsigned togo_ = 0;                        // MCUs left of this interval

  const uint8_t* next_ = nullptr;
  const uint8_t* end_ = nullptr;  // of the interval
  uint64_t bits_ = 0;             // the bits before next_ that are not used yet, the first on top
  int left_ = 0;                  // their number
  int predicted_[MAX_COMPS_IN_SCAN] = {};
};

}  // namespace decode
