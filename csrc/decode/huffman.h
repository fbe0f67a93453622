// Decodes the entropy-coded data of a sequential JPEG with one scan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

// jpeglib.h uses size_t and FILE, so the headers with these types come first.
#include <jpeglib.h>

#include "decode/exif.h"
#include "decode/huffman_table.h"
#include "decode/need.h"
#include "decode/pages.h"
#include "decode/raster.h"

namespace decode {

// Huffman decodes one scan after another, MCU by MCU. It keeps its memory and its tables from one
// scan to the next. It gives the same coefficients as libjpeg's decoder, in half the time. It
// reports an error where libjpeg guesses at damaged data.
class Huffman {
 public:
  enum class Result {
    kOk,
    // The scan is not a sequential Huffman scan of 8 bits, or has markers that do not belong there.
    // Or its data are longer than its coefficients.
    kUnsuited,
    kTruncated,  // the data end before the marker of the image's end
    kBadCode,    // some bits are no code
    kOverfull,   // a block has too many coefficients, which libjpeg overlooks
    kShort       // there is a marker before the last MCU
  };

  explicit Huffman(bool portable = false);  // portable: without BMI2, with the same result

  // Starts a scan. `header` is the header of the scan, after jpeg_start_decompress. `data` are the
  // bytes that follow the header. The function looks for the end of the image in these bytes: kOk
  // means that the file is not cut off. It copies the bytes.
  Result begin(const jpeg_decompress_struct& header, Bytes data);

  // decode fills in the blocks of the next MCU, which must be 0 before the call. If `blocks` is
  // NULL, the coefficients are dropped. After any result other than kOk, `decode` must not be
  // called again.
  Result decode(JBLOCKROW* blocks) { return (this->*decode_)(blocks); }

  // Reports whether the MCUs so far have used all bytes up to the next marker.
  bool at_end() const {
    const ptrdiff_t bits = (end_ - next_) * 8 + left_;
    return bits >= 0 && bits < 8;
  }

  // Returns the most memory that the function `begin` takes. `data` is the size of the bytes.
  // `coefficients` is the size of the coefficients in bytes. `every` is the number of MCUs between
  // restart markers, or 0 if there are none.
  static Need need(size_t data, size_t coefficients, size_t mcus, unsigned every);
  Need held() const;
  void free() {
    buffer_.free();
    decltype(ends_)().swap(ends_);
  }

 private:
  Result unstuff(Bytes data, size_t most, size_t intervals);
  Result restart();
  Result decode_bmi2(JBLOCKROW* blocks);  // on x86-64 alone
  Result decode_portable(JBLOCKROW* blocks);
  Result mcu(JBLOCKROW* blocks);
  template <bool kKeep>
  Result block(const HuffmanTable& dc, const HuffmanTable& ac, int& predicted, JCOEF* out);

  Result (Huffman::*decode_)(JBLOCKROW*);
  HuffmanTable dc_[NUM_HUFF_TBLS], ac_[NUM_HUFF_TBLS];

  // The component and the numbers of the tables, for each block of an MCU.
  struct Place {
    int component, dc, ac;
  } places_[D_MAX_BLOCKS_IN_MCU] = {};
  int blocks_ = 0;
  unsigned every_ = 0;  // MCUs between restart markers, or 0 if there are none

  Buffer buffer_;                            // the data of the scan, without stuffed bytes and markers
  // For each interval between restart markers: its end in the buffer.
  std::vector<size_t, Pages<size_t>> ends_;
  size_t interval_ = 0;                      // the number of the next interval
  unsigned togo_ = 0;                        // MCUs that are left in this interval

  const uint8_t* next_ = nullptr;
  const uint8_t* end_ = nullptr;  // the end of this interval
  uint64_t bits_ = 0;             // bits of the bytes before next_ that are not used yet; the highest bit comes first
  int left_ = 0;                  // how many bits of bits_ are not used yet
  int predicted_[MAX_COMPS_IN_SCAN] = {};
};

}  // namespace decode
