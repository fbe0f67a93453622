// One image from its bytes to its place in the batch.
#pragma once

#include "decode_crop.h"
#include "decode_raster.h"
#include "decode_reader.h"
#include "decode_resize.h"
#include "include/cgotorch_decode.h"

namespace decode {

// Transform decodes and transforms one image after another, on one thread, and keeps its memory between them.
class Transform {
 public:
  explicit Transform(const ctd_options& checked) : options_(checked) {}

  // run writes height x width x channels bytes to `to` and fills in result, all but its error. It throws Error; what it
  // wrote by then is of no use.
  void run(const ctd_image& image, uint8_t* to, ctd_result& result);

 private:
  View turn(const View& stored, int orientation);
  View grey(const View& rgb);
  void place(const View& from, const Region& region, const Plan& plan, uint8_t* to);
  void copy(const View& from, const Plan& plan, uint8_t* to);
  void resize(const View& from, const Region& region, const Plan& plan, uint8_t* to);

  const ctd_options options_;
  Resizer resizer_;
  Scratch scratch_;
  Buffer turned_, grey_, result_;
};

}  // namespace decode
