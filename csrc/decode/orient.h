// Turns stored pixels upright, as the EXIF orientation says.
#pragma once

#include "decode/raster.h"

namespace decode {

// swaps_sides reports whether an image of this EXIF orientation, 1 to 8, is stored with its width
// and height exchanged.
inline bool swaps_sides(int orientation) { return orientation >= 5; }

// Returns where a box of the upright image lies in the stored pixels. The upright image has the
// size height x width.
Box stored(const Box& upright, int orientation, int height, int width);

// Does the inverse of the function `stored`: returns where a box of the stored pixels lies in the
// upright image. The stored pixels have the size height x width.
Box shown(const Box& stored, int orientation, int height, int width);

// Copies the pixels of the view `stored` to `to`, and turns them upright. `to` has room for these
// pixels without gaps. Returns a view of `to`.
View upright(const View& stored, int orientation, uint8_t* to);

}  // namespace decode
