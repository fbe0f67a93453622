// Where the pixels of images and the elements of a weight are in cells. The CPU and CUDA share
// this source. On the CPU only tests run it.
//
// Note [Convolution of cells]
//
// A cell is a block of 2 x 2 pixels, with all their channels. A convolution with stride 2 moves by
// one cell. So it is a convolution of cells with stride 1, and a cell is one pixel with more
// channels. This holds for rows:
//
//   shift   padding % 2
//   before  (padding + shift) / 2, the number of cells before the image's first row
//   window  (kernel + shift + 1) / 2, the size of the kernel in cells
//
// Cell i has the rows 2 * (i - before) and the row after it. Result o reads the cells o to
// o + window - 1. Its cell o + a has the rows 2 * a - shift and the row after it of the kernel. A
// row of the kernel that is not in the weight is 0, and so is a pixel outside the image. All of
// this holds for columns too.
//
// Channel d * 2 * C + e * C + c of a cell is channel c of the pixel in row d and column e of the
// cell. C is the number of channels of the images. Further channels of 0 make the number of
// channels of a cell a multiple of 8.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/both_devices.h"

namespace ct::image_convolution {

CT_ON_BOTH_DEVICES(kCellsText,

// Images of `height` x `width` pixels. The strides are in elements. The number of cells and the
// distance between two elements must be an int.
struct Images {
  int count;
  int height;
  int width;
  int rows;     // of the cells
  int columns;  // of the cells
  int before;   // cells before the first row, and before the first column
  int image_stride;
  int channel_stride;
  int row_stride;
  int column_stride;
};

// A weight of [outputs, channels, kernel, kernel], or its gradient. The strides are in elements.
// The distance between two elements must be an int.
struct Weight {
  int outputs;
  int kernel;
  int shift;
  int window;
  int output_stride;
  int channel_stride;
  int row_stride;
  int column_stride;
};

// Returns the number of channels of a cell, for images with so many channels.
CT_FUNCTION constexpr int cell_channels(int channels) { return (4 * channels + 7) / 8 * 8; }

// One cell: the first element of its image, and the place of its first pixel in the image.
struct Cell {
  int image;
  int row;
  int column;
};

// Returns the cell of the given number. The cells are numbered as [images, rows, columns].
CT_FUNCTION Cell cell_of(const Images& g, int number) {
  const unsigned rows = g.rows;  // unsigned numbers are faster to divide
  const unsigned columns = g.columns;
  const unsigned line = static_cast<unsigned>(number) / columns;
  const int row = line % rows;
  const int column = static_cast<unsigned>(number) % columns;
  return {static_cast<int>(line / rows) * g.image_stride, 2 * (row - g.before), 2 * (column - g.before)};
}

// Returns the element of the images that is channel q of the cell. Returns -1 if this channel is 0.
template <int kChannels>
CT_FUNCTION int pixel_of(const Images& g, const Cell& cell, int q) {
  const int row = cell.row + q / (2 * kChannels);
  const int column = cell.column + q % (2 * kChannels) / kChannels;
  if (q >= 4 * kChannels || row < 0 || row >= g.height || column < 0 || column >= g.width) return -1;
  return cell.image + row * g.row_stride + column * g.column_stride + q % kChannels * g.channel_stride;
}

// Returns the element of the weight that is channel q of a cell of the kernel. Returns -1 if this
// channel is 0. The cells are numbered as [outputs, window, window].
template <int kChannels>
CT_FUNCTION int element_of(const Weight& g, int number, int q) {
  const int line = number / g.window;
  const int row = 2 * (line % g.window) + q / (2 * kChannels) - g.shift;
  const int column = 2 * (number % g.window) + q % (2 * kChannels) / kChannels - g.shift;
  if (q >= 4 * kChannels || row < 0 || row >= g.kernel || column < 0 || column >= g.kernel) return -1;
  return line / g.window * g.output_stride + row * g.row_stride + column * g.column_stride + q % kChannels * g.channel_stride;
}

// Where an element of the weight is: in the weight, and in the cells of the kernel.
struct Place {
  int in_weight;
  int in_cells;
};

// Returns the place of the element of the given number. The elements are numbered as [outputs,
// kernel, kernel, channels].
template <int kChannels>
CT_FUNCTION Place place_of(const Weight& g, int number) {
  const int channel = number % kChannels;
  const int column = number / kChannels % g.kernel;
  const int row = number / kChannels / g.kernel % g.kernel;
  const int output = number / kChannels / g.kernel / g.kernel;
  const int down = row + g.shift;
  const int right = column + g.shift;
  const int cell = (output * g.window + down / 2) * g.window + right / 2;
  return {output * g.output_stride + row * g.row_stride + column * g.column_stride + channel * g.channel_stride,
          cell * cell_channels(kChannels) + down % 2 * 2 * kChannels + right % 2 * kChannels + channel};
}

)  // CT_ON_BOTH_DEVICES

// Returns the numbers of `weight`, which is [outputs, channels, kernel, kernel].
inline Weight weight_of(const at::Tensor& weight, int64_t padding) {
  const int kernel = static_cast<int>(weight.size(2)), shift = static_cast<int>(padding % 2);
  const auto stride = [&](int64_t dimension) { return static_cast<int>(weight.stride(dimension)); };
  return {static_cast<int>(weight.size(0)), kernel, shift, (kernel + shift + 1) / 2, stride(0), stride(1), stride(2), stride(3)};
}

// Returns the numbers of `input`, which is [images, channels, height, width].
inline Images images_of(const at::Tensor& input, const Weight& weight, int64_t padding) {
  const auto cells = [&](int64_t size) { return static_cast<int>((size + 2 * padding - weight.kernel) / 2 + weight.window); };
  const auto size = [&](int64_t dimension) { return static_cast<int>(input.size(dimension)); };
  const auto stride = [&](int64_t dimension) { return static_cast<int>(input.stride(dimension)); };
  return {size(0), size(2), size(3), cells(size(2)), cells(size(3)), static_cast<int>((padding + weight.shift) / 2),
          stride(0), stride(1), stride(2), stride(3)};
}

}  // namespace ct::image_convolution
