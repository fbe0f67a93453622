// Turning stored pixels upright.
#pragma once

#include "decode/raster.h"

namespace decode {

// swaps_sides reports whether an image of this EXIF orientation, 1 to 8, is stored with width and
// height exchanged.
inline bool swaps_sides(int orientation) { return orientation >= 5; }

// stored returns the place of a box of the upright image, which is height x width, in the stored
// pixels.
Box stored(const Box& upright, int orientation, int height, int width);

// shown is the way back: it returns the place of a box of the stored pixels, height x width, in the
// upright image.
Box shown(const Box& stored, int orientation, int height, int width);

// upright copies stored pixels to `to` (as many bytes, without gaps) and returns a view of them
// turned upright.
View upright(const View& stored, int orientation, uint8_t* to);

}  // namespace decode
