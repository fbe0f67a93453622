// Recognising the starts of deflate's blocks.
#pragma once

#include "inflate/decoder.h"

namespace inflater {

// Found is a possible start at a bit. Kind 0 is nothing.
struct Found {
  int32_t kind = 0;
  uint64_t bit = 0;
};

// find is ctd_inflate_find of the C header.
Found find(Bytes in, uint64_t from, uint64_t to);

}  // namespace inflater
