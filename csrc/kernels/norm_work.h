// Work runs the kernels of the fused batch norm for one call. norm.cc and norm_pool.cc use it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/collectives.h"
#include "core/device.h"
#include "kernels/both_devices.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/norm_backward_cuda.h"
#include "kernels/norm_cuda.h"
#include "kernels/norm_forward_cuda.h"
#include "kernels/norm_pool_cuda.h"
#include "kernels/variants.h"

namespace ct::norms {

using images::stream_of;

CT_ON_BOTH_DEVICES(kText,

enum Activation { kNone, kRelu, kRelu6, kSilu, kHardswish, kGelu };

// The kernels for norms are compiled in parts, because a program seldom needs all of them. The
// forward and the backward have a part with two kernels each, and a part with one: see Note [One
// kernel]. The last part has the kernels of batch_norm_relu_max_pool.
enum Kernels { kForwardTwo, kForwardOne, kBackwardTwo, kBackwardOne, kPool };

constexpr int kStreams = 256;
constexpr int kTiles = 64;

// The arguments of a kernel for one norm. A pointer may be NULL where a comment says so.
struct Norm {
  const float* weight;      // [channels]; or NULL for 1
  const float* bias;        // [channels]; or NULL for 0
  float* running_mean;      // [channels]; or NULL
  float* running_var;       // [channels]; or NULL
  float* saved;             // [4, channels]: mean, 1 / deviation, scale, shift; over ranks a fifth row: number of values
  float* factors;           // [3, channels]: the input's gradient is a * dz + b * x + c
  float* weight_gradient;   // [channels]
  float* bias_gradient;     // [channels]
  float eps, momentum;
  int channels;
  int training;             // 1: the statistics are those of the batch
};

// A max pooling with windows of 3 x 3, stride 2 and padding 1, of images of height x width.
struct Pooling { int images, height, width, out_height, out_width; };

)  // CT_ON_BOTH_DEVICES

// Whether the kernels of this file do the work, and in which form.
enum Choose { kFaster, kOne, kTwo, kNoKernels };

inline constexpr std::array<const char*, 4> kChooses{"faster", "one", "two", "none"};
inline constexpr std::array<const char*, 6> kActivations{"none", "relu", "relu6", "silu", "hardswish", "gelu"};

inline Choose choose_of(c10::string_view name) {
  const auto found = std::find(kChooses.begin(), kChooses.end(), std::string(name));
  TORCH_CHECK(found != kChooses.end(), "kernels is \"", name, "\", want faster, one, two or none");
  return static_cast<Choose>(found - kChooses.begin());
}

inline Activation activation_of(c10::string_view name) {
  const auto found = std::find(kActivations.begin(), kActivations.end(), std::string(name));
  TORCH_CHECK(found != kActivations.end(), "the activation is \"", name, "\", want none, relu, relu6, silu, hardswish or gelu");
  return static_cast<Activation>(found - kActivations.begin());
}

// A thread of some kernels keeps to its eight channels, so a block has a thread for each eight.
// With more threads the kernels would have too few registers.
inline constexpr int kMostChannels = 8 * 512;

// Returns whether the forward stores a mask: one bit for each element, which is 1 if the
// activation passes the gradient of that element on.
inline bool is_masked(bool addend, Activation activation) { return addend && (activation == kRelu || activation == kRelu6); }
// Returns whether the backward needs the addend, to compute the input of the activation again.
inline bool is_again(bool addend, Activation activation) { return addend && (activation == kSilu || activation == kHardswish || activation == kGelu); }

// Returns the program for a dtype, a number of lanes, an activation, a kind of addend and a part of
// the kernels.
inline const CudaProgram& program_of(at::ScalarType dtype, int lanes, Activation activation, int addend, Kernels kernels) {
  return variant_of(std::tuple(dtype, lanes, activation, addend, kernels), [=] {
    const auto macro = [](const char* name, const std::string& value) { return std::string("\n#define ") + name + " " + value; };
    return Variant{"norm of " + float_name(dtype) + ", " + kActivations[activation] + ", addend " + std::to_string(addend) + ", part " +
                       std::to_string(kernels),
                   kText + macro("DTYPE", float_name(dtype)) + macro("LANES", std::to_string(lanes)) + macro("ACTIVATION", std::to_string(activation)) +
                       macro("ADDEND", std::to_string(addend)) + macro("KERNELS", std::to_string(kernels)) + "\n",
                   std::string(kNormText) + kNormForwardText + kNormBackwardText + kNormPoolText, /*fused_multiply_add=*/true};
  });
}

// Returns a number for the stream: its kernels use the tickets with this number. Two kernels of
// one stream never run at the same time, so they can share tickets. Graphs that were captured on
// the stream can share them too, because graphs of one pool run one after another, and nobody else
// gets the pool's streams before the last graph has ended. Returns -1 if kStreams other
// streams of the device have numbers already.
inline int slot_of(c10::Stream stream) {
  static auto* const mutex = new std::mutex;
  static auto* const slots = new std::map<std::pair<c10::DeviceIndex, c10::StreamId>, int>;
  const std::lock_guard lock(*mutex);
  const std::pair key(stream.device_index(), stream.id());
  const auto found = slots->find(key);
  if (found != slots->end()) return found->second;
  const auto of_device = [&](const auto& s) { return s.first.first == stream.device_index(); };
  const int slot = static_cast<int>(std::count_if(slots->begin(), slots->end(), of_device));
  if (slot >= kStreams) return -1;
  slots->emplace(key, slot);
  return slot;
}

// How the kernels divide one tensor of images: see norm_cuda.h.
struct Shape {
  int rows, columns, channels, lanes, tiles, groups;
  explicit Shape(const at::Tensor& images)
      : rows(static_cast<int>(images.numel() / images.size(1))), columns(static_cast<int>(images.size(1) / 8)),
        channels(static_cast<int>(images.size(1))), lanes(columns >= 8 ? 8 : columns > 2 ? 4 : columns), tiles((columns + lanes - 1) / lanes),
        groups(rows * columns) {}
  // Returns how many blocks work on one tile, in a kernel that adds `count` rows. `each` is the
  // number of blocks on each multiprocessor, for all tiles together.
  int blocks(int count, int multiprocessors, int each) const {
    const int chunks = (count + 512 / lanes - 1) / (512 / lanes);
    return std::clamp(multiprocessors * each / tiles, 1, chunks);
  }
  // Returns how many threads a block has, in a kernel that does not add.
  int threads() const { return columns <= 256 ? 256 / columns * columns : columns; }
  // Returns how many successive rows a block has, in a kernel of Note [One kernel].
  int each(int multiprocessors) const {
    const int most = multiprocessors / tiles;
    return (rows + most - 1) / most;
  }
  int grid(int multiprocessors, int ahead) const {
    const int64_t block = int64_t{threads()} * ahead;
    return static_cast<int>(std::min<int64_t>((groups + block - 1) / block, int64_t{8} * multiprocessors));
  }
};

inline bool fits(Optional t, const at::Tensor& input) {
  return !is_defined(t) ||
         (t->scalar_type() == at::kFloat && t->is_contiguous() && t->numel() == input.size(1) && t->device() == input.device() && is_aligned(*t));
}

inline bool is_images(const at::Tensor& t) {
  return t.is_cuda() && t.dim() == 4 && t.is_contiguous(at::MemoryFormat::ChannelsLast) && is_aligned(t);
}

// Which way a norm takes. The numbers are those of streamtorch::batch_norm_way.
enum Way { kOneKernel, kTwoKernels, kAsked, kNoCuda, kLayout, kDtype, kChannels, kSize, kAddend, kParameters, kChip, kStreamsUsed };

// Returns why LibTorch's operators have to do the work for these images, or nothing if the kernels
// of this file can do it. A norm over ranks takes any number of rows, because ranks whose batches
// differ in size must go the same way.
inline std::optional<Way> why_not(const at::Tensor& input, Optional addend, bool over_ranks = false) {
  if (!input.is_cuda()) return kNoCuda;
  if (!is_images(input)) return kLayout;
  const at::ScalarType dtype = input.scalar_type();
  if (!is_floating(dtype)) return kDtype;
  const int64_t channels = input.size(1), rows = channels == 0 ? 0 : input.numel() / channels;
  if (channels % 8 != 0 || channels > kMostChannels) return kChannels;
  if ((rows < 2 && !over_ranks) || input.numel() / 8 > INT32_MAX / 2) return kSize;
  if (is_defined(addend) && (!is_images(*addend) || addend->scalar_type() != dtype || addend->sizes() != input.sizes() || addend->device() != input.device())) {
    return kAddend;
  }
  if (cuda().chip(input.device().index()).capability < 80) return kChip;
  if (slot_of(stream_of(input)) < 0) return kStreamsUsed;
  return std::nullopt;
}

inline const float* read(Optional t) { return is_defined(t) ? t->const_data_ptr<float>() : nullptr; }
inline float* write(Optional t) { return is_defined(t) ? t->mutable_data_ptr<float>() : nullptr; }

// The parameters of one norm, as the program gives them.
struct Parameters {
  Optional weight, bias, running_mean, running_var;
  bool training;
  double momentum, eps;

  bool fit(const at::Tensor& images) const {
    return fits(weight, images) && fits(bias, images) && fits(running_mean, images) && fits(running_var, images) &&
           is_defined(running_mean) == is_defined(running_var) && (training || is_defined(running_mean));
  }
  at::Tensor apply(const at::Tensor& images) const {
    return at::batch_norm(images, weight, bias, running_mean, running_var, training, momentum, eps, /*cudnn_enabled=*/true);
  }
};

// Where and how the kernels of one call run.
class Work {
 public:
  Work(const at::Tensor& images, Activation activation, int addend)
      : shape(images), stream_(stream_of(images)), chip_(cuda().chip(images.device().index())), slot_(slot_of(stream_)),
        dtype_(images.scalar_type()), floats(images.options().dtype(at::kFloat).memory_format(std::nullopt)), activation_(activation),
        addend_(addend), bytes_(images.nbytes()) {
    TORCH_CHECK(slot_ >= 0, "more than ", kStreams, " streams run fused norms");
  }

  // Returns whether one kernel does the work of two: Note [One kernel]. On an H200 this was 5 % of a
  // training step of ResNet-50 at batch 32. For tensors of more than 30 MB two kernels are faster.
  bool whole(Choose choose) const {
    return (choose == kOne || (choose == kFaster && bytes_ <= size_t{30} << 20)) && chip_.cooperative && shape.tiles <= chip_.multiprocessors;
  }

  // Returns whether such a kernel keeps all of its rows of `tensors` tensors in shared memory.
  bool keeps_all(int tensors) const { return kept(tensors) == shape.each(chip_.multiprocessors); }

  // Fills in `norm`. Returns the tensor of its field `saved`, [rows, channels].
  at::Tensor describe(const Parameters& p, Norm& norm, int64_t rows = 4) const {
    at::Tensor saved = at::empty({rows, shape.channels}, floats);
    norm = {read(p.weight), read(p.bias), write(p.running_mean), write(p.running_var), saved.mutable_data_ptr<float>(), nullptr, nullptr, nullptr,
            static_cast<float>(p.eps), static_cast<float>(p.momentum), shape.channels, p.training};
    return saved;
  }

  // Does the same, and enqueues the kernel that computes `saved`.
  at::Tensor prepare(const at::Tensor& images, const Parameters& p, Norm& norm) const {
    at::Tensor saved = describe(p, norm);
    const CudaProgram& program = program_of(dtype_, shape.lanes, kNone, 0, kForwardTwo);
    if (p.training) {
      reduce(program, "norm_statistics", shape.rows, /*each=*/2, /*sums=*/2, images.const_data_ptr(), norm);
    } else {
      channels(program, "norm_fold", norm);
    }
    return saved;
  }

  // Does the work of `prepare` for the batches of all ranks, with one collective for all norms: Note
  // [Norms over ranks]. Returns a tensor [5, channels] for each norm.
  struct Ranked {
    const at::Tensor& images;
    const Parameters& parameters;
    Norm& norm;
  };
  std::vector<at::Tensor> prepare_over(const NumberedGroup& ranks, const std::vector<Ranked>& norms) const {
    const CudaProgram& program = program_of(dtype_, shape.lanes, kNone, 0, kForwardTwo);
    const int64_t channels = shape.channels, width = 2 * channels * static_cast<int64_t>(norms.size()) + 1;
    // A norm writes four rows, of which the next norm and the number of values overwrite the last two.
    at::Tensor mine = at::zeros({width - 1 + 2 * channels}, floats);
    for (size_t k = 0; k < norms.size() && shape.rows > 0; ++k) {
      Norm local{};
      local.saved = mine.mutable_data_ptr<float>() + 2 * channels * static_cast<int64_t>(k);
      local.eps = static_cast<float>(norms[k].parameters.eps);
      local.channels = shape.channels;
      local.training = 1;
      reduce(program, "norm_statistics", shape.rows, /*each=*/2, /*sums=*/2, norms[k].images.const_data_ptr(), local);
    }
    mine.select(0, width - 1).fill_(shape.rows);
    const at::Tensor all = at::empty({ranks.world * width}, floats);
    complete(ranks.collectives->all_gather(all.view(at::kByte), mine.narrow(0, 0, width).view(at::kByte), stream_));
    std::vector<at::Tensor> saved;
    for (size_t k = 0; k < norms.size(); ++k) {
      const Parameters& p = norms[k].parameters;
      saved.push_back(describe(p, norms[k].norm, /*rows=*/5));
      this->channels(program, "norm_combine", norms[k].norm, all.const_data_ptr<float>(), static_cast<int>(2 * channels * static_cast<int64_t>(k)),
                     static_cast<int>(width), static_cast<int>(ranks.world));
    }
    return saved;
  }

  // Writes the factors of the norms by the sums of all ranks, with one collective.
  void add_over(const NumberedGroup& ranks, const Norm& norm, const Norm* norm2, const at::Tensor& bias, const at::Tensor& weight, const at::Tensor& weight2) const {
    std::vector<at::Tensor> rows{bias, weight};
    if (norm2 != nullptr) rows.push_back(weight2);
    const at::Tensor sums = at::cat(rows);
    complete(ranks.collectives->all_reduce({sums}, CT_SUM, stream_));
    const float* of_bias = sums.const_data_ptr<float>();
    channels(program(kBackwardTwo), "norm_factors", norm, of_bias, of_bias + shape.channels);
    if (norm2 != nullptr) channels(program(kBackwardTwo), "norm_factors", *norm2, of_bias, of_bias + 2 * shape.channels);
  }

  // Returns the arguments of the backward of one norm. Its kernels read `saved`, and write the
  // others.
  Norm differentiate(const at::Tensor& saved, const at::Tensor& factors, at::Tensor& weight_gradient, at::Tensor& bias_gradient, bool training) const {
    return {nullptr, nullptr, nullptr, nullptr, const_cast<float*>(saved.const_data_ptr<float>()), factors.mutable_data_ptr<float>(),
            weight_gradient.mutable_data_ptr<float>(), bias_gradient.mutable_data_ptr<float>(), 0, 0, shape.channels, training};
  }

  // Launches a kernel that adds over all rows. The last arguments of the kernel are rows, columns,
  // blocks, partial and slot. `each` is the number of blocks on each multiprocessor. `sums` is how
  // many sums the kernel makes for each channel.
  template <typename... Arguments>
  void reduce(const CudaProgram& program, const char* kernel, int rows, int each, int sums, Arguments... arguments) const {
    int columns = shape.columns, blocks = shape.blocks(rows, chip_.multiprocessors, each), slot = slot_;
    const at::Tensor partial = at::empty({int64_t{shape.tiles} * blocks * sums * shape.lanes * 8}, floats);
    float* to = partial.mutable_data_ptr<float>();
    void* all[] = {&arguments..., &rows, &columns, &blocks, &to, &slot};
    cuda().launch(program, kernel, stream_, shape.tiles * blocks, 512, all);
  }
  template <typename... Arguments>
  void reduce(Kernels part, const char* kernel, int rows, int each, int sums, Arguments... arguments) const {
    reduce(program(part), kernel, rows, each, sums, arguments...);
  }

  // Launches a kernel of Note [One kernel] that makes `sums` sums for each channel and keeps its
  // rows of `tensors` tensors. The last arguments of the kernel are rows, columns, blocks, each,
  // kept, partial and slot.
  template <typename... Arguments>
  void together(Kernels part, const char* kernel, int sums, int tensors, Arguments... arguments) const {
    int rows = shape.rows, columns = shape.columns, each = shape.each(chip_.multiprocessors), blocks = (rows + each - 1) / each, slot = slot_;
    int kept = this->kept(tensors);
    const at::Tensor partial = at::empty({int64_t{shape.tiles} * blocks * sums * shape.lanes * 8}, floats);
    float* to = partial.mutable_data_ptr<float>();
    void* all[] = {&arguments..., &rows, &columns, &blocks, &each, &kept, &to, &slot};
    cuda().launch(program(part), kernel, stream_, shape.tiles * blocks, 512, all, kept * bytes_of_row(tensors), CudaStart::kTogether);
  }

  // Launches a kernel with a thread for each channel.
  template <typename... Arguments>
  void channels(const CudaProgram& program, const char* kernel, Arguments... arguments) const {
    void* all[] = {&arguments...};
    cuda().launch(program, kernel, stream_, (shape.channels + 127) / 128, 128, all);
  }

  // Launches a kernel with a thread for each group of eight channels of so many pixels. Its
  // arguments end in columns.
  template <typename... Arguments>
  void pixels(const char* kernel, int count, Arguments... arguments) const {
    int columns = shape.columns;
    void* all[] = {&arguments..., &columns};
    cuda().launch(program(kPool), kernel, stream_, static_cast<unsigned>((int64_t{count} * columns + 255) / 256), 256, all);
  }

  // Launches a kernel that goes over all elements. The last arguments of the kernel are groups and
  // columns. A group is eight adjacent channels of one row. `ahead` is how many groups a thread
  // loads before it uses the first of them.
  template <typename... Arguments>
  void each(Kernels part, const char* kernel, int ahead, Arguments... arguments) const {
    int groups = shape.groups, columns = shape.columns;
    void* all[] = {&arguments..., &groups, &columns};
    cuda().launch(program(part), kernel, stream_, shape.grid(chip_.multiprocessors, ahead), shape.threads(), all);
  }

  const Shape shape;

 private:
  int bytes_of_row(int tensors) const { return static_cast<int>(shape.lanes * 8 * at::elementSize(dtype_)) * tensors; }
  // Returns how many rows of a block fit into its shared memory.
  int kept(int tensors) const {
    constexpr int kSums = 16 << 10;  // bytes of shared memory for the sums
    return std::min(shape.each(chip_.multiprocessors), (chip_.shared_memory - kSums) / bytes_of_row(tensors));
  }

  const c10::Stream stream_;
  const CudaChip chip_;
  const int slot_;
  const at::ScalarType dtype_;

 public:
  const at::TensorOptions floats;

 private:
  const CudaProgram& program(Kernels part) const { return program_of(dtype_, shape.lanes, activation_, addend_, part); }

  const Activation activation_;
  const int addend_;
  const size_t bytes_;
};

// Returns a gradient as the kernels read it: in the dtype of the images, in channels last, aligned.
inline at::Tensor images_like(const at::Tensor& gradient, const at::Tensor& images) {
  at::Tensor g = gradient.to(images.scalar_type()).contiguous(at::MemoryFormat::ChannelsLast);
  return is_aligned(g) ? g : g.clone(at::MemoryFormat::ChannelsLast);
}

// The edges of a node in the autograd graph. They are those of the tensors that forward was given,
// in their order.
struct Edges {
  torch::autograd::AutogradContext* context;
  size_t next = 0;

  // Returns the gradient of the next tensor, if that was given and needs it.
  at::Tensor take(bool is_given, at::Tensor& gradient) {
    return is_given && context->needs_input_grad(next++) ? std::move(gradient) : at::Tensor();
  }
};

}  // namespace ct::norms
