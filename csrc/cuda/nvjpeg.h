// nvJPEG, which drives the engines that decode JPEG files. It is opened when it is first needed.
#pragma once

#include <memory>

#include "cuda/backend.h"

namespace ct {

// Throws CT_UNSUPPORTED if there is no nvJPEG, or if the stream's device has no such engines.
std::unique_ptr<CudaJpeg> new_jpeg(c10::Stream stream);

}  // namespace ct
