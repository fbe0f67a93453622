// Watches: the calls to CUDA that wait for the device. CUPTI reports each of them when it is
// made.
#pragma once

#include <cupti.h>

#include "cuda/backend.h"

namespace ct {

void start_watching(CudaCalls* calls);
void stop_watching() noexcept;

// CUPTI calls this function on the thread that calls CUDA.
void CUPTIAPI on_call(void* user, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data);

}  // namespace ct
