// Devices. This file tells whether CUDA is there, and whether a device has been lost.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "cgotorch.h"
#include "core/status.h"
#include "cuda/backend.h"

namespace ct {

// Converts a device of the C ABI to LibTorch's. Throws for an unknown type.
c10::Device to_device(ct_device device);
ct_device from_device(c10::Device device);

// Opens LibTorch's CUDA libraries if a driver is there. Only the first call does so. LibTorch
// looks for CUDA once and remembers the answer. So load_cuda must be called before any code that
// makes LibTorch look for CUDA.
void load_cuda();
// Returns the folder in which this library lies, with a slash at the end.
std::string own_folder();
// Registers fn, which is called when CUDA has been opened and before any work runs there. Only
// static initialisers call it, while the library is being loaded.
void when_cuda_is_open(void (*fn)());

// Returns the part of the core that calls CUDA. Throws CT_NO_DEVICE, with the reason, if CUDA was
// not opened.
CudaBackend& cuda();

// Throws CT_NO_DEVICE if the device is not there, and CT_DEVICE_LOST if it is lost.
void require(c10::Device device);

// Checks that the device is there, and then runs f(device). Returns NULL or the status of a
// failure.
template <typename F>
ct_status* on_device(ct_device device, F&& f) noexcept {
  c10::Device where(c10::kCPU);
  if (ct_status* failure = guarded([&] { require(where = to_device(device)); })) return failure;
  return guarded(where, [&] { std::forward<F>(f)(where); });
}

// Returns whether detect_loss has found that the device is lost. The call costs next to nothing
// while no device is lost.
bool is_lost(c10::Device device) noexcept;

// Asks CUDA whether the device is lost. Returns "" if it is not. Otherwise it returns the message
// of CT_DEVICE_LOST, and require() throws from then on.
std::string detect_loss(c10::Device device);

}  // namespace ct
