#include "check/schema.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/early.h"
#include "witness/watch.h"

namespace ct {
namespace {

using Names = std::unordered_set<std::string_view>;

// These operators touch no element of a tensor, even if the schema marks an argument as written.
// They change or read only the metadata of a tensor.
const Names& metadata_only() {
  static const Names names{
      "aten::record_stream", "aten::requires_grad_", "aten::retain_grad", "aten::detach_", "aten::set_", "aten::set_data",
      "aten::squeeze_", "aten::unsqueeze_", "aten::transpose_",
      "aten::t_", "aten::swapaxes_", "aten::swapdims_", "aten::as_strided_", "aten::rename_", "aten::_backward",
      "aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::rand_like", "aten::randn_like",
      "aten::randint_like", "aten::new_empty", "aten::new_empty_strided", "aten::new_zeros", "aten::new_ones", "aten::new_full",
      "aten::_has_same_storage_numel", "aten::_has_compatible_shallow_copy_type", "aten::is_same_size", "aten::result_type",
      "aten::size", "aten::stride", "aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset",
      "aten::_version", "aten::output_nr", "aten::is_leaf", "aten::data", "aten::is_complex", "aten::is_floating_point",
      "aten::is_signed", "aten::is_pinned", "aten::is_inference", "aten::is_coalesced", "aten::broadcast_tensors",
      "aten::_use_cudnn_ctc_loss", "aten::_nested_tensor_size", "aten::_reshape_alias", "aten::_debug_has_internal_overlap",
      "aten::can_cast", "aten::qscheme", "aten::to_sparse", "aten::_fused_sdp_choice", "aten::_efficientzerotensor", "aten::_unsafe_view", "aten::lift",
      "aten::is_set_to", "aten::dense_dim", "aten::sparse_dim", "aten::_shape_as_tensor", "aten::fill", "aten::zero",
  };
  return names;
}

// Returns whether the operator reads only the shape of the argument.
bool shape_only(std::string_view op, const std::string& argument) {
  return argument == "other" && (op == "aten::view_as" || op == "aten::expand_as" || op == "aten::reshape_as" || op == "aten::type_as");
}

bool holds_tensors(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return true;
    case c10::TypeKind::OptionalType:
      return holds_tensors(type->castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType:
      return holds_tensors(type->castRaw<c10::ListType>()->getElementType());
    default:
      return false;
  }
}

bool is_composite(const c10::OperatorName& name) {
  const auto op = c10::Dispatcher::singleton().findSchema(name);
  return op && op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

}  // namespace

std::vector<std::string> corrected_operators() {
  std::vector<std::string> names(metadata_only().begin(), metadata_only().end());
  return names;
}

Effects effects_of(const c10::FunctionSchema& schema) {
  Effects effects;
  const std::string& op = schema.name();
  const bool metadata = metadata_only().count(op) != 0;
  effects.waits = waits_on_cuda(op);
  effects.copies = op == "aten::copy_";
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = arguments[i];
    const c10::AliasInfo* const alias = argument.alias_info();
    auto effect = Effects::none;
    if (!metadata && holds_tensors(argument.type()) && !shape_only(op, argument.name())) {
      // If the schema marks an argument as an alias and not as written, the result is a view of the
      // argument. An operator that must copy instead calls a second operator for the copy. The checker
      // sees that call.
      effect = alias == nullptr ? Effects::read : alias->isWrite() ? Effects::write : Effects::none;
    }
    effects.arguments.push_back(effect);
    const std::string& name = argument.name();
    if (name == "edge" && argument.type()->kind() == c10::TypeKind::StringType) effects.edge = static_cast<int>(i);
    const bool boolean = argument.type()->kind() == c10::TypeKind::BoolType;
    if ((boolean && (name == "training" || name == "train")) || name == "grad_scale") effects.condition = static_cast<int>(i);
  }
  // Batch norm writes its running statistics in training alone. Most of its operators do not mark
  // them as written, and the others mark them as always written. Fused optimizers mark gradients as
  // written. They write the gradients only to remove a scale.
  for (size_t i = 0; i < arguments.size(); ++i) {
    Effects::Effect& effect = effects.arguments[i];
    const std::string& name = arguments[i].name();
    const bool statistics = name.starts_with("running_mean") || name.starts_with("running_var");
    const bool scaled = effect == Effects::write && name == "grads" && op.starts_with("aten::_fused_");
    if (effect == Effects::none || !(statistics || scaled)) continue;
    if (effect == Effects::write && effects.condition < 0) continue;
    effect = Effects::read;
    effects.conditional.push_back(i);
  }
  const auto index_of = [&](std::string_view name) {
    const auto index = schema.argumentIndexWithName(std::string(name));
    TORCH_INTERNAL_ASSERT(index.has_value(), op, " declares an early read of ", name, ", which it has not");
    return *index;
  };
  for (const EarlyRead& r : early_reads(op)) {
    effects.early.push_back({static_cast<size_t>(index_of(r.argument)), r.through.empty() ? -1 : index_of(r.through)});
  }
  if (op == "aten::batch_norm_update_stats" || op.starts_with("aten::batch_norm_gather_stats")) {
    for (size_t i : effects.conditional) effects.arguments[i] = Effects::write;  // to write them is the operators' only purpose
  }
  return effects;
}

const Effects& known_effects(const c10::FunctionSchema& schema) {
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::unordered_map<c10::OperatorName, std::unique_ptr<const Effects>>;
  const std::lock_guard lock(*mutex);
  auto& known = (*all)[schema.operator_name()];
  if (known == nullptr) {
    auto effects = std::make_unique<Effects>(effects_of(schema));
    if (is_composite(schema.operator_name())) {
      std::fill(effects->arguments.begin(), effects->arguments.end(), Effects::none);
      effects->conditional.clear();
    }
    known = std::move(effects);
  }
  return *known;
}

}  // namespace ct
