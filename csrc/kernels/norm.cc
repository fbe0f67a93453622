// Operators that do batch norm and the work after it in one:
//
//   batch_norm_act            activation(batch_norm(input) + addend); the addend may be absent
//   batch_norms_act           activation(batch_norm(input) + batch_norm(addend))
//   batch_norm_relu_max_pool  max_pool(relu(batch_norm(input))), with windows of 3 x 3, stride 2
//                             and padding 1
//
// In batch_norms_act each of the two norms has its own weight, bias and statistics.
//
// On CUDA the norms, sums and activations of a convolutional net take about half of the time of a
// training step, because they read and write all images. LibTorch runs at least one kernel for
// each of the three. The kernels of this file do the three together. For large tensors a kernel
// makes the sums and a second one reads the images again, in the forward and in the backward. For
// smaller tensors one kernel does both. The kernels need images in channels last, in float32,
// float16 or bfloat16, with a multiple of eight channels. For all other inputs, and on the CPU,
// LibTorch's operators do the work, with their own gradients.
//
// Note [One rounding]: the kernels compute in float32 and round the result once. LibTorch rounds
// the result of each operator. So the results differ by the rounding of the dtype.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu6.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

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

#include "core/autograd.h"
#include "core/collectives.h"
#include "core/device.h"
#include "kernels/both_devices.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/norm_cuda.h"
#include "kernels/variants.h"

namespace ct {
namespace {

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

constexpr std::array<const char*, 4> kChooses{"faster", "one", "two", "none"};
constexpr std::array<const char*, 6> kActivations{"none", "relu", "relu6", "silu", "hardswish", "gelu"};

Choose choose_of(c10::string_view name) {
  const auto found = std::find(kChooses.begin(), kChooses.end(), std::string(name));
  TORCH_CHECK(found != kChooses.end(), "kernels is \"", name, "\", want faster, one, two or none");
  return static_cast<Choose>(found - kChooses.begin());
}

Activation activation_of(c10::string_view name) {
  const auto found = std::find(kActivations.begin(), kActivations.end(), std::string(name));
  TORCH_CHECK(found != kActivations.end(), "the activation is \"", name, "\", want none, relu, relu6, silu, hardswish or gelu");
  return static_cast<Activation>(found - kActivations.begin());
}

// A thread of some kernels keeps to its eight channels, so a block has a thread for each eight.
// With more threads the kernels would have too few registers.
constexpr int kMostChannels = 8 * 512;

// Returns whether the forward stores a mask: one bit for each element, which is 1 if the
// activation passes the gradient of that element on.
bool is_masked(bool addend, Activation activation) { return addend && (activation == kRelu || activation == kRelu6); }
// Returns whether the backward needs the addend, to compute the input of the activation again.
bool is_again(bool addend, Activation activation) { return addend && (activation == kSilu || activation == kHardswish || activation == kGelu); }

// Returns the program for a dtype, a number of lanes, an activation, a kind of addend and a part of
// the kernels.
const CudaProgram& program_of(at::ScalarType dtype, int lanes, Activation activation, int addend, Kernels kernels) {
  return variant_of(std::tuple(dtype, lanes, activation, addend, kernels), [=] {
    const auto macro = [](const char* name, const std::string& value) { return std::string("\n#define ") + name + " " + value; };
    return Variant{"norm of " + float_name(dtype) + ", " + kActivations[activation] + ", addend " + std::to_string(addend) + ", part " +
                       std::to_string(kernels),
                   kText + macro("DTYPE", float_name(dtype)) + macro("LANES", std::to_string(lanes)) + macro("ACTIVATION", std::to_string(activation)) +
                       macro("ADDEND", std::to_string(addend)) + macro("KERNELS", std::to_string(kernels)) + "\n",
                   kNormText, /*fused_multiply_add=*/true};
  });
}

// Returns a number for the stream: its kernels use the tickets with this number. Two kernels of
// one stream never run at the same time, so they can share tickets. Graphs that were captured on
// the stream can share them too, because graphs of one pool run one after another, and nobody else
// gets the pool's streams before the last graph has ended. Returns -1 if kStreams other
// streams of the device have numbers already.
int slot_of(c10::Stream stream) {
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

bool fits(Optional t, const at::Tensor& input) {
  return !is_defined(t) ||
         (t->scalar_type() == at::kFloat && t->is_contiguous() && t->numel() == input.size(1) && t->device() == input.device() && is_aligned(*t));
}

bool is_images(const at::Tensor& t) {
  return t.is_cuda() && t.dim() == 4 && t.is_contiguous(at::MemoryFormat::ChannelsLast) && is_aligned(t);
}

// Which way a norm takes. The numbers are those of streamtorch::batch_norm_way.
enum Way { kOneKernel, kTwoKernels, kAsked, kNoCuda, kLayout, kDtype, kChannels, kSize, kAddend, kParameters, kChip, kStreamsUsed };

// Returns why LibTorch's operators have to do the work for these images, or nothing if the kernels
// of this file can do it. A norm over ranks takes any number of rows, because ranks whose batches
// differ in size must go the same way.
std::optional<Way> why_not(const at::Tensor& input, Optional addend, bool over_ranks = false) {
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

const float* read(Optional t) { return is_defined(t) ? t->const_data_ptr<float>() : nullptr; }
float* write(Optional t) { return is_defined(t) ? t->mutable_data_ptr<float>() : nullptr; }

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
    cuda().launch(program(part), kernel, stream_, shape.tiles * blocks, 512, all, kept * bytes_of_row(tensors), /*together=*/true);
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

// Returns four tensors: the result, the field `saved` of the first norm and that of the second
// norm, and the mask. If there is no second norm, its tensor is empty. If `records` is false, there
// is no backward. If there is none, or if it needs no mask, the mask is empty.
using Forward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, Optional, Optional, Optional, Optional, Optional,
                                                                           Optional, Optional, Optional, Optional, bool, bool, double, double, double,
                                                                           double, c10::string_view, int64_t, bool, int64_t);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& input, Optional addend, Optional weight, Optional bias,
                                                                   Optional running_mean, Optional running_var, Optional weight2, Optional bias2,
                                                                   Optional running_mean2, Optional running_var2, bool two, bool training,
                                                                   double momentum, double eps, double momentum2, double eps2,
                                                                   c10::string_view name, int64_t choose, bool records, int64_t group) {
  const Activation activation = activation_of(name);
  const bool added = is_defined(addend);
  const Work work(input, activation, two ? 2 : added);
  Norm norm{}, norm2{};
  const Parameters first{weight, bias, running_mean, running_var, training, momentum, eps},
      second{weight2, bias2, running_mean2, running_var2, training, momentum2, eps2};
  const bool whole = training && group == 0 && work.whole(static_cast<Choose>(choose));
  at::Tensor saved, saved2 = at::empty({0}, work.floats);
  if (group != 0) {
    std::vector<Work::Ranked> norms{{input, first, norm}};
    if (two) norms.push_back({*addend, second, norm2});
    const std::vector<at::Tensor> all = work.prepare_over(group_of_number(group), norms);
    saved = all[0];
    if (two) saved2 = all[1];
  } else {
    saved = whole ? work.describe(first, norm) : work.prepare(input, first, norm);
    if (two) saved2 = work.prepare(*addend, second, norm2);
  }
  at::Tensor output = at::empty_like(input);
  const bool masked = records && is_masked(added, activation);
  at::Tensor mask = at::empty({masked ? work.shape.groups : 0}, work.floats.dtype(at::kByte));
  void* const bits = masked ? mask.mutable_data_ptr() : nullptr;
  const void *x = input.const_data_ptr(), *other = added ? addend->const_data_ptr() : nullptr;
  if (whole) {
    work.together(kForwardOne, "norm_whole", /*sums=*/2, /*tensors=*/1, x, other, output.mutable_data_ptr(), bits, norm, norm2);
  } else if (work.shape.rows > 0) {
    work.each(kForwardTwo, "norm_apply", added ? 2 : 4, x, other, output.mutable_data_ptr(), bits, norm, norm2);
  }
  return {std::move(output), std::move(saved), std::move(saved2), std::move(mask)};
}

// Returns the gradients of the input, the addend, weight, bias, weight2 and bias2. The gradient of
// an absent tensor is empty. gradient2 is a second gradient of the result, or absent.
using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, Optional, const at::Tensor&,
                                                                                                    Optional, const at::Tensor&, const at::Tensor&,
                                                                                                    const at::Tensor&, bool, bool, bool,
                                                                                                    c10::string_view, int64_t, int64_t);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& gradient, Optional gradient2,
                                                                                            const at::Tensor& input, Optional addend,
                                                                                            const at::Tensor& saved, const at::Tensor& saved2,
                                                                                            const at::Tensor& mask, bool added, bool two,
                                                                                            bool training, c10::string_view name, int64_t choose,
                                                                                            int64_t group) {
  const Activation activation = activation_of(name);
  const Work work(input, activation, two ? 2 : added);
  const auto vector = [&](bool there) { return at::empty({there ? work.shape.channels : 0}, work.floats); };
  at::Tensor weight = vector(true), bias = vector(true), weight2 = vector(two), bias2 = vector(two);
  const at::Tensor factors = at::empty({6, work.shape.channels}, work.floats);
  const Norm norm = work.differentiate(saved, factors, weight, bias, training),
             norm2 = two ? work.differentiate(saved2, factors[3], weight2, bias2, training) : norm;
  const void *x = input.const_data_ptr(), *other = is_defined(addend) ? addend->const_data_ptr() : nullptr,
             *g = gradient.const_data_ptr(), *g2 = is_defined(gradient2) ? gradient2->const_data_ptr() : nullptr;
  at::Tensor of_input = at::empty_like(input), of_addend = two ? at::empty_like(input) : at::Tensor();
  void* const dx2 = two ? of_addend.mutable_data_ptr() : nullptr;
  const int sums = two ? 3 : 2;
  // The gradient of the activation's input. If there is an addend and no second norm, it is the
  // addend's gradient too.
  at::Tensor before;
  // One kernel would wait for collectives beside it. A forward does not ask, because the second
  // forward of Recompute must give the bits of the first.
  const bool beside = choose == kFaster && BesideCollectives::on(input.device().index());
  if (group == 0 && !beside && work.whole(static_cast<Choose>(choose))) {
    // The kernel writes it only for a reader, or if not all of it is kept.
    const bool writes = (added && !two) || !work.keeps_all(2);
    before = writes ? at::empty_like(input) : at::Tensor();
    work.together(kBackwardOne, g2 != nullptr ? "norm_gradient_whole_two" : "norm_gradient_whole", sums, /*tensors=*/2, g, g2, x, other, mask.const_data_ptr(),
                  writes ? before.mutable_data_ptr() : nullptr, of_input.mutable_data_ptr(), dx2, norm, norm2);
  } else {
    // It is `gradient` itself if there is no activation and only one gradient of the result. Without
    // an addend norm_gradient computes the activation's part, and gets `gradient` too.
    const bool writes = added && (activation != kNone || g2 != nullptr);
    before = writes ? at::empty_like(input) : gradient;
    const bool any = work.shape.rows > 0;
    if (any) {
      work.reduce(kBackwardTwo, g2 != nullptr ? "norm_reduce_two" : "norm_reduce", work.shape.rows, /*each=*/1, sums, g, g2, x, other, mask.const_data_ptr(),
                  writes ? before.mutable_data_ptr() : nullptr, norm, norm2);
    } else {
      for (at::Tensor* t : {&weight, &bias, &weight2, &bias2}) t->zero_();
    }
    if (group != 0) work.add_over(group_of_number(group), norm, two ? &norm2 : nullptr, bias, weight, weight2);
    if (any) work.each(kBackwardTwo, "norm_gradient", 2, std::as_const(before).const_data_ptr(), x, two ? other : nullptr, of_input.mutable_data_ptr(), dx2, norm, norm2);
  }
  if (!two) of_addend = added ? before : at::empty({0}, input.options());
  return {std::move(of_input), std::move(of_addend), std::move(weight), std::move(bias), std::move(weight2), std::move(bias2)};
}

// Returns a gradient as the kernels read it: in the dtype of the images, in channels last, aligned.
at::Tensor images_like(const at::Tensor& gradient, const at::Tensor& images) {
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

// Note [Two gradients of one result]
//
// The result of a residual block has two readers: the next block's first convolution, and the sum
// at the next block's end. Autograd would add the gradients of the two readers in a kernel of its
// own. So the node of batch_norm_act has two outputs over the same memory. The program gets the
// first output. If the program gives the first output as an addend to an operator of this file,
// the operator reads the second output instead: see `skip_of`. The kernels of the
// backward then read both gradients, and no other kernel adds them. ct_gradients adds the
// gradients of both outputs.

// The node of both operators in the autograd graph.
struct Node : torch::autograd::Function<Node> {
  static constexpr size_t kInputs = 20;  // arguments of forward, besides the context

  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& input, Optional addend, Optional weight,
                                                Optional bias, Optional running_mean, Optional running_var, Optional weight2, Optional bias2,
                                                Optional running_mean2, Optional running_var2, bool two, bool training, double momentum, double eps,
                                                double momentum2, double eps2, const std::string& activation, int64_t choose, bool records, int64_t group) {
    static const auto call = operator_of<Forward>("streamtorch::batch_norm_act_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [output, saved, saved2, mask] = call.call(input, addend, weight, bias, running_mean, running_var, weight2, bias2, running_mean2,
                                                   running_var2, two, training, momentum, eps, momentum2, eps2, activation, choose, records, group);
    const bool added = is_defined(addend);
    const bool keeps = two || is_again(added, activation_of(activation));
    context->save_for_backward({input, keeps ? *addend : at::Tensor(), saved, saved2, mask});
    context->saved_data["added"] = added;
    context->saved_data["two"] = two;
    context->saved_data["training"] = training;
    context->saved_data["activation"] = activation;
    context->saved_data["choose"] = choose;
    context->saved_data["group"] = group;
    given(context, "statistics", running_mean);
    given(context, "weight", weight);
    given(context, "bias", bias);
    given(context, "weight2", weight2);
    given(context, "bias2", bias2);
    context->set_materialize_grads(false);  // an output that nobody read has no gradient, instead of one of zeros
    return {output, output.variable_data()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "streamtorch::batch_norm_act has no second derivative: use BatchNorm2d and the activation, each by itself");
    static const auto call = operator_of<Backward>("streamtorch::batch_norm_act_backward");
    const torch::autograd::variable_list kept = context->get_saved_variables();
    const auto flag = [&](const char* name) { return context->saved_data[name].toBool(); };
    const bool added = flag("added"), two = flag("two");
    std::vector<at::Tensor> found;
    for (const at::Tensor& g : gradients) {
      if (g.defined()) found.push_back(images_like(g, kept[0]));
    }
    if (found.empty()) return torch::autograd::variable_list(kInputs);
    if (found.size() == 2 && !added) found.assign(1, at::add(found[0], found[1]));
    const auto optional = [](const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
    auto [of_input, of_addend, weight, bias, weight2, bias2] =
        call.call(found.at(0), found.size() == 2 ? std::optional(found[1]) : std::nullopt, kept[0], optional(kept[1]), kept[2], kept[3], kept[4], added,
                  two, flag("training"), context->saved_data["activation"].toStringRef(), context->saved_data["choose"].toInt(),
                  context->saved_data["group"].toInt());
    Edges edges{context};
    torch::autograd::variable_list result(kInputs);
    result[0] = edges.take(true, of_input);
    result[1] = edges.take(added, of_addend);
    result[2] = edges.take(flag("weight"), weight);
    result[3] = edges.take(flag("bias"), bias);
    edges.next += 2 * flag("statistics");
    result[6] = edges.take(flag("weight2"), weight2);
    result[7] = edges.take(flag("bias2"), bias2);
    return result;
  }

 private:
  static void given(torch::autograd::AutogradContext* context, const char* name, Optional t) { context->saved_data[name] = is_defined(t); }
};

// If `t` is the first output of a Node, returns the second output of that Node: see Note [Two
// gradients of one result]. Otherwise returns an undefined tensor.
at::Tensor second_output(const at::Tensor& t) {
  if (!t.defined() || !t.requires_grad() || t.is_leaf() || t.output_nr() != 0) return {};
  const auto& node = t.grad_fn();
  if (dynamic_cast<torch::autograd::CppNode<Node>*>(node.get()) == nullptr) return {};
  at::Tensor second = t.detach();
  torch::autograd::impl::set_gradient_edge(second, {node, 1});
  return second;
}

[[maybe_unused]] const bool registered = (autograd::gradient_has_another(second_output), true);

// Returns the tensor that an operator reads instead of the addend `t`. This is the second output
// if `t` is the first output of a Node. Otherwise it is `t` itself.
at::Tensor skip_of(const at::Tensor& t) {
  const at::Tensor second = c10::GradMode::is_enabled() ? second_output(t) : at::Tensor();
  return second.defined() ? second : t;
}

// Computes the activation of `t`. Some activations overwrite `t`. That is allowed, because `t` is
// a result of batch_norm or add, and the backward of these two does not need their result.
at::Tensor activate(at::Tensor t, Activation activation) {
  switch (activation) {
    case kRelu: return at::relu_(t);
    case kRelu6: return at::relu6_(t);
    case kSilu: return at::silu(t);
    case kHardswish: return at::hardswish(t);
    case kGelu: return at::gelu(t);
    default: return t;
  }
}

// group: the number of the group of ranks whose batches have one statistics in training, or 0.
// Without the kernels there is nothing over ranks, so the caller asks batch_norm_way before.
at::Tensor run(const at::Tensor& input, Optional addend, const Parameters& p, const Parameters* second, c10::string_view name, c10::string_view kernels,
               int64_t group) {
  const Activation activation = activation_of(name);
  const Choose choose = choose_of(kernels);
  const bool over = group != 0 && p.training;
  if (choose != kNoKernels && !why_not(input, addend, over) && p.fit(input) && (second == nullptr || second->fit(*addend))) {
    const std::optional<at::Tensor> none, other = is_defined(addend) && second == nullptr ? std::optional(skip_of(*addend)) : addend;
    const Parameters& q = second == nullptr ? Parameters{none, none, none, none, false, 0, 0} : *second;
    bool records = false;
    for (const std::optional<at::Tensor>& t : {std::optional(input), addend, p.weight, p.bias, p.running_mean, p.running_var, q.weight, q.bias, q.running_mean, q.running_var}) {
      records |= is_defined(t) && t->requires_grad();
    }
    return Node::apply(input, other, p.weight, p.bias, p.running_mean, p.running_var, q.weight, q.bias, q.running_mean, q.running_var,
                       second != nullptr, p.training, p.momentum, p.eps, q.momentum, q.eps, std::string(name), int64_t{choose},
                       records && c10::GradMode::is_enabled(), over ? group : 0)[0];
  }
  TORCH_CHECK(!over, "a norm over ranks of ", input.toString(), input.sizes(), ", for which there are no kernels");
  at::Tensor out = p.apply(input);
  if (is_defined(addend)) {
    const at::Tensor sum = second == nullptr ? *addend : second->apply(*addend);
    const bool in_place = out.scalar_type() == sum.scalar_type() && out.sizes() == sum.sizes();
    out = in_place ? out.add_(sum) : at::add(out, sum);
  }
  return activate(std::move(out), activation);
}

// Returns the way that batch_norm_act takes for the same arguments, as a number of Way.
int64_t batch_norm_way(const at::Tensor& input, Optional addend, Optional weight, Optional bias, Optional running_mean, Optional running_var,
                       bool training, c10::string_view kernels, bool over_ranks) {
  const Choose choose = choose_of(kernels);
  if (choose == kNoKernels) return kAsked;
  if (const auto why = why_not(input, addend, over_ranks)) return *why;
  if (!Parameters{weight, bias, running_mean, running_var, training, 0, 0}.fit(input)) return kParameters;
  return training && !over_ranks && Work(input, kNone, 0).whole(choose) ? kOneKernel : kTwoKernels;
}

at::Tensor batch_norm_act(const at::Tensor& input, Optional addend, Optional weight, Optional bias, Optional running_mean, Optional running_var,
                          bool training, double momentum, double eps, c10::string_view activation, c10::string_view kernels, int64_t group) {
  return run(input, addend, {weight, bias, running_mean, running_var, training, momentum, eps}, nullptr, activation, kernels, group);
}

at::Tensor batch_norms_act(const at::Tensor& input, const at::Tensor& addend, Optional weight, Optional bias, Optional running_mean,
                           Optional running_var, Optional weight2, Optional bias2, Optional running_mean2, Optional running_var2, bool training,
                           double momentum, double eps, double momentum2, double eps2, c10::string_view activation, c10::string_view kernels,
                           int64_t group) {
  const Parameters second{weight2, bias2, running_mean2, running_var2, training, momentum2, eps2};
  return run(input, addend, {weight, bias, running_mean, running_var, training, momentum, eps}, &second, activation, kernels, group);
}

Pooling pooling_of(const at::Tensor& images) {
  const auto size = [&](int64_t dimension) { return static_cast<int>(images.size(dimension)); };
  return {size(0), size(2), size(3), (size(2) + 1) / 2, (size(3) + 1) / 2};
}

// Returns the result, the numbers of the norm, and the places of the largest values.
using PoolForward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, Optional, Optional, Optional, Optional, bool, double, double);
std::tuple<at::Tensor, at::Tensor, at::Tensor> pool_forward(const at::Tensor& input, Optional weight, Optional bias, Optional running_mean,
                                                            Optional running_var, bool training, double momentum, double eps) {
  const Work work(input, kRelu, 0);
  const Pooling pooling = pooling_of(input);
  Norm norm{};
  at::Tensor saved = work.prepare(input, {weight, bias, running_mean, running_var, training, momentum, eps}, norm);
  at::Tensor output = at::empty({pooling.images, work.shape.channels, pooling.out_height, pooling.out_width},
                                input.options().memory_format(at::MemoryFormat::ChannelsLast));
  at::Tensor places = at::empty({output.numel()}, work.floats.dtype(at::kByte));
  work.pixels("norm_pool", pooling.images * pooling.out_height * pooling.out_width, input.const_data_ptr(), output.mutable_data_ptr(),
              places.mutable_data_ptr(), norm, pooling);
  return {std::move(output), std::move(saved), std::move(places)};
}

// Returns the gradients of the input, weight and bias.
using PoolBackward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool);
std::tuple<at::Tensor, at::Tensor, at::Tensor> pool_backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& saved,
                                                             const at::Tensor& places, bool training) {
  const Work work(input, kRelu, 0);
  const Pooling pooling = pooling_of(input);
  const int patches = pooling.images * pooling.out_height * pooling.out_width;
  at::Tensor weight = at::empty({work.shape.channels}, work.floats), bias = at::empty_like(weight), of_input = at::empty_like(input);
  const at::Tensor factors = at::empty({3, work.shape.channels}, work.floats);
  const Norm norm = work.differentiate(saved, factors, weight, bias, training);
  work.reduce(kPool, "norm_pool_reduce", patches, /*each=*/1, /*sums=*/2, gradient.const_data_ptr(), places.const_data_ptr(), input.const_data_ptr(), norm,
              pooling);
  work.pixels("norm_pool_gradient", patches, gradient.const_data_ptr(), places.const_data_ptr(), input.const_data_ptr(),
              of_input.mutable_data_ptr(), norm, pooling);
  return {std::move(of_input), std::move(weight), std::move(bias)};
}

struct PoolNode : torch::autograd::Function<PoolNode> {
  static constexpr size_t kInputs = 8;  // arguments of forward, besides the context

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input, Optional weight, Optional bias, Optional running_mean,
                            Optional running_var, bool training, double momentum, double eps) {
    static const auto call = operator_of<PoolForward>("streamtorch::batch_norm_relu_max_pool_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [output, saved, places] = call.call(input, weight, bias, running_mean, running_var, training, momentum, eps);
    context->save_for_backward({input, saved, places});
    context->saved_data["training"] = training;
    context->saved_data["weight"] = is_defined(weight);
    context->saved_data["bias"] = is_defined(bias);
    return output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "streamtorch::batch_norm_relu_max_pool has no second derivative: use the three layers, each by itself");
    static const auto call = operator_of<PoolBackward>("streamtorch::batch_norm_relu_max_pool_backward");
    const torch::autograd::variable_list kept = context->get_saved_variables();
    if (!gradients[0].defined()) return torch::autograd::variable_list(kInputs);
    const at::Tensor gradient = images_like(gradients[0], kept[0]);
    auto [of_input, weight, bias] = call.call(gradient, kept[0], kept[1], kept[2], context->saved_data["training"].toBool());
    Edges edges{context};
    torch::autograd::variable_list result(kInputs);
    result[0] = edges.take(true, of_input);
    result[1] = edges.take(context->saved_data["weight"].toBool(), weight);
    result[2] = edges.take(context->saved_data["bias"].toBool(), bias);
    return result;
  }
};

at::Tensor batch_norm_relu_max_pool(const at::Tensor& input, Optional weight, Optional bias, Optional running_mean, Optional running_var,
                                    bool training, double momentum, double eps, c10::string_view kernels) {
  const Parameters p{weight, bias, running_mean, running_var, training, momentum, eps};
  if (choose_of(kernels) != kNoKernels && !why_not(input, std::nullopt) && p.fit(input)) {
    return PoolNode::apply(input, weight, bias, running_mean, running_var, training, momentum, eps);
  }
  at::Tensor out = p.apply(input);
  return at::max_pool2d(at::relu_(out), {3, 3}, {2, 2}, {1, 1});
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("batch_norm_relu_max_pool_forward(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
              "bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)");
  library.def("batch_norm_relu_max_pool_backward(Tensor gradient, Tensor input, Tensor saved, Tensor places, bool training) -> (Tensor, Tensor, Tensor)");
  library.def("batch_norm_relu_max_pool(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
              "bool training, float momentum, float eps, str kernels=\"faster\") -> Tensor",
              TORCH_FN(batch_norm_relu_max_pool));
  library.def("branch(Tensor(a) input) -> Tensor(a)", TORCH_FN(skip_of));
  library.def("batch_norm_way(Tensor input, Tensor? addend, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
              "bool training, str kernels=\"faster\", bool over_ranks=False) -> int",
              TORCH_FN(batch_norm_way));
  library.def("batch_norm_act_forward(Tensor input, Tensor? addend, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
              "Tensor? weight2, Tensor? bias2, Tensor(c!)? running_mean2, Tensor(d!)? running_var2, bool two, bool training, float momentum, "
              "float eps, float momentum2, float eps2, str activation, int choose, bool records, int group) -> (Tensor, Tensor, Tensor, Tensor)");
  library.def("batch_norm_act_backward(Tensor gradient, Tensor? gradient2, Tensor input, Tensor? addend, Tensor saved, Tensor saved2, Tensor mask, "
              "bool added, bool two, bool training, str activation, int choose, int group) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  // Registered for every backend, because the functions choose between the node of this file and
  // LibTorch's operators.
  library.def("batch_norm_act(Tensor input, Tensor? addend, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
              "bool training, float momentum, float eps, str activation, str kernels=\"faster\", int group=0) -> Tensor",
              TORCH_FN(batch_norm_act));
  library.def("batch_norms_act(Tensor input, Tensor addend, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
              "Tensor? weight2, Tensor? bias2, Tensor(c!)? running_mean2, Tensor(d!)? running_var2, bool training, float momentum, float eps, "
              "float momentum2, float eps2, str activation, str kernels=\"faster\", int group=0) -> Tensor",
              TORCH_FN(batch_norms_act));
}

TORCH_LIBRARY_IMPL(streamtorch, CUDA, library) {
  library.impl("batch_norm_act_forward", TORCH_FN(forward));
  library.impl("batch_norm_act_backward", TORCH_FN(backward));
  library.impl("batch_norm_relu_max_pool_forward", TORCH_FN(pool_forward));
  library.impl("batch_norm_relu_max_pool_backward", TORCH_FN(pool_backward));
}

}  // namespace
}  // namespace ct
