// Batches of images: uint8 pixels, the input of normalising, mixing and augmenting, and the images
// that the first two make of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <initializer_list>
#include <optional>

#include "core/device.h"
#include "kernels/both_devices.h"

namespace ct::images {

CT_ON_BOTH_DEVICES(kText,

constexpr int kMaxChannels = 4;
constexpr int kLevels = 256;  // of a pixel
constexpr int kRows = 8;      // rows that a block makes

// Of a batch of images. Distances in elements of their dtype.
struct Geometry {
  int images;
  int height;
  int width;
  int channels;
  long long image;
  long long channel;
  long long row;
  long long column;
};

)  // CT_ON_BOTH_DEVICES

constexpr int kThreads = 256;

// Throws unless all tensors lie on the device of out. NULL stands for a tensor that is left out.
void check_device(const at::Tensor& out, std::initializer_list<const at::Tensor*> others);

// The tensor, or NULL for none.
inline const at::Tensor* pointer(const std::optional<at::Tensor>& tensor) { return tensor ? &*tensor : nullptr; }

// Throws unless pixels are contiguous uint8 [N, H, W, C] of less than 2^31 elements, and flips, if
// there are any, contiguous bool [N].
void check_pixels(const at::Tensor& pixels, const std::optional<at::Tensor>& flips);

// As check_pixels, for all arguments of a call that makes images of 1 to kMaxChannels channels. out
// must be of a floating-point dtype, [N, C, H, W], without gaps and without a gradient. table must
// be contiguous [C, kLevels] of the same dtype.
void check(const at::Tensor& pixels, const std::optional<at::Tensor>& flips, const at::Tensor& table, const at::Tensor& out);

Geometry geometry(const at::Tensor& pixels, const at::Tensor& out);

// Enqueues a kernel whose blocks make kRows rows of one image each. Neighbouring threads make
// neighbouring elements of a row. blockDim.x is a multiple of the channels: a thread stays in one
// channel and divides once.
void launch(const CudaProgram& program, const char* kernel, const at::Tensor& out, const Geometry& g, void** arguments);

// The stream on which LibTorch runs operators on the tensor's device now: the exec's.
c10::Stream stream_of(const at::Tensor& tensor);

// The elements of an optional tensor; NULL for none.
template <typename T>
const T* data_of(const std::optional<at::Tensor>& tensor) {
  return tensor ? static_cast<const T*>(tensor->const_data_ptr()) : nullptr;
}

// Defines an operator whose kernel serves the CPU and CUDA. It is registered for both, and is no
// composite of other operators. The stream checker thus takes its accesses from its schema.
template <typename Kernel>
void define(torch::Library& library, const char* schema, const char* name, Kernel kernel) {
  library.def(schema);
  library.impl(name, torch::dispatch(c10::DispatchKey::CPU, kernel));
  library.impl(name, torch::dispatch(c10::DispatchKey::CUDA, kernel));
}

}  // namespace ct::images
