// Recognises places where deflate's blocks may start.
#pragma once

#include "inflate/decoder.h"

namespace inflater {

// Found is a place where a block or a gzip member may start. `bit` is the number of its first
// bit. `kind` is 0 if there is no such place.
struct Found {
  int32_t kind = 0;
  uint64_t bit = 0;
};

// find does what ctd_inflate_find of the C header says.
Found find(Bytes in, uint64_t from, uint64_t to);

}  // namespace inflater
