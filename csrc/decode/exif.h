// The orientation that EXIF data give.
#pragma once

#include <cstdint>
#include <span>

namespace decode {

using Bytes = std::span<const uint8_t>;

// The EXIF orientation, 1 to 8, of a file of each kind. 1 where the file has none or is damaged.
int orientation_of_jpeg(Bytes file);
int orientation_of_png(Bytes file);
int orientation_of_tiff(Bytes file);  // also of an EXIF block, which has the form of a TIFF file
int orientation_of_webp(Bytes file);

// orientation_of looks at the file's signature first.
int orientation_of(Bytes file);

}  // namespace decode
