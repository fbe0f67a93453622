// Which calls of CUDA's wait for the device, told by CUPTI as they are made.
#pragma once

#include <cupti.h>

#include "cuda/backend.h"

namespace ct {

void start_watching(CudaCalls* calls);
void stop_watching() noexcept;

// What CUPTI calls, on the thread that calls CUDA.
void CUPTIAPI on_call(void* user, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data);

}  // namespace ct
