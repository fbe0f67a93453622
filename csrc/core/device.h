// Devices: whether CUDA is there, and whether a device has been lost.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "cgotorch.h"
#include "core/status.h"
#include "cuda/backend.h"

namespace ct {

// The device of the C ABI as LibTorch's. An unknown type is an error.
c10::Device to_device(ct_device device);
ct_device from_device(c10::Device device);

// Opens LibTorch's CUDA half once, if a driver is there. Called before any code that makes LibTorch
// look for CUDA, since LibTorch remembers the result.
void load_cuda();
// Calls fn when CUDA is opened, before anything runs there. To be called while the library is
// loaded.
void when_cuda_is_open(void (*fn)());

// Throws CT_NO_DEVICE, with the reason, unless CUDA was loaded.
CudaBackend& cuda();

// Throws CT_NO_DEVICE or CT_DEVICE_LOST.
void require(c10::Device device);

// Runs f(device), once the device is known to be there.
template <typename F>
ct_status* on_device(ct_device device, F&& f) noexcept {
  c10::Device where(c10::kCPU);
  if (ct_status* failure = guarded([&] { require(where = to_device(device)); })) return failure;
  return guarded(where, [&] { std::forward<F>(f)(where); });
}

// Whether the loss of the device has been seen. Costs nothing while no device is lost.
bool is_lost(c10::Device device) noexcept;

// Returns "" while the device lives. Otherwise it returns the text of CT_DEVICE_LOST, and from then
// on require() throws.
std::string detect_loss(c10::Device device);

}  // namespace ct
