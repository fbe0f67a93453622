#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/image_convolution_cells.h"

namespace {

using namespace ct::image_convolution;

constexpr std::array<int64_t, 2> kNone{0, 0}, kOne{1, 1}, kTwo{2, 2};
constexpr auto kLast = at::MemoryFormat::ChannelsLast;

// Whole numbers are exact in double, so every way to add them gives the same sum.
at::Tensor numbers(at::IntArrayRef shape) { return at::randint(-9, 10, shape, at::kDouble); }

// Returns the tensor with the same elements in another layout: channels last, transposed, or every
// other element of a larger tensor.
at::Tensor laid_out(const at::Tensor& t, int layout) {
  switch (layout) {
    case 1: return t.contiguous(kLast);
    case 2: return t.transpose(2, 3).contiguous().transpose(2, 3);
    case 3: {
      at::Tensor wide = at::full({t.size(0), t.size(1) + 1, t.size(2), 2 * t.size(3) + 1}, 1e6, t.options());
      at::Tensor view = wide.slice(1, 1).slice(3, 1, 2 * t.size(3), 2);
      view.copy_(t);
      return view;
    }
    default: return t;
  }
}

// The CPU's counterparts of the kernels image_cells, weight_cells and weight_gradient.
template <int kChannels>
at::Tensor image_cells(const at::Tensor& input, const Images& g) {
  constexpr int kAll = cell_channels(kChannels);
  at::Tensor out = at::empty({g.count, kAll, g.rows, g.columns}, input.options().memory_format(kLast));
  const auto* from = input.const_data_ptr<double>();
  auto* to = out.mutable_data_ptr<double>();
  for (int i = 0; i < g.count * g.rows * g.columns; ++i) {
    const Cell cell = cell_of(g, i);
    for (int q = 0; q < kAll; ++q) {
      const int at = pixel_of<kChannels>(g, cell, q);
      to[i * kAll + q] = at < 0 ? 0 : from[at];
    }
  }
  return out;
}

template <int kChannels>
at::Tensor weight_cells(const at::Tensor& weight, const Weight& g) {
  constexpr int kAll = cell_channels(kChannels);
  at::Tensor out = at::empty({g.outputs, kAll, g.window, g.window}, weight.options().memory_format(kLast));
  const auto* from = weight.const_data_ptr<double>();
  auto* to = out.mutable_data_ptr<double>();
  for (int i = 0; i < g.outputs * g.window * g.window; ++i) {
    for (int q = 0; q < kAll; ++q) {
      const int at = element_of<kChannels>(g, i, q);
      to[i * kAll + q] = at < 0 ? 0 : from[at];
    }
  }
  return out;
}

template <int kChannels>
at::Tensor weight_gradient(const at::Tensor& cells, const at::Tensor& weight, int64_t padding) {
  at::Tensor out = at::empty_like(weight);
  const Weight g = weight_of(out, padding);
  const auto* from = cells.const_data_ptr<double>();
  auto* to = out.mutable_data_ptr<double>();
  for (int i = 0; i < g.outputs * g.kernel * g.kernel * kChannels; ++i) {
    const Place place = place_of<kChannels>(g, i);
    to[place.in_weight] = from[place.in_cells];
  }
  return out;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                                                        at::IntArrayRef stride, at::IntArrayRef padding) {
  return at::convolution_backward(gradient, input, weight, {}, stride, padding, kOne, false, kNone, 1, {false, true, false});
}

template <int kChannels>
void check(int64_t kernel, int64_t padding, int64_t height, int64_t width, int layout) {
  SCOPED_TRACE(::testing::Message() << kChannels << " channels, kernel " << kernel << ", padding " << padding << ", " << height << " x " << width
                                    << ", layout " << layout);
  const at::Tensor input = laid_out(numbers({2, kChannels, height, width}), layout);
  const at::Tensor weight = laid_out(numbers({3, kChannels, kernel, kernel}), 3 - layout);
  const std::array<int64_t, 2> paddings{padding, padding};
  const at::Tensor want = at::conv2d(input, weight, {}, kTwo, at::IntArrayRef(paddings));

  const Weight w = weight_of(weight, padding);
  const at::Tensor cells = image_cells<kChannels>(input, images_of(input, w, padding)), weights = weight_cells<kChannels>(weight, w);
  const at::Tensor got = at::convolution(cells, weights, {}, kOne, kNone, kOne, false, kNone, 1);
  EXPECT_TRUE(at::equal(got, want)) << got.sizes() << ", want " << want.sizes();

  const at::Tensor gradient = numbers(want.sizes());
  const at::Tensor of_cells = std::get<1>(backward(gradient, cells, weights, kOne, kNone)).contiguous(kLast);
  EXPECT_TRUE(at::equal(weight_gradient<kChannels>(of_cells, weight, padding), std::get<1>(backward(gradient, input, weight, kTwo, paddings))));
}

// A convolution of cells is the convolution of the images: the result and the gradient of the
// weight are equal to the bit.
TEST(ImageConvolution, OfCells) {
  int layout = 0;
  for (int64_t kernel = 1; kernel <= 11; ++kernel) {
    for (int64_t padding = 0; padding < kernel; ++padding) {
      for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{{8, 11}, {13, 12}, {11, 17}, {3, 2}, {1, 1}}) {
        if (height + 2 * padding < kernel || width + 2 * padding < kernel) continue;
        layout = (layout + 1) % 4;
        check<1>(kernel, padding, height, width, layout);
        check<2>(kernel, padding, height, width, layout);
        check<3>(kernel, padding, height, width, layout);
        check<4>(kernel, padding, height, width, layout);
      }
    }
  }
}

}  // namespace
