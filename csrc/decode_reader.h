// An encoded image, opened: its header read, its pixels not yet.
#pragma once

#include <memory>

#include "decode_exif.h"
#include "decode_raster.h"
#include "include/cgotorch_decode.h"

namespace decode {

// Reader reads one file, which must outlive it. It throws Error.
class Reader {
 public:
  virtual ~Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const ctd_info& info() const { return info_; }

  // read decodes the file to its end and returns the pixels of box, which lies in the stored image: 1 channel of grey, or
  // 3 of RGB; 8 bits, without alpha. Damage anywhere is an error, wherever the box is. The view is good until the buffer
  // is used again. May be called once.
  virtual View read(const Box& box, Buffer& buffer) = 0;

 protected:
  Reader() = default;
  ctd_info info_{};
};

// open reads the header of a JPEG or PNG. It throws for anything else.
std::unique_ptr<Reader> open(Bytes file);

// check_size throws when an image has more pixels than allowed, or sides that are too long to resize.
void check_size(int64_t width, int64_t height, int64_t max_pixels);

}  // namespace decode
