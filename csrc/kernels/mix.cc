// MixUp, CutMix and erased boxes, in the pass that normalises: from uint8 pixels to the mixed images of a batch, and its labels.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/device.h"
#include "core/exec.h"
#include "core/tensor.h"
#include "kernels/images.h"

namespace ct {
namespace {

using images::Geometry;
using images::kLevels;
using images::kMaxChannels;

struct Cut {
  int32_t kind, top, left, bottom, right;
};

// Half precision is mixed as PyTorch does it: each operation in float32, and its result rounded.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
struct Inputs {
  const uint8_t* pixels;
  const uint8_t* flips;   // or NULL
  const T* table;
  const int32_t* erased;  // or NULL
  T fill[kMaxChannels];
};

// A row of an image, normalised, with its erased pixels: [W, C].
template <typename T>
void normalize_row(const Inputs<T>& in, const Geometry& g, int64_t n, int64_t h, T* __restrict row) {
  const int64_t channels = g.channels, width = g.width;
  const uint8_t* pixel = in.pixels + (n * g.height + h) * width * channels;
  int64_t step = channels;
  if (in.flips != nullptr && in.flips[n] != 0) {
    pixel += (width - 1) * channels;
    step = -channels;
  }
  for (int64_t w = 0; w < width; ++w, pixel += step) {
    for (int64_t c = 0; c < channels; ++c) row[w * channels + c] = in.table[c * kLevels + pixel[c]];
  }
  if (in.erased == nullptr) return;
  const int32_t* box = in.erased + 4 * n;
  if (h < box[0] || h - box[0] >= box[2]) return;
  for (int64_t w = std::max<int64_t>(box[1], 0); w < std::min<int64_t>(width, int64_t{box[1]} + box[3]); ++w) {
    for (int64_t c = 0; c < channels; ++c) row[w * channels + c] = in.fill[c];
  }
}

template <typename T>
void mix_on_cpu(const Inputs<T>& in, const Cut& cut, double lambda, T* out, const Geometry& g) {
  const auto share = static_cast<Wide<T>>(lambda), rest = static_cast<Wide<T>>(1 - lambda);
  const int64_t channels = g.channels, width = g.width, size = width * channels;
  std::vector<T> rows(static_cast<size_t>(2 * size));
  T *const own = rows.data(), *const other = own + size;
  for (int64_t n = 0; n < g.images; ++n) {
    const int64_t before = n == 0 ? g.images - 1 : n - 1;
    for (int64_t h = 0; h < g.height; ++h) {
      normalize_row(in, g, n, h, own);
      if (cut.kind == CT_MIX_UP) {
        normalize_row(in, g, before, h, other);
        for (int64_t i = 0; i < size; ++i) {
          const T a(static_cast<Wide<T>>(other[i]) * rest), b(static_cast<Wide<T>>(own[i]) * share);
          own[i] = T(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
        }
      } else if (cut.kind == CT_MIX_CUT && h >= cut.top && h < cut.bottom) {
        normalize_row(in, g, before, h, other);
        const int64_t left = std::clamp<int64_t>(cut.left, 0, width), right = std::clamp<int64_t>(cut.right, left, width);
        std::copy(other + left * channels, other + right * channels, own + left * channels);
      }
      T* to = out + n * g.image + h * g.row;
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t w = 0; w < width; ++w) to[w * g.column + c * g.channel] = own[w * channels + c];
      }
    }
  }
}

void mix_labels_on_cpu(const int64_t* labels, float share, float rest, float* out, int64_t images, int64_t classes) {
  for (int64_t n = 0; n < images; ++n) {
    const int64_t own = labels[n], other = labels[n == 0 ? images - 1 : n - 1];
    for (int64_t k = 0; k < classes; ++k) *out++ = (k == other ? rest : 0.0f) + (k == own ? share : 0.0f);
  }
}

constexpr CudaProgram kProgram{"mix", images::kText, R"cuda(
constexpr int kMixUp = 1;
constexpr int kCutMix = 2;

struct Cut {
  int kind, top, left, bottom, right;
};

template <typename Raw>
struct Fill {
  Raw channel[kMaxChannels];
};

// One image's pixels, as this block reads them.
struct Image {
  const unsigned char* pixels;
  bool flip;
  int top, left, bottom, right;  // the erased box
};

__device__ Image image_of(const unsigned char* pixels, const unsigned char* flips, const int* erased, int n, const Geometry& g) {
  Image image = {pixels + static_cast<long long>(n) * g.height * g.width * g.channels, flips != nullptr && flips[n] != 0, 0, 0, 0, 0};
  if (erased != nullptr) {
    image.top = erased[4 * n];
    image.left = erased[4 * n + 1];
    image.bottom = image.top + erased[4 * n + 2];
    image.right = image.left + erased[4 * n + 3];
  }
  return image;
}

template <typename Raw>
__device__ Raw normalized(const Image& image, const Raw* values, Raw fill, int h, int w, int channel, const Geometry& g) {
  if (h >= image.top && h < image.bottom && w >= image.left && w < image.right) return fill;
  return values[image.pixels[(h * g.width + (image.flip ? g.width - 1 - w : w)) * g.channels + channel]];
}

template <typename N>
__device__ void mix(const unsigned char* pixels, const unsigned char* flips, const typename N::Raw* table, const int* erased,
                    Fill<typename N::Raw> fill, Cut cut, double lambda, typename N::Raw* out, Geometry g) {
  using Raw = typename N::Raw;
  using Wide = typename N::Wide;
  __shared__ Raw all[kMaxChannels * kLevels];
  for (int i = threadIdx.x; i < g.channels * kLevels; i += blockDim.x) all[i] = table[i];
  __syncthreads();
  const int strips = (g.height + kRows - 1) / kRows;
  const int n = blockIdx.x / strips;
  const int top = blockIdx.x % strips * kRows;
  const int bottom = min(top + kRows, g.height);
  const int channel = threadIdx.x % g.channels;
  const Image own = image_of(pixels, flips, erased, n, g);
  const Image before = image_of(pixels, flips, erased, n == 0 ? g.images - 1 : n - 1, g);
  const Raw* values = all + channel * kLevels;
  const Raw blank = fill.channel[channel];
  const Wide share = static_cast<Wide>(lambda);
  const Wide rest = static_cast<Wide>(1 - lambda);
  out += n * g.image + channel * g.channel;
  for (int w = threadIdx.x / g.channels; w < g.width; w += blockDim.x / g.channels) {
#pragma unroll 4
    for (int h = top; h < bottom; ++h) {
      const bool inside = cut.kind == kCutMix && h >= cut.top && h < cut.bottom && w >= cut.left && w < cut.right;
      // Not normalized(inside ? before : own, …): the two would go to local memory.
      Raw value = inside ? normalized(before, values, blank, h, w, channel, g) : normalized(own, values, blank, h, w, channel, g);
      if (cut.kind == kMixUp) {
        const Raw other = normalized(before, values, blank, h, w, channel, g);
        const Raw a = N::narrow(N::widen(other) * rest);
        const Raw b = N::narrow(N::widen(value) * share);
        value = N::narrow(N::widen(a) + N::widen(b));
      }
      out[h * g.row + w * g.column] = value;
    }
  }
}

#define KERNEL(name, N)                                                                                                     \
  extern "C" __global__ void name(const unsigned char* pixels, const unsigned char* flips, const N::Raw* table, const int* erased, \
                                  Fill<N::Raw> fill, Cut cut, double lambda, N::Raw* out, Geometry g) {                     \
    mix<N>(pixels, flips, table, erased, fill, cut, lambda, out, g);                                                        \
  }
KERNEL(mix_bfloat16, BFloat16)
KERNEL(mix_half, Half)
KERNEL(mix_float, Float)
KERNEL(mix_double, Double)

extern "C" __global__ void mix_labels(const long long* labels, float share, float rest, float* out, int images, int classes) {
  const int n = blockIdx.x;
  const long long own = labels[n];
  const long long other = labels[n == 0 ? images - 1 : n - 1];
  out += static_cast<long long>(n) * classes;
  for (int k = threadIdx.x; k < classes; k += blockDim.x) out[k] = (k == other ? rest : 0.0f) + (k == own ? share : 0.0f);
}
)cuda"};

template <typename T>
void mix(const char* kernel, const at::Tensor& pixels, const uint8_t* flips, const at::Tensor& table, const int32_t* erased, const ct_mix& m,
         const at::Tensor& out, c10::Stream stream) {
  Geometry g = images::geometry(pixels, out);
  Cut cut{m.kind, m.top, m.left, m.bottom, m.right};
  double lambda = m.lambda;
  Inputs<T> in{static_cast<const uint8_t*>(pixels.const_data_ptr()), flips, static_cast<const T*>(table.const_data_ptr()), erased, {}};
  for (int64_t c = 0; c < kMaxChannels; ++c) in.fill[c] = T(static_cast<Wide<T>>(m.fill[c]));
  T* to = static_cast<T*>(out.mutable_data_ptr());
  if (!out.is_cuda()) return mix_on_cpu(in, cut, lambda, to, g);
  void* arguments[] = {&in.pixels, &in.flips, &in.table, &in.erased, in.fill, &cut, &lambda, &to, &g};
  images::launch(kProgram, kernel, stream, g, arguments);
}

void check(const at::Tensor& pixels, const at::Tensor* flips, const at::Tensor& table, const at::Tensor* erased, const ct_mix& m,
           const at::Tensor& out) {
  images::check(pixels, flips, table, out);
  const int64_t n = pixels.size(0);
  TORCH_CHECK(erased == nullptr || (erased->scalar_type() == at::kInt && erased->sizes() == at::IntArrayRef({n, 4}) && erased->is_contiguous()),
              "erased must be contiguous Int [", n, ", 4]; got ", erased->scalar_type(), " ", erased->sizes());
  TORCH_CHECK(m.kind == CT_MIX_NONE || m.kind == CT_MIX_UP || m.kind == CT_MIX_CUT, "unknown kind of mix ", m.kind);
  TORCH_CHECK(m.kind != CT_MIX_UP || (m.lambda >= 0 && m.lambda <= 1), "lambda must be from 0 to 1; got ", m.lambda);
}

}  // namespace
}  // namespace ct

extern "C" {

ct_status* ct_mix_images(ct_exec x, const ct_tensor* pixels, const ct_tensor* flips, const ct_tensor* table, const ct_tensor* erased,
                         const ct_mix* mix, const ct_tensor* out) noexcept {
  return ct::executed(x, [&] {
    const at::Tensor& from = ct::deref(pixels, "pixels").tensor;
    const at::Tensor& to = ct::deref(out, "out").tensor;
    const at::Tensor& values = ct::deref(table, "table").tensor;
    const ct_mix& how = ct::deref(mix, "mix");
    ct::use_here({pixels, flips, table, erased, out}, *x.stream);
    ct::check(from, flips == nullptr ? nullptr : &flips->tensor, values, erased == nullptr ? nullptr : &erased->tensor, how, to);
    if (from.numel() == 0) return;
    constexpr const char* op = "MixImages";
    for (const ct_tensor* tensor : {pixels, flips, table, erased}) {
      if (tensor != nullptr) ct::checker::reads(op, tensor->tensor);
    }
    ct::checker::writes(op, to);
    const auto* flip = flips == nullptr ? nullptr : static_cast<const uint8_t*>(flips->tensor.const_data_ptr());
    const auto* boxes = erased == nullptr ? nullptr : static_cast<const int32_t*>(erased->tensor.const_data_ptr());
    const c10::Stream stream = x.stream->stream;
    switch (to.scalar_type()) {
      case at::kHalf: ct::mix<at::Half>("mix_half", from, flip, values, boxes, how, to, stream); break;
      case at::kBFloat16: ct::mix<at::BFloat16>("mix_bfloat16", from, flip, values, boxes, how, to, stream); break;
      case at::kDouble: ct::mix<double>("mix_double", from, flip, values, boxes, how, to, stream); break;
      default: ct::mix<float>("mix_float", from, flip, values, boxes, how, to, stream);
    }
    to.unsafeGetTensorImpl()->bump_version();
  });
}

ct_status* ct_mix_labels(ct_exec x, const ct_tensor* labels, double lambda, const ct_tensor* out) noexcept {
  return ct::executed(x, [&] {
    const at::Tensor& from = ct::deref(labels, "labels").tensor;
    const at::Tensor& to = ct::deref(out, "out").tensor;
    ct::use_here({labels, out}, *x.stream);
    TORCH_CHECK(from.scalar_type() == at::kLong && from.dim() == 1 && from.is_contiguous(), "labels must be contiguous Long [N]; got ",
                from.scalar_type(), " ", from.sizes());
    TORCH_CHECK(to.scalar_type() == at::kFloat && to.dim() == 2 && to.size(0) == from.size(0) && to.is_contiguous() &&
                    to.numel() <= INT32_MAX && !to.requires_grad(),
                "out must be contiguous Float [", from.size(0), ", classes] without a gradient; got ", to.scalar_type(), " ", to.sizes());
    TORCH_CHECK(lambda >= 0 && lambda <= 1, "lambda must be from 0 to 1; got ", lambda);
    if (to.numel() == 0) return;
    ct::checker::reads("MixLabels", from);
    ct::checker::writes("MixLabels", to);
    const auto* data = static_cast<const int64_t*>(from.const_data_ptr());
    auto* soft = static_cast<float*>(to.mutable_data_ptr());
    auto share = static_cast<float>(lambda), rest = static_cast<float>(1 - lambda);
    auto images = static_cast<int32_t>(to.size(0)), classes = static_cast<int32_t>(to.size(1));
    if (to.is_cuda()) {
      void* arguments[] = {&data, &share, &rest, &soft, &images, &classes};
      ct::cuda().launch(ct::kProgram, "mix_labels", x.stream->stream, static_cast<unsigned>(images), ct::images::kThreads, arguments);
    } else {
      ct::mix_labels_on_cpu(data, share, rest, soft, images, classes);
    }
    to.unsafeGetTensorImpl()->bump_version();
  });
}

}  // extern "C"
