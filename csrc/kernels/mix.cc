// streamtorch::mix_images does MixUp and CutMix and erases boxes, in the same pass that
// normalises. mix_labels makes the labels that belong to the mixed images.
//
// mix_images first makes the result of normalize_images. Then it sets the pixels of each image's
// box to `fill`, which has one value for each channel. Without `fill` it sets them to 0. Then it
// mixes each image with the image before it in the batch. The first image is mixed with the last.
// Kind 0 does not mix. Kind 1 (MixUp) takes the share `share` of the image, and 1 - share of the
// image before it. Kind 2 (CutMix) takes the rows and columns of `cut` (top, left, bottom, right)
// from the image before it. `erased` is int32 [N, 4], the top, left, height and width of each box
// in the result, or absent.
//
// mix_labels writes weights of labels to out[n]. The label of image n has the weight `share`. The
// label of the image before it has the weight 1 - share. The image before the first is the last.
// `labels` is int64 [N]. `out` is contiguous float32 [N, classes]. A label that is not a class
// adds nothing.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/device.h"
#include "kernels/images.h"

// Note [Mixing in the pass that normalises]
//
// MixUp, CutMix and erasing are part of the pass that normalises. That pass reads two uint8
// images and writes one image of floats. A separate pass would read and write floats, and would
// need memory for a batch of them.

namespace ct {
namespace {

using images::Geometry;
using images::kLevels;
using images::kMaxChannels;

enum Kind : int32_t { kNone = 0, kMixUp = 1, kCutMix = 2 };

struct Cut {
  int32_t kind, top, left, bottom, right;
};

// Half precision is mixed as in PyTorch: each operation computes in float32 and rounds its
// result.
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

// Writes one row of an image, normalised and with its erased pixels, as [W, C].
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
      if (cut.kind == kMixUp) {
        normalize_row(in, g, before, h, other);
        for (int64_t i = 0; i < size; ++i) {
          const T a(static_cast<Wide<T>>(other[i]) * rest), b(static_cast<Wide<T>>(own[i]) * share);
          own[i] = T(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
        }
      } else if (cut.kind == kCutMix && h >= cut.top && h < cut.bottom) {
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

// One image's pixels, in the form that this block reads.
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
void mix(const char* kernel, const at::Tensor& pixels, const std::optional<at::Tensor>& flips, const at::Tensor& table,
         const std::optional<at::Tensor>& erased, at::ArrayRef<double> fill, Cut cut, double share, const at::Tensor& out) {
  Geometry g = images::geometry(pixels, out);
  Inputs<T> in{static_cast<const uint8_t*>(pixels.const_data_ptr()), images::data_of<uint8_t>(flips), static_cast<const T*>(table.const_data_ptr()),
               images::data_of<int32_t>(erased), {}};
  for (size_t c = 0; c < fill.size(); ++c) in.fill[c] = T(static_cast<Wide<T>>(fill[c]));
  T* to = static_cast<T*>(out.mutable_data_ptr());
  if (!out.is_cuda()) return mix_on_cpu(in, cut, share, to, g);
  void* arguments[] = {&in.pixels, &in.flips, &in.table, &in.erased, in.fill, &cut, &share, &to, &g};
  images::launch(kProgram, kernel, out, g, arguments);
}

void mix_images(const at::Tensor& pixels, const std::optional<at::Tensor>& flips, const at::Tensor& table, const std::optional<at::Tensor>& erased,
                at::ArrayRef<double> fill, int64_t kind, double share, at::IntArrayRef cut, const at::Tensor& out) {
  images::check(pixels, flips, table, out);
  images::check_device(out, {images::pointer(erased)});
  const int64_t n = pixels.size(0);
  TORCH_CHECK(!erased || (erased->scalar_type() == at::kInt && erased->sizes() == at::IntArrayRef({n, 4}) && erased->is_contiguous()),
              "erased must be contiguous Int [", n, ", 4]; got ", erased->scalar_type(), " ", erased->sizes());
  TORCH_CHECK(fill.empty() || static_cast<int64_t>(fill.size()) == pixels.size(3), "fill has ", fill.size(),
              " values; it must have one for each channel of ", pixels.sizes());
  TORCH_CHECK(kind >= kNone && kind <= kCutMix, "unknown kind of mix ", kind);
  TORCH_CHECK(kind != kMixUp || (share >= 0 && share <= 1), "share must be from 0 to 1; got ", share);
  TORCH_CHECK(cut.size() == 4, "cut must be top, left, bottom and right; got ", cut);
  if (pixels.numel() == 0) return;
  const auto side = [](int64_t v) { return static_cast<int32_t>(std::clamp<int64_t>(v, INT32_MIN, INT32_MAX)); };
  const Cut how{static_cast<int32_t>(kind), side(cut[0]), side(cut[1]), side(cut[2]), side(cut[3])};
  switch (out.scalar_type()) {
    case at::kHalf: mix<at::Half>("mix_half", pixels, flips, table, erased, fill, how, share, out); break;
    case at::kBFloat16: mix<at::BFloat16>("mix_bfloat16", pixels, flips, table, erased, fill, how, share, out); break;
    case at::kDouble: mix<double>("mix_double", pixels, flips, table, erased, fill, how, share, out); break;
    default: mix<float>("mix_float", pixels, flips, table, erased, fill, how, share, out);
  }
  out.unsafeGetTensorImpl()->bump_version();  //edge:mix-counts TestBatch_LateBackward
}

void mix_labels(const at::Tensor& labels, double share, const at::Tensor& out) {
  images::check_device(out, {&labels});
  TORCH_CHECK(labels.scalar_type() == at::kLong && labels.dim() == 1 && labels.is_contiguous(), "labels must be contiguous Long [N]; got ",
              labels.scalar_type(), " ", labels.sizes());
  TORCH_CHECK(out.scalar_type() == at::kFloat && out.dim() == 2 && out.size(0) == labels.size(0) && out.is_contiguous() &&
                  out.numel() <= INT32_MAX && !out.requires_grad(),
              "out must be contiguous Float [", labels.size(0), ", classes] without a gradient; got ", out.scalar_type(), " ", out.sizes());
  TORCH_CHECK(share >= 0 && share <= 1, "share must be from 0 to 1; got ", share);
  if (out.numel() == 0) return;
  const auto* data = static_cast<const int64_t*>(labels.const_data_ptr());
  auto* soft = static_cast<float*>(out.mutable_data_ptr());
  auto own = static_cast<float>(share), rest = static_cast<float>(1 - share);
  auto images = static_cast<int32_t>(out.size(0)), classes = static_cast<int32_t>(out.size(1));
  if (out.is_cuda()) {
    void* arguments[] = {&data, &own, &rest, &soft, &images, &classes};
    cuda().launch(kProgram, "mix_labels", ct::images::stream_of(out), static_cast<unsigned>(images), ct::images::kThreads, arguments);
  } else {
    mix_labels_on_cpu(data, own, rest, soft, images, classes);
  }
  out.unsafeGetTensorImpl()->bump_version();
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  images::define(library, "mix_images(Tensor pixels, Tensor? flips, Tensor table, Tensor? erased, float[] fill, int kind, float share, int[] cut, *, "
              "Tensor(a!) out) -> ()", "mix_images", TORCH_FN(mix_images));
  images::define(library, "mix_labels(Tensor labels, float share, *, Tensor(a!) out) -> ()", "mix_labels", TORCH_FN(mix_labels));
}

}  // namespace
}  // namespace ct
