// The level of a pixel from the result of an operation on floats. The CPU and CUDA share this
// source.
#pragma once

#include "kernels/both_devices.h"

namespace ct {

CT_ON_BOTH_DEVICES(kLevelText,

// Returns the value without its fraction, and at least 0 and at most 255.
CT_FUNCTION unsigned char clamped(float value) {
  return static_cast<unsigned char>(value > 0.0f ? (value < 255.0f ? static_cast<int>(value) : 255) : 0);
}

)  // CT_ON_BOTH_DEVICES

}  // namespace ct
