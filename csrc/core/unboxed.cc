#include "core/unboxed.h"

#include <bit>
#include <utility>

#include "core/tensor.h"

namespace ct {
namespace {

template <size_t>
using TensorArgument = const at::Tensor&;
template <size_t>
using ScalarArgument = const at::Scalar&;

template <typename Tensors, typename Scalars>
class Typed;

template <size_t... T, size_t... S>
class Typed<std::index_sequence<T...>, std::index_sequence<S...>> final : public Unboxed {
  using Signature = at::Tensor(TensorArgument<T>..., ScalarArgument<S>...);

 public:
  explicit Typed(const c10::OperatorHandle& op)
      : Unboxed(op.schema(), sizeof...(T), sizeof...(S)), op_(op.typed<Signature>()) {}

 private:
  at::Tensor run(const at::Tensor* const* tensors, [[maybe_unused]] const at::Scalar* const* scalars) const override {
    return op_.call(*tensors[T]..., *scalars[S]...);
  }

  const c10::TypedOperatorHandle<Signature> op_;
};

template <size_t T, size_t S>
std::unique_ptr<const Unboxed> typed(const c10::OperatorHandle& op) {
  return std::make_unique<const Typed<std::make_index_sequence<T>, std::make_index_sequence<S>>>(op);
}

std::unique_ptr<const Unboxed> of_signature(const c10::OperatorHandle& op, int tensors, int scalars) {
  switch (tensors * 10 + scalars) {
    case 10: return typed<1, 0>(op);
    case 11: return typed<1, 1>(op);
    case 12: return typed<1, 2>(op);
    case 20: return typed<2, 0>(op);
    case 21: return typed<2, 1>(op);
    case 22: return typed<2, 2>(op);
    case 30: return typed<3, 0>(op);
    case 31: return typed<3, 1>(op);
    default: return nullptr;
  }
}

// Returns whether the operator writes none of its arguments and returns one tensor.
bool is_plain(const c10::FunctionSchema& schema) {
  if (schema.is_mutable() || schema.returns().size() != 1) return false;
  return schema.returns()[0].type()->kind() == c10::TypeKind::TensorType;
}

}  // namespace

std::unique_ptr<const Unboxed> Unboxed::find(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  if (!is_plain(schema)) return nullptr;
  int tensors = 0, scalars = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::TypeKind kind = argument.type()->kind();
    if (kind == c10::TypeKind::TensorType && scalars == 0) {
      ++tensors;
    } else if (kind == c10::TypeKind::NumberType && tensors > 0) {
      ++scalars;
    } else {
      return nullptr;
    }
  }
  try {
    return of_signature(op, tensors, scalars);
  } catch (const c10::Error&) {
    return nullptr;  // the operator's C++ signature is not the expected one: it takes at::Tensor by value, for example
  }
}

Unboxed::Unboxed(const c10::FunctionSchema& schema, int tensors, int scalars) : tensors_(tensors), scalars_(scalars) {
  for (int i = 0; i < scalars; ++i) {
    if (const auto& value = schema.arguments()[tensors + i].default_value()) {
      defaults_[i] = value->toScalar();
      has_default_[i] = true;
    }
  }
}

bool Unboxed::call(const ct_stream& stream, const uint64_t* words, int32_t word_count, ct_tensor* const* tensors,
                   int32_t tensor_count, at::Tensor* result) const {
  if (tensor_count != tensors_ || word_count < tensors_) return false;
  const at::Tensor* inputs[kMaxTensors];
  for (int i = 0; i < tensors_; ++i) {
    if (words[i] != CT_ARG_TENSOR || tensors[i] == nullptr) return false;
    inputs[i] = &tensors[i]->tensor;
  }
  at::Scalar given[kMaxScalars];
  const at::Scalar* scalars[kMaxScalars] = {&given[0], &given[1]};
  const uint64_t *word = words + tensors_, *end = words + word_count;
  for (int i = 0; i < scalars_; ++i) {
    const bool rest = word < end && *word == CT_ARG_REST_DEFAULT;
    if (rest || (word < end && *word == CT_ARG_DEFAULT)) {
      if (!has_default_[i]) return false;
      scalars[i] = &defaults_[i];
      word += rest ? 0 : 1;
      continue;
    }
    if (end - word < 2) return false;
    switch (word[0]) {
      case CT_ARG_INT: given[i] = at::Scalar(static_cast<int64_t>(word[1])); break;
      case CT_ARG_FLOAT: given[i] = at::Scalar(std::bit_cast<double>(word[1])); break;
      case CT_ARG_BOOL: given[i] = at::Scalar(word[1] != 0); break;
      default: return false;
    }
    word += 2;
  }
  if (word < end && *word == CT_ARG_REST_DEFAULT) ++word;
  if (word != end) return false;
  //edge:plain-operator-tells-use TestCheckStreams_FreedWhileAnotherStreamUsesIt checked
  for (int i = 0; i < tensors_; ++i) use(*tensors[i], stream);
  *result = run(inputs, scalars);
  return true;
}

}  // namespace ct
