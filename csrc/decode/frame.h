// Writes a JPEG in the form in which a device takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

// jpeglib.h uses size_t and FILE, so the headers with these types come first.
#include <jpeglib.h>

#include "decode/exif.h"
#include "decode/reader.h"

namespace decode {

// Writes a file to `to`, in the form that ctd_frame describes, and returns its sampling: CTD_444
// and so on. Returns 0 and writes nothing if the file has no such form. `header` is the file's
// header as jpeg_read_header leaves it, and `data` are the bytes that follow it.
int32_t write_frame(const jpeg_decompress_struct& header, Bytes data, FrameFile& to);

}  // namespace decode
