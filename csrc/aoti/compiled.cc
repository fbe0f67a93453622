// Models that AOTInductor has compiled to a shared library.
#include <ATen/DynamicLibrary.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/exec.h"
#include "core/live.h"
#include "core/tensor.h"
#include "graph/capture.h"

// Note [One compiled model, one call]
//
// LibTorch can guard a compiled model so that several threads call it. The guard records an event
// in each call. If the model is busy, the host waits for the event. It also queries the event,
// which a capture forbids. So the model is opened without the guard, and the caller makes one call
// at a time. The model keeps nothing between two calls except its weights. Two calls on two
// streams therefore need no order on the device.
//
// The first call after a change of the weights computes constants from them, on the stream of
// that call. Later calls on other streams do not wait for this. So the caller makes the first call
// itself, and waits for it.
//
// Note [Weights of a compiled model]
//
// A compiled model has two sets of weights: one that calls read, and one that can be replaced.
// Without the guard, a call fails if the first set is not ready, even if it reads the second
// (run_single_threaded in LibTorch's model_container.h, 2.11). So new weights are put into both
// sets, and calls always read the first set.
//
// The library carries weights, and has copied them to memory of its own. This memory is freed when
// weights are given before the first call. After a call it cannot be freed, because the computed
// constants would be freed too, and LibTorch would then read their addresses.
//
// For each weight that is given, the library makes an at::Tensor with new, and never deletes it
// (MaybeOwningAtenTensorHandle in LibTorch's aoti_runtime/utils.h, 2.11). So the library gets
// tensors that do not own the memory. When weights are replaced, and when the model ends, these
// tensors are deleted here. Their reference counts tell whether the library has left them.

namespace {

using Tensors = std::unordered_map<std::string, at::Tensor>;

class Runner final : public torch::inductor::AOTIModelContainerRunner {
 public:
  // The base class asks no device for its current stream: it passes on the stream that it gets.
  // NULL then means CUDA's default stream, as in ct_stream_native.
  Runner(const std::string& library, const std::string& device, const std::string& folder)
      : AOTIModelContainerRunner(library, 1, device, folder, /*run_single_threaded=*/true) {
    inputs = count("AOTInductorModelContainerGetNumInputs");
    outputs = count("AOTInductorModelContainerGetNumOutputs");
    const auto computed = function<decltype(&AOTInductorModelContainerGetConstantFromFolded)>("AOTInductorModelContainerGetConstantFromFolded");
    const int32_t all = count("AOTInductorModelContainerGetNumConstants");
    for (int32_t i = 0; i < all; ++i) {
      bool from_others = false;
      if (computed(container_handle_, static_cast<size_t>(i), &from_others) == 0 && !from_others) ++weights;
    }
  }

  // The tensors of one of the library's two sets, by the names of the Python model.
  std::unordered_map<std::string, AtenTensorHandle> handles(bool inactive) {
    std::unordered_map<std::string, AtenTensorHandle> all;
    extract_constants_map_func_(container_handle_, reinterpret_cast<AOTInductorConstantMapHandle>(&all), inactive);
    return all;
  }

  int32_t inputs = 0, outputs = 0;
  int32_t weights = 0;  // constants that are not computed from others

 private:
  template <typename Function>
  Function function(const char* name) {
    return reinterpret_cast<Function>(model_so_->sym(name));
  }
  int32_t count(const char* name) {
    const auto get = function<decltype(&AOTInductorModelContainerGetNumInputs)>(name);
    size_t number = 0;
    if (get(container_handle_, &number) != 0) throw ct::Failure(CT_INTERNAL, std::string(name) + " failed");
    return static_cast<int32_t>(number);
  }
};

struct Weight {
  std::string name;      // in the Python model
  std::string constant;  // in the library
  at::Tensor tensor;     // as the library describes it
};

// Returns whether the memory of the tensor can be copied and replaced.
bool is_plain(const at::Tensor& t) { return t.layout() == at::kStrided && t.has_storage(); }

// Returns a tensor with the geometry of `like`. Its memory is new.
at::Tensor new_like(const at::Tensor& like) {
  const int64_t elements = static_cast<int64_t>(like.storage().nbytes() / std::max<size_t>(1, like.itemsize()));
  return at::empty({elements}, like.options()).as_strided(like.sizes(), like.strides(), like.storage_offset());
}

}  // namespace

namespace {

// Weights that a library was given: tensors that do not own their memory. The destructor deletes
// what the library has left of them. See Note [Weights of a compiled model].
class Given {
 public:
  explicit Given(Tensors tensors) : tensors_(std::move(tensors)) {}
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;
  ~Given() {
    for (const auto& [name, tensor] : tensors_) {
      const auto [first, last] = left_.equal_range(name);
      if (tensor.use_count() != 1 + static_cast<size_t>(std::distance(first, last))) continue;
      for (auto it = first; it != last; ++it) aoti_torch_delete_tensor_object(it->second);
    }
  }

  Tensors& tensors() { return tensors_; }

  // Notes the handles of the library. To be called before the library forgets them.
  void note(Runner& runner, const std::vector<Weight>& weights) {
    for (const bool inactive : {false, true}) {
      const auto handles = runner.handles(inactive);
      for (const Weight& w : weights) {
        const auto found = handles.find(w.name);
        const auto mine = tensors_.find(w.constant);
        if (found == handles.end() || mine == tensors_.end()) continue;
        const auto* tensor = reinterpret_cast<const at::Tensor*>(found->second);
        if (tensor->unsafeGetTensorImpl() == mine->second.unsafeGetTensorImpl()) left_.emplace(w.constant, found->second);
      }
    }
  }

 private:
  Tensors tensors_;  // by the names of the library
  std::unordered_multimap<std::string, AtenTensorHandle> left_;
};

}  // namespace

struct ct_compiled {
  ct_compiled(const std::string& library, c10::Device device, const std::string& folder)
      : runner(std::make_unique<Runner>(library, device.str(), folder)), device(device) {
    ++ct::live().compiled;
  }
  ~ct_compiled() {
    try {
      if (given != nullptr) given->note(*runner, weights);
    } catch (...) {  // no memory: a few bytes of each weight are left
    }
    runner.reset();
    given.reset();
    --ct::live().compiled;
  }

  std::unique_ptr<Runner> runner;
  const c10::Device device;
  std::vector<Weight> weights;   // sorted by name
  bool shares = true;            // the weights can be copied and replaced
  bool ran = false;              // a call was made, so constants may have been computed from the weights
  bool captured = false;         // a graph holds a call
  bool broken = false;           // a change of the weights has failed half-way
  std::unique_ptr<Given> given;  // the weights of ct_compiled_set_weights
};

namespace {

void find_weights(ct_compiled& compiled) {
  std::unordered_map<std::string, std::string> constants;
  for (const auto& [constant, name] : compiled.runner->getConstantNamesToOriginalFQNs()) constants[name] = constant;
  for (auto& [name, tensor] : compiled.runner->extract_constants_map(/*use_inactive=*/false)) {
    const auto constant = constants.find(name);
    if (constant == constants.end()) continue;
    // LibTorch replaces only weights of the model's own device.
    compiled.shares = compiled.shares && is_plain(tensor) && tensor.device() == compiled.device;
    compiled.weights.push_back({name, constant->second, tensor});
  }
  const auto found = static_cast<int32_t>(compiled.weights.size());
  if (found == 0 && compiled.runner->weights > 0) {
    throw ct::Failure(CT_UNSUPPORTED, "the library was compiled without its " + std::to_string(compiled.runner->weights) + " weights");
  }
  if (found != compiled.runner->weights) compiled.shares = false;  // two weights have one name
  std::sort(compiled.weights.begin(), compiled.weights.end(), [](const Weight& a, const Weight& b) { return a.name < b.name; });
}

// See Note [Weights of a compiled model].
void install(ct_compiled& compiled, const std::vector<at::Tensor>& weights) {
  Tensors views;
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor& t = weights[i];
    views[compiled.weights[i].constant] = at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options());
  }
  auto next = std::make_unique<Given>(std::move(views));
  Runner& runner = *compiled.runner;
  const bool first = compiled.given == nullptr;
  if (!first) compiled.given->note(runner, compiled.weights);
  compiled.broken = true;
  runner.update_constant_buffer(next->tensors(), /*use_inactive=*/true, /*validate_full_updates=*/false, /*user_managed=*/true);
  runner.swap_constant_buffer();
  if (first && !compiled.ran) runner.free_inactive_constant_buffer();
  runner.update_constant_buffer(next->tensors(), /*use_inactive=*/true, /*validate_full_updates=*/false, /*user_managed=*/true);
  runner.swap_constant_buffer();
  for (size_t i = 0; i < weights.size(); ++i) compiled.weights[i].tensor = weights[i];
  compiled.given = std::move(next);
  compiled.broken = false;
}

// The library keeps exceptions to itself, prints their texts, and returns a number. LibTorch throws
// a runtime_error for the number.
std::vector<at::Tensor> run(ct_compiled& compiled, const std::vector<at::Tensor>& inputs, void* stream) {
  try {
    return compiled.runner->run(inputs, stream);
  } catch (const std::runtime_error&) {
    throw ct::Failure(CT_INTERNAL, "the compiled library failed, and wrote the reason to the standard error");
  }
}

// Copies a result that lies in the memory of a weight. Otherwise it would end with the model.
at::Tensor apart(const ct_compiled& compiled, at::Tensor result) {
  if (!result.defined() || !result.has_storage() || result.storage().data() == nullptr) return result;
  const auto* address = static_cast<const char*>(result.storage().data());
  for (const Weight& w : compiled.weights) {
    if (!w.tensor.has_storage()) continue;
    const auto* begin = static_cast<const char*>(w.tensor.storage().data());
    if (address >= begin && address < begin + w.tensor.storage().nbytes()) return result.clone();
  }
  return result;
}

}  // namespace

extern "C" {

ct_status* ct_compiled_new(ct_exec x, const char* library, const char* folder, ct_compiled** out) noexcept {
  return ct::executed(x, [&] {
    ct::refuse_in_capture(*x.stream, "load the model before");
    auto compiled = std::make_unique<ct_compiled>(&ct::deref(library, "library"), x.stream->device, &ct::deref(folder, "folder"));
    find_weights(*compiled);
    *out = compiled.release();
  });
}

void ct_compiled_free(ct_compiled* compiled) noexcept { delete compiled; }

void ct_compiled_describe(const ct_compiled* compiled, ct_compiled_info* out) noexcept {
  *out = ct_compiled_info{compiled->runner->inputs, compiled->runner->outputs, static_cast<int32_t>(compiled->weights.size()),
                          compiled->shares, compiled->captured};
}

const char* ct_compiled_weight_name(const ct_compiled* compiled, int32_t index) noexcept {
  return index < 0 || static_cast<size_t>(index) >= compiled->weights.size() ? "" : compiled->weights[index].name.c_str();
}

ct_status* ct_compiled_weight(ct_exec x, const ct_compiled* compiled, int32_t index, const ct_tensor* values, ct_tensor** out) noexcept {
  return ct::executed(x, [&] {
    const ct_compiled& model = ct::deref(compiled, "compiled");
    ct::refuse_in_capture(*x.stream, "copy the weights before");
    if (index < 0 || static_cast<size_t>(index) >= model.weights.size()) throw ct::Failure(CT_INVALID_ARGUMENT, "there is no weight of that number");
    const Weight& weight = model.weights[index];
    if (!is_plain(weight.tensor)) throw ct::Failure(CT_UNSUPPORTED, "the weight " + weight.name + " has a packed layout");
    at::Tensor copy = new_like(weight.tensor);
    if (values == nullptr) {
      // The whole memory is copied, because elements of the tensor may share it.
      const auto flat = [](const at::Tensor& t) {
        return t.as_strided({static_cast<int64_t>(t.storage().nbytes() / std::max<size_t>(1, t.itemsize()))}, {1}, 0);
      };
      flat(copy).copy_(flat(weight.tensor));
    } else {
      ct::use(*values, *x.stream);
      if (values->tensor.sizes() != weight.tensor.sizes() || values->tensor.scalar_type() != weight.tensor.scalar_type()) {
        throw ct::Failure(CT_INVALID_ARGUMENT, "the weight " + weight.name + " has another shape or dtype");
      }
      copy.copy_(values->tensor, /*non_blocking=*/true);
    }
    *out = new ct_tensor(std::move(copy), x.stream->id);
  });
}

ct_status* ct_compiled_set_weights(ct_exec x, ct_compiled* compiled, ct_tensor* const* weights, int32_t count) noexcept {
  return ct::executed(x, [&] {
    ct_compiled& model = ct::deref(compiled, "compiled");
    ct::refuse_in_capture(*x.stream, "change the weights before");
    if (!model.shares) throw ct::Failure(CT_UNSUPPORTED, "the model has packed weights or weights on two devices, which cannot be replaced");
    if (static_cast<size_t>(count) != model.weights.size()) throw ct::Failure(CT_INVALID_ARGUMENT, "all weights must be given");
    if (count == 0) return;
    std::vector<at::Tensor> next;
    for (int32_t i = 0; i < count; ++i) {
      const at::Tensor& t = ct::deref(weights[i], "weight").tensor;
      const at::Tensor& old = model.weights[i].tensor;
      if (t.sizes() != old.sizes() || t.strides() != old.strides() || t.dtype() != old.dtype() || t.device() != old.device()) {
        throw ct::Failure(CT_INVALID_ARGUMENT, "the weight " + model.weights[i].name + " has another shape, dtype or device");
      }
      next.push_back(t);
    }
    install(model, next);
  });
}

ct_status* ct_compiled_run(ct_exec x, ct_compiled* compiled, ct_tensor* const* inputs, int32_t count, int32_t draws,
                           ct_tensor** outputs) noexcept {
  return ct::executed(x, [&] {
    ct_compiled& model = ct::deref(compiled, "compiled");
    if (model.broken) throw ct::Failure(CT_INTERNAL, "a change of the weights has failed, so the model cannot run any more");
    if (x.stream->device != model.device) throw ct::Failure(CT_INVALID_ARGUMENT, "the model is on " + model.device.str());
    if (count != model.runner->inputs) {
      throw ct::Failure(CT_INVALID_ARGUMENT, "got " + std::to_string(count) + " inputs, want " + std::to_string(model.runner->inputs));
    }
    std::vector<at::Tensor> in;
    in.reserve(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) {
      const ct_tensor& t = ct::deref(inputs[i], "input");
      ct::use(t, *x.stream);
      ct::checker::reads("compiled model", t.tensor);
      // The library reads the memory and looks at nothing else.
      if (!is_plain(t.tensor) || t.tensor.is_conj() || t.tensor.is_neg()) {
        throw ct::Failure(CT_INVALID_ARGUMENT, "input " + std::to_string(i) + " is sparse, packed, or a lazy conjugate or negative");
      }
      in.push_back(t.tensor);
    }
    std::optional<ct::RandomUse> drawing;
    if (draws != 0) drawing.emplace(*x.stream);
    const c10::impl::ExcludeDispatchKeyGuard past_autograd(c10::autograd_dispatch_keyset);
    if (ct::checker::is_on()) {
      for (const Weight& w : model.weights) {
        if (is_plain(w.tensor)) ct::checker::reads("compiled model", w.tensor);
      }
    }
    model.ran = true;
    model.captured = model.captured || ct::in_capture(*x.stream);
    std::vector<at::Tensor> out = run(model, in, ct_stream_native(x.stream));
    if (out.size() != static_cast<size_t>(model.runner->outputs)) throw ct::Failure(CT_INTERNAL, "the model returned another number of results");
    std::vector<std::unique_ptr<ct_tensor>> made;
    for (at::Tensor& t : out) {
      if (t.defined() && is_plain(t)) ct::checker::writes("compiled model", t);
      made.emplace_back(t.defined() ? ct::new_result(apart(model, std::move(t)), *x.stream, inputs, count) : nullptr);
    }
    for (size_t i = 0; i < made.size(); ++i) outputs[i] = made[i].release();
  });
}

}  // extern "C"
