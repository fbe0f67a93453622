// The part of an image that becomes the result: torchvision's geometry, without the pixels.
#pragma once

#include <cstdint>

#include "decode/raster.h"
#include "include/cgotorch_decode.h"

namespace decode {

// Plan says: read `box` of the source and resize it to resized_height x resized_width. Then take
// the window at (top, left) of the result's size. Where the window leaves the resized box, it shows
// padding.
struct Plan {
  Box box;
  int resized_height = 0, resized_width = 0;
  int top = 0, left = 0;
  Box cropped;  // in the form of the result
  bool flip = false;
};

// checked returns the options with 0 replaced by the defaults. It throws for a value outside its
// range.
ctd_options checked(const ctd_options& options);

// plan needs checked options and the source's size, its orientation applied. It throws when the
// image is too small for the crop.
Plan plan(const ctd_options& options, int height, int width, uint64_t key);

}  // namespace decode
