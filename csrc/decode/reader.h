// An encoded image that is open. Its header has been read, but not its pixels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "decode/exif.h"
#include "decode/huffman.h"
#include "decode/need.h"
#include "decode/raster.h"
#include "include/cgotorch_decode.h"

namespace decode {

// A file in the form of ctd_frame. `rest` is a part of the original file.
struct FrameFile {
  std::vector<uint8_t> head;
  Bytes rest;
};

// Scratch is memory that a thread keeps from one image to the next.
struct Scratch {
  Buffer pixels;
  Buffer codec;  // memory of libjpeg or libpng, used as long as the reader lives
  Huffman huffman;

  Need held() const {
    Need out = huffman.held();
    out.pixels = pixels.size();
    out.codec = codec.size();
    return out;
  }
  void free_codec() {
    codec.free();
    huffman.free();
  }
  void free() {
    pixels.free();
    free_codec();
  }
};

// Reader reads one file. The file's bytes must outlive the Reader. The functions of a Reader
// throw Error.
class Reader {
 public:
  virtual ~Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const ctd_info& info() const { return info_; }

  // Returns the pixels of `box`, which is a part of the image as stored. The pixels have 8 bits, no
  // alpha, and 1 channel of grey or 3 of RGB.
  //
  // With shrink 2, 4 or 8, the pixels are those of the image at 1/2, 1/4 or 1/8 of its size. They
  // begin with the pixel that holds the first row and column of the box. They end with the pixel
  // that holds the last row and column of the box.
  //
  // The view is valid until the scratch is used again. The function may be called once.
  //
  // A file that ends too early is an error, wherever the box is. Damage is an error too, with one
  // exception. In a sequential JPEG with one scan, the rows below the box are not decoded, and
  // damage there is not seen.
  virtual View read(const Box& box, int shrink, Scratch& scratch) = 0;

  // Returns the most memory that the function `read` takes. Looks only at the header.
  virtual Need need(const Box& box, int shrink) const = 0;

  // Reports whether the function `read` accepts a shrink above 1.
  virtual bool shrinks() const { return false; }

  // Writes the file to `to` in the form that ctd_frame describes, and returns its sampling: CTD_444
  // and so on. Returns 0 if the file has no such form.
  virtual int32_t frame(FrameFile& to) const {
    (void)to;
    return 0;
  }

  // Throws if any code of a file that has a frame is damaged, if there are bytes between the codes,
  // or if a coefficient is larger than pixels of 8 bits can give. No other function may be called
  // afterwards.
  virtual void check(Scratch& scratch) { (void)scratch; }

 protected:
  Reader() = default;
  ctd_info info_{};
};

constexpr int64_t kLongestImageSide = 1'000'000;  // the longest side of an image in pixels

// Reads the header of a JPEG or PNG. Throws for any other file.
std::unique_ptr<Reader> open(Bytes file);

// check_size throws if an image has more pixels than `max_pixels`, or a side that is too long to
// resize.
void check_size(int64_t width, int64_t height, int64_t max_pixels);

}  // namespace decode
