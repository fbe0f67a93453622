// Which pixel stands for a pixel beyond the border of an image. The CPU and CUDA share this
// source. Padding and blurring use it.
#pragma once

#include "kernels/both_devices.h"

namespace ct::border {

CT_ON_BOTH_DEVICES(kBorderText,

// The numbers are those of cgotorch/images/pad.go.
enum Border { kConstant, kEdge, kReflect, kSymmetric };

// Returns the place in a line of n pixels that stands for place i. The places from 0 to n - 1 stand
// for themselves. Returns -1 if no pixel stands for place i.
//
// Place i is at most n - 1 places beyond the line's ends for kReflect, and at most n places for
// kSymmetric. Callers check this.
CT_FUNCTION int source_of(int i, int n, int border) {
  if (i >= 0 && i < n) return i;
  switch (border) {
    case kEdge: return i < 0 ? 0 : n - 1;
    case kReflect: return i < 0 ? -i : 2 * (n - 1) - i;
    case kSymmetric: return i < 0 ? -1 - i : 2 * n - 1 - i;
    default: return -1;
  }
}

)  // CT_ON_BOTH_DEVICES

}  // namespace ct::border
