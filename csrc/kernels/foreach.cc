// Operators on lists of tensors, by one kernel for a whole list:
//
//   fused_sgd_   aten::_fused_sgd_
//   fused_adam_  aten::_fused_adam_ and aten::_fused_adamw_
//
// foreach::copy does the casts of cast_weights in the same way.
//
// The work of these operators is to read and write memory. LibTorch's kernels take 30 to 64 tensors
// in a launch, and each block works on 65,536 elements, so multiprocessors end at different times.
// On an H200 they reach 2.7 to 3.05 TB/s for the parameters of ResNet-50, and a copy of one tensor
// 4.24. The kernels of this file divide all tensors into small pieces, in one launch.
//
// The kernels take dense tensors in float32 with equal strides, on one device. LibTorch's operators
// do the work for all other tensors, on the CPU, and for the options that Note [LibTorch's bits]
// excludes.
//
// Note [LibTorch's bits]: the kernels give the bits of the kernels in LibTorch 2.11. Those compute
// in float32. Their compiler joined most multiplications with an addition, and foreach_cuda.h says
// which ones. With some options the compiler joined them only for some elements. With gradients
// that are divided by a scale, three of four elements of an SGD step end with two roundings, and
// the fourth with one. With Adam's weight decay, the first of four gradients has two roundings. So
// these options are left to LibTorch, and so are the rare ones: maximize, AMSGrad and a first step
// of SGD. AdamW's weight decay is not among them.
#include "kernels/foreach.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/device.h"
#include "kernels/both_devices.h"
#include "kernels/foreach_cuda.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"

namespace ct {
namespace {

using images::stream_of;

CT_ON_BOTH_DEVICES(kText,

// The numbers of a step. A pointer may be NULL.
struct Sgd {
  const float* rate;   // the learning rate; NULL means lr
  const float* found;  // the step is skipped if it is 1
  float lr, weight_decay, momentum;
  float undamped;      // 1 - dampening
  int nesterov;
};

struct Adam {
  const float* rate;
  const float* found;
  float lr, beta1, beta2;
  float weight_decay;  // of AdamW
  float eps;
};

)  // CT_ON_BOTH_DEVICES

// How a kernel divides its work: see foreach_cuda.h. `blocks` is the number of blocks on each
// multiprocessor; 0 means one block for each piece. The operators of the kernels take the five
// numbers as an argument, for measurements.
struct Shape {
  int threads, vectors, steps, blocks, streaming;

  auto operator<=>(const Shape&) const = default;
  int piece() const { return threads * vectors * steps * 4; }
};

// Small pieces without hints to the cache were the fastest of the shapes that were tried on an H200
// with the parameters of ResNet-50. SGD then moves 4.13 TB/s, a cast to bfloat16 4.0 and one to
// float32 3.8. LibTorch's operators move 3.1, 2.3 and 2.2. The shape for Adam was not measured.
constexpr Shape kCastShape{256, 2, 1, 0, 0};
constexpr Shape kSgdShape{256, 1, 1, 0, 0};
constexpr Shape kAdamShape{256, 1, 1, 0, 0};

Shape shape_of(at::IntArrayRef given, const Shape& usual) {
  if (given.empty()) return usual;
  TORCH_CHECK(given.size() == 5 && given[0] >= 32 && given[0] <= 1024 && given[0] % 32 == 0 && given[1] >= 1 && given[1] <= 8 && given[2] >= 1 &&
                  given[2] <= 64 && given[3] >= 0 && given[3] <= 32 && given[4] >= 0 && given[4] < 32,
              "shape is ", given, ", want threads, vectors, steps, blocks and streaming");
  const auto at = [&](size_t i) { return static_cast<int>(given[i]); };
  return {at(0), at(1), at(2), at(3), at(4)};
}

constexpr size_t kMostBytes = 32764 - 64;  // of a table; a kernel takes 32,764 bytes of arguments
constexpr int kHead = 8;                   // bytes of a table before its tensors

// A kernel of foreach_cuda.h.
struct Kernel {
  const char* name;
  const char* source;
  std::string macros;
  Shape shape;
};

const CudaProgram& program_of(const Kernel& kernel, size_t lists, size_t room) {
  return variant_of(std::tuple(std::string(kernel.name), kernel.macros, kernel.shape, lists, room), [&] {
    std::string head = kText + kernel.macros;
    const auto macro = [&](const char* name, size_t value) { head += std::string("\n#define ") + name + " " + std::to_string(value); };
    macro("LISTS", lists);
    macro("TENSORS", room);
    macro("THREADS", kernel.shape.threads);
    macro("VECTORS", kernel.shape.vectors);
    macro("STEPS", kernel.shape.steps);
    macro("STREAMING", kernel.shape.streaming);
    return Variant{std::string("foreach ") + kernel.name, head + "\n" + kForeachText, kernel.source, /*fused_multiply_add=*/true};
  });
}

// Launches the kernel for all tensors of the lists. A list may be empty. If there are too many
// tensors for one table, there are several launches. `numbers` is the second argument of the
// kernel. Only the first `streams` lists have as many elements as list 0.
void launch(const Kernel& kernel, std::initializer_list<at::TensorList> given, size_t streams, void* numbers) {
  std::vector<at::TensorList> lists;
  for (const at::TensorList list : given) {
    if (!list.empty()) lists.push_back(list);
  }
  const size_t bytes = 8 * lists.size() + 16, most = (kMostBytes - kHead) / bytes, count = lists.at(0).size();
  const CudaChip chip = cuda().chip(lists[0][0].device().index());
  for (size_t i = 0; i < count;) {
    const size_t room = std::min(most, std::bit_ceil(std::max<size_t>(count - i, 64)));
    std::vector<int64_t> table((kHead + room * bytes) / 8);  // a Table of foreach_cuda.h
    int64_t* word = table.data() + kHead / 8;
    int32_t tensors = 0, pieces = 0;
    for (; i < count && static_cast<size_t>(tensors) < room; ++i) {
      const int64_t elements = lists[0][i].numel();
      if (elements == 0) continue;
      bool aligned = true;
      for (size_t k = 0; k < lists.size(); ++k) {
        *word++ = reinterpret_cast<int64_t>(lists[k][i].const_data_ptr());
        aligned = aligned && (k >= streams || is_aligned(lists[k][i]));
      }
      *word++ = elements;
      const int32_t of[] = {pieces, aligned};
      std::memcpy(word++, of, sizeof of);
      ++tensors;
      pieces += static_cast<int32_t>((elements + kernel.shape.piece() - 1) / kernel.shape.piece());
    }
    if (pieces == 0) continue;
    const int32_t head[] = {tensors, pieces};
    std::memcpy(table.data(), head, sizeof head);
    void* arguments[] = {table.data(), numbers};
    const int resident = kernel.shape.blocks * chip.multiprocessors;
    cuda().launch(program_of(kernel, lists.size(), room), "foreach_kernel", stream_of(lists[0][0]), resident > 0 ? std::min(pieces, resident) : pieces,
                  kernel.shape.threads, arguments);
  }
}

// Returns whether a kernel can read the tensor of one element, or there is none.
bool is_number(Optional t, c10::Device device) {
  return !is_defined(t) || (t->scalar_type() == at::kFloat && t->numel() == 1 && t->device() == device && t->layout() == at::kStrided);
}

// Returns whether the elements of corresponding tensors lie in the same order, without gaps, on one
// CUDA device that the kernels support.
bool is_alike(std::initializer_list<at::TensorList> lists) {
  const at::TensorList first = *lists.begin();
  if (first.empty() || !first[0].defined() || !first[0].is_cuda() || cuda().chip(first[0].device().index()).capability < 80) return false;
  for (size_t i = 0; i < first.size(); ++i) {
    for (const at::TensorList list : lists) {
      if (list.size() != first.size()) return false;
      const at::Tensor& t = list[i];
      if (!t.defined() || t.layout() != at::kStrided || t.device() != first[0].device() || t.sizes() != first[i].sizes() ||
          !t.is_non_overlapping_and_dense() || !in_one_order(t, first[i])) {
        return false;
      }
    }
  }
  return true;
}

bool is_all(at::TensorList list, at::ScalarType dtype) {
  return std::all_of(list.begin(), list.end(), [&](const at::Tensor& t) { return t.scalar_type() == dtype; });
}

bool is_float(std::initializer_list<at::TensorList> lists) {
  return std::all_of(lists.begin(), lists.end(), [](at::TensorList list) { return is_all(list, at::kFloat); });
}

// Returns whether autograd would have to refuse or to record a change of the tensors.
bool is_recorded(at::TensorList list) {
  return at::GradMode::is_enabled() && std::any_of(list.begin(), list.end(), [](const at::Tensor& t) { return t.requires_grad(); });
}

float* number(Optional t) { return is_defined(t) ? t->data_ptr<float>() : nullptr; }

// The functions for the dispatch key CUDA launch a kernel and check nothing. The other functions
// choose between a kernel and LibTorch's operator.

void cast_kernel(at::TensorList to, at::TensorList from, at::IntArrayRef shape) {
  const std::string macros = "\n#define TO " + float_name(to[0].scalar_type()) + "\n#define FROM " + float_name(from[0].scalar_type());
  launch({"cast", kCastText, macros, shape_of(shape, kCastShape)}, {to, from}, 2, nullptr);
}

void sgd_kernel(at::TensorList params, at::TensorList grads, at::TensorList momenta, Optional rate, double lr, double weight_decay, double momentum,
                double dampening, bool nesterov, Optional found, at::IntArrayRef shape) {
  Sgd sgd{number(rate), number(found), static_cast<float>(lr), static_cast<float>(weight_decay), static_cast<float>(momentum),
          1 - static_cast<float>(dampening), nesterov};
  launch({"sgd", kSgdText, "", shape_of(shape, kSgdShape)}, {params, grads, momenta}, 3, &sgd);
}

void fused_sgd(at::TensorList params, at::TensorList grads, at::TensorList momenta, Optional rate, double lr, double weight_decay, double momentum,
               double dampening, bool nesterov, bool first, Optional scale, Optional found) {
  const bool fits = momenta.empty() ? momentum == 0 && is_alike({params, grads}) : momentum > 0 && is_alike({params, grads, momenta});
  if (!fits || first || is_defined(scale) || is_recorded(params) || !is_float({params, grads, momenta}) || !is_number(rate, params[0].device()) ||
      !is_number(found, params[0].device())) {
    if (is_defined(rate)) return at::_fused_sgd_(params, grads, momenta, weight_decay, momentum, *rate, dampening, nesterov, false, first, scale, found);
    return at::_fused_sgd_(params, grads, momenta, weight_decay, momentum, lr, dampening, nesterov, false, first, scale, found);
  }
  static const auto call = operator_of<decltype(sgd_kernel)>("streamtorch::fused_sgd_kernel_");
  const at::AutoDispatchBelowADInplaceOrView below;
  call.call(params, grads, momenta, rate, lr, weight_decay, momentum, dampening, nesterov, found, {});
}

void adam_kernel(at::TensorList params, at::TensorList grads, at::TensorList means, at::TensorList squares, at::TensorList steps, Optional rate,
                 double lr, double beta1, double beta2, double weight_decay, double eps, Optional found, at::IntArrayRef shape) {
  Adam adam{number(rate), number(found), static_cast<float>(lr), static_cast<float>(beta1), static_cast<float>(beta2),
            static_cast<float>(weight_decay), static_cast<float>(eps)};
  launch({"adam", kAdamText, "", shape_of(shape, kAdamShape)}, {params, grads, means, squares, steps}, 4, &adam);
}

void fused_adam(at::TensorList params, at::TensorList grads, at::TensorList means, at::TensorList squares, at::TensorList largest,
                at::TensorList steps, Optional rate, double lr, double beta1, double beta2, double weight_decay, double eps, bool decoupled, bool amsgrad,
                Optional scale, Optional found) {
  const auto are_numbers = [&](at::TensorList list) {
    return list.size() == params.size() && std::all_of(list.begin(), list.end(), [&](const at::Tensor& t) { return is_number(t, params[0].device()); });
  };
  if (!is_alike({params, grads, means, squares}) || amsgrad || (weight_decay != 0 && !decoupled) || is_defined(scale) || is_recorded(params) ||
      !is_float({params, grads, means, squares}) || !are_numbers(steps) || !is_number(rate, params[0].device()) ||
      !is_number(found, params[0].device())) {
    const auto step = [&](const auto& lr) {
      const auto call = [&](auto run) { run(params, grads, means, squares, largest, steps, lr, beta1, beta2, weight_decay, eps, amsgrad, false, scale, found); };
      if (decoupled) {
        call([](auto&&... a) { at::_fused_adamw_(a...); });
      } else {
        call([](auto&&... a) { at::_fused_adam_(a...); });
      }
    };
    return is_defined(rate) ? step(*rate) : step(lr);
  }
  static const auto call = operator_of<decltype(adam_kernel)>("streamtorch::fused_adam_kernel_");
  const at::AutoDispatchBelowADInplaceOrView below;
  call.call(params, grads, means, squares, steps, rate, lr, beta1, beta2, weight_decay, eps, found, {});
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("foreach_cast_kernel_(Tensor(a!)[] to, Tensor[] tensors, int[] shape=[]) -> ()");
  library.def("fused_sgd_kernel_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] momentum_buffers, Tensor? rate, float lr, float weight_decay, "
              "float momentum, float dampening, bool nesterov, Tensor? found_inf, int[] shape=[]) -> ()");
  library.def("fused_adam_kernel_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, Tensor[] steps, "
              "Tensor? rate, float lr, float beta1, float beta2, float weight_decay, float eps, Tensor? found_inf, int[] shape=[]) -> ()");
  // Registered for every backend, because the functions choose between a kernel of this file and
  // LibTorch's operators. `rate` replaces `lr`.
  library.def("fused_sgd_(Tensor(a!)[] params, Tensor(b!)[] grads, Tensor(c!)[] momentum_buffers, Tensor? rate, float lr, float weight_decay, "
              "float momentum, float dampening, bool nesterov, bool first_step, Tensor? grad_scale=None, Tensor? found_inf=None) -> ()",
              TORCH_FN(fused_sgd));
  library.def("fused_adam_(Tensor(a!)[] params, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs, "
              "Tensor(e!)[] max_exp_avg_sqs, Tensor[] steps, Tensor? rate, float lr, float beta1, float beta2, float weight_decay, float eps, "
              "bool decoupled, bool amsgrad, Tensor? grad_scale=None, Tensor? found_inf=None) -> ()",
              TORCH_FN(fused_adam));
}

TORCH_LIBRARY_IMPL(streamtorch, CUDA, library) {
  library.impl("foreach_cast_kernel_", TORCH_FN(cast_kernel));
  library.impl("fused_sgd_kernel_", TORCH_FN(sgd_kernel));
  library.impl("fused_adam_kernel_", TORCH_FN(adam_kernel));
}

}  // namespace

void foreach::copy(at::TensorList to, at::TensorList from) {
  const at::ScalarType a = to.empty() ? at::kFloat : to[0].scalar_type(), b = from.empty() ? at::kFloat : from[0].scalar_type();
  const auto is_half = [](at::ScalarType t) { return t == at::kHalf || t == at::kBFloat16; };
  const bool casts = (a == at::kFloat && is_half(b)) || (is_half(a) && b == at::kFloat);
  if (!casts || !is_all(to, a) || !is_all(from, b) || !is_alike({to, from})) return at::_foreach_copy_(to, from);
  static const auto call = operator_of<decltype(cast_kernel)>("streamtorch::foreach_cast_kernel_");
  call.call(to, from, {});
}

}  // namespace ct
