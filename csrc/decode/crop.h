// Computes the part of an image that becomes the result. The geometry is that of torchvision. No
// pixels are touched.
#pragma once

#include <cstdint>

#include "decode/raster.h"
#include "include/cgotorch_decode.h"

namespace decode {

// Plan says what to do: read `box` of the source and resize it to resized_height x resized_width.
// Then take a window of the result's size at (top, left). Outside the resized box, the window
// shows padding.
struct Plan {
  Box box;
  int resized_height = 0, resized_width = 0;
  int top = 0, left = 0;
  Box cropped;  // the cropped box, as ctd_result reports it
  bool flip = false;
};

// checked returns a copy of the options, with the default in place of each 0 that means a default.
// It throws for a value outside its range.
ctd_options checked(const ctd_options& options);

// plan makes the plan for one image. `options` must come from the function `checked`. height and
// width are the sizes of the upright source. `plan` throws if the image is too small for the crop.
Plan plan(const ctd_options& options, int height, int width, uint64_t key);

}  // namespace decode
