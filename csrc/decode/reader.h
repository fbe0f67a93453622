// An encoded image, opened: its header read, its pixels not yet.
#pragma once

#include <memory>

#include "decode/exif.h"
#include "decode/huffman.h"
#include "decode/need.h"
#include "decode/raster.h"
#include "include/cgotorch_decode.h"

namespace decode {

// Scratch is the memory that a thread keeps from image to image.
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

// Reader reads one file, which must outlive it. It throws Error.
class Reader {
 public:
  virtual ~Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const ctd_info& info() const { return info_; }

  // read returns the pixels of box, which lies in the stored image: 1 channel of grey, or 3 of RGB, 8
  // bits, without alpha. With shrink above 1 they are pixels of the image at 1/2, 1/4 or 1/8. They
  // reach from the pixel that holds the box's first row and column to the pixel that holds its last.
  // The view is good until the scratch is used again. May be called once.
  //
  // A file that ends too early is an error, wherever the box is, and so is damage. In a sequential
  // JPEG with one scan the rows below the box are not decoded, and damage there is not seen.
  virtual View read(const Box& box, int shrink, Scratch& scratch) = 0;

  // need tells from the header the most memory that read takes.
  virtual Need need(const Box& box, int shrink) const = 0;

  // shrinks says whether read takes a shrink above 1.
  virtual bool shrinks() const { return false; }

 protected:
  Reader() = default;
  ctd_info info_{};
};

constexpr int64_t kLongestImageSide = 1'000'000;  // of an image

// open reads the header of a JPEG or PNG. It throws for any other file.
std::unique_ptr<Reader> open(Bytes file);

// check_size throws when an image has more pixels than allowed, or sides that are too long to
// resize.
void check_size(int64_t width, int64_t height, int64_t max_pixels);

}  // namespace decode
