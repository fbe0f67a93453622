// Reads the orientation in EXIF data.
#pragma once

#include <cstdint>
#include <span>

namespace decode {

using Bytes = std::span<const uint8_t>;

// Each function returns the EXIF orientation, 1 to 8, of a file of one format. It returns 1 if
// the file has no orientation or is damaged.
int orientation_of_jpeg(Bytes file);
int orientation_of_png(Bytes file);
int orientation_of_tiff(Bytes file);  // also for an EXIF block, which has the form of a TIFF file
int orientation_of_webp(Bytes file);

// orientation_of finds the format by the file's signature.
int orientation_of(Bytes file);

}  // namespace decode
