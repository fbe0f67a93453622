// Recognising where deflate's blocks begin.
#pragma once

#include "inflate/decoder.h"

namespace inflater {

// Found is what may begin at a bit; kind 0 is nothing.
struct Found {
  int32_t kind = 0;
  uint64_t bit = 0;
};

// find does what the C header says of ctd_inflate_find.
Found find(Bytes in, uint64_t from, uint64_t to);

}  // namespace inflater
