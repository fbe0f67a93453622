// Batches of images: uint8 pixels, as normalising, mixing and augmenting read them, and the images that the first two make of them.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/device.h"
#include "kernels/both_devices.h"

namespace ct::images {

CT_ON_BOTH_DEVICES(kText,

constexpr int kMaxChannels = 4;
constexpr int kLevels = 256;  // of a pixel
constexpr int kRows = 8;      // that a block makes

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

// Throws unless pixels are contiguous uint8 [N, H, W, C] of less than 2^31 elements, and flips, if there are any, contiguous bool [N].
void check_pixels(const at::Tensor& pixels, const at::Tensor* flips);

// The same for the rest of what makes images of 1 to kMaxChannels channels: out must be of a floating-point dtype, [N, C, H, W], without
// gaps and without a gradient, and table of the same dtype, contiguous [C, kLevels].
void check(const at::Tensor& pixels, const at::Tensor* flips, const at::Tensor& table, const at::Tensor& out);

Geometry geometry(const at::Tensor& pixels, const at::Tensor& out);

// A block makes kRows rows of one image. Neighbouring threads make neighbouring elements of a row, and blockDim.x is a multiple
// of the channels, so that a thread stays in one channel and divides once.
void launch(const CudaProgram& program, const char* kernel, c10::Stream stream, const Geometry& g, void** arguments);

}  // namespace ct::images
