// Code that the kernels on batches of images share. The input of each is uint8 pixels.
// Normalising and mixing make floating-point images of them.
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
constexpr int kLevels = 256;  // values of a pixel
constexpr int kRows = 8;      // rows of an image that one block makes

// Geometry is the shape of a batch, and the strides of its result in elements.
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

// Throws if a tensor is not on the device of `out`. NULL stands for a tensor that was not given.
void check_device(const at::Tensor& out, std::initializer_list<const at::Tensor*> others);

// Returns the tensor, or NULL if there is none.
inline const at::Tensor* pointer(const std::optional<at::Tensor>& tensor) { return tensor ? &*tensor : nullptr; }

// Throws unless `pixels` is contiguous uint8 [N, H, W, C] of less than 2^31 elements. If `flips`
// is given, it must be contiguous bool [N].
void check_pixels(const at::Tensor& pixels, const std::optional<at::Tensor>& flips);

// Throws unless `out` is contiguous uint8 of this shape and less than 2^31 elements, and shares no
// memory with `pixels`, which is contiguous uint8.
void check_bytes(const at::Tensor& out, at::IntArrayRef shape, const at::Tensor& pixels);

// Checks all arguments of a call that makes floating-point images. `pixels` and `flips` must pass
// check_pixels, with 1 to kMaxChannels channels. `out` must have a floating-point dtype and the
// shape [N, C, H, W], without gaps and without a gradient. `table` must be contiguous [C,
// kLevels] of the dtype of `out`. All must lie on the device of `out`.
void check(const at::Tensor& pixels, const std::optional<at::Tensor>& flips, const at::Tensor& table, const at::Tensor& out);

Geometry geometry(const at::Tensor& pixels, const at::Tensor& out);

// Enqueues a kernel. Each of its blocks makes kRows rows of one image. Neighbouring threads make
// neighbouring elements of a row. blockDim.x is a multiple of the number of channels. So a thread
// stays in one channel and divides only once.
void launch(const CudaProgram& program, const char* kernel, const at::Tensor& out, const Geometry& g, void** arguments);

// Returns the stream on which LibTorch now runs operators of the tensor's device. This is the
// stream of the exec.
c10::Stream stream_of(const at::Tensor& tensor);

// Returns the elements of an optional tensor, or NULL if there is none.
template <typename T>
const T* data_of(const std::optional<at::Tensor>& tensor) {
  return tensor ? static_cast<const T*>(tensor->const_data_ptr()) : nullptr;
}

// Defines an operator whose kernel serves the CPU and CUDA. The kernel is registered for each of
// the two. So LibTorch does not treat the operator as a composite of other operators. The stream
// checker then learns the operator's accesses from the schema.
template <typename Kernel>
void define(torch::Library& library, const char* schema, const char* name, Kernel kernel) {
  library.def(schema);
  library.impl(name, torch::dispatch(c10::DispatchKey::CPU, kernel));
  library.impl(name, torch::dispatch(c10::DispatchKey::CUDA, kernel));
}

}  // namespace ct::images
