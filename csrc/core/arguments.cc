#include "core/arguments.h"

#include <ATen/ScalarOps.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "core/status.h"
#include "core/tensor.h"

namespace ct {
namespace {

using Kind = Argument::Kind;

Kind kind_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return Kind::tensor;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
      return Kind::integer;
    case c10::TypeKind::FloatType:
      return Kind::floating;
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return Kind::boolean;
    case c10::TypeKind::NumberType:
      return Kind::number;
    case c10::TypeKind::StringType:
      return Kind::string;
    case c10::TypeKind::DeviceObjType:
      return Kind::device;
    case c10::TypeKind::GeneratorType:
      return Kind::generator;
    case c10::TypeKind::ListType:
      return Kind::list;
    default:
      return Kind::other;
  }
}

int64_t numbered_of(c10::TypePtr type) {
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return static_cast<int64_t>(at::ScalarType::Undefined);
    case c10::TypeKind::LayoutType:
      return static_cast<int64_t>(at::Layout::NumOptions);
    case c10::TypeKind::MemoryFormatType:
      return static_cast<int64_t>(at::MemoryFormat::NumOptions);
    default:
      return 0;
  }
}

// Reads the words of one call, as the operator's schema demands.
class Reader {
 public:
  Reader(const ct_exec& x, const ct_op& op, const uint64_t* words, int32_t word_count, ct_tensor* const* tensors,
         int32_t tensor_count)
      : x_(x), op_(op), word_(words), words_end_(words + word_count), tensor_(tensors), tensors_end_(tensors + tensor_count),
        has_tensors_(tensor_count > 0) {}

  void read(torch::jit::Stack& stack) {
    const size_t count = op_.arguments.size();
    for (index_ = 0; index_ < count; ++index_) {
      if (word_ < words_end_ && *word_ == CT_ARG_REST_DEFAULT) break;
      if (word_ == words_end_) refuse("", " is missing");
      stack.push_back(value());
    }
    for (; index_ < count; ++index_) stack.push_back(default_value());
    if (word_ < words_end_ && *word_ == CT_ARG_REST_DEFAULT) ++word_;
    if (word_ != words_end_ || tensor_ != tensors_end_) {
      throw Failure(CT_INVALID_ARGUMENT, "got more arguments than the " + std::to_string(count) + " of the schema");
    }
  }

 private:
  const Argument& argument() const { return op_.arguments[index_]; }
  std::string place() const { return std::to_string(index_ + 1) + " (" + argument().type + " " + argument().name + ")"; }

  [[noreturn]] void refuse(const std::string& before, const std::string& after) const {
    throw Failure(CT_INVALID_ARGUMENT, before + "argument " + place() + after);
  }
  [[noreturn]] void mismatch(const char* got) const { refuse("", std::string(" cannot be ") + got); }

  uint64_t next() {
    if (word_ == words_end_) refuse("the words end inside ", "");
    return *word_++;
  }
  int64_t next_int() { return static_cast<int64_t>(next()); }
  double next_float() { return std::bit_cast<double>(next()); }
  // Reads the number of elements that follow. Throws if there are too few words for them.
  size_t next_count(size_t bytes_each = sizeof(uint64_t)) {
    const uint64_t count = next();
    if (count > static_cast<uint64_t>(words_end_ - word_) * (sizeof(uint64_t) / bytes_each)) {
      refuse("the words end inside ", "");
    }
    return count;
  }

  const at::Tensor* next_tensor() {
    if (tensor_ == tensors_end_) refuse("a tensor is missing for ", "");
    const ct_tensor* handle = *tensor_++;
    if (handle == nullptr) return nullptr;
    use(*handle, *x_.stream);  //edge:operator-tells-use TestCheckStreams_FreedWhileAnotherStreamUsesIt checked
    return &handle->tensor;
  }

  c10::IValue default_value() {
    const c10::Argument& schema = op_.handle.schema().arguments()[index_];
    if (!schema.default_value()) refuse("", " is missing and has no default");
    // An operator without tensor arguments, such as aten::ones, makes its result on the exec's
    // device.
    if (argument().kind == Kind::device && schema.default_value()->isNone() && !has_tensors_) return x_.stream->device;
    return *schema.default_value();
  }

  c10::IValue value() {
    switch (next()) {
      case CT_ARG_NONE:
        if (!argument().optional && argument().kind != Kind::generator) mismatch("None");
        return {};
      case CT_ARG_DEFAULT:
        return default_value();
      case CT_ARG_TENSOR:
        return tensor();
      case CT_ARG_TENSORS:
        return tensors();
      case CT_ARG_INT:
        return integer(next_int());
      case CT_ARG_FLOAT:
        return floating(next_float());
      case CT_ARG_BOOL:
        return boolean(next() != 0);
      case CT_ARG_INTS:
        return integers();
      case CT_ARG_FLOATS:
        return floats();
      case CT_ARG_BOOLS:
        return booleans();
      case CT_ARG_SCALARS:
        return scalars();
      case CT_ARG_STRING:
        return string();
      case CT_ARG_DEVICE:
        if (argument().kind != Kind::device) mismatch("a device");
        return x_.stream->device;
      case CT_ARG_COMPLEX:
        return complex();
      default:
        refuse("", " is of an unknown kind");
    }
  }

  c10::IValue tensor() {
    if (argument().kind != Kind::tensor) mismatch("a tensor");
    const at::Tensor* t = next_tensor();
    if (t != nullptr) return *t;
    if (!argument().optional) mismatch("None");
    return {};
  }

  c10::IValue tensors() {
    const uint64_t count = next();
    if (argument().kind != Kind::list || argument().element != Kind::tensor) mismatch("a list of tensors");
    if (count > static_cast<uint64_t>(tensors_end_ - tensor_)) {
      refuse("a tensor is missing for ", "");
    }
    if (argument().optional_elements) {
      c10::List<std::optional<at::Tensor>> list;
      for (size_t i = 0; i < count; ++i) {
        const at::Tensor* t = next_tensor();
        list.push_back(t == nullptr ? std::optional<at::Tensor>() : *t);
      }
      return list;
    }
    c10::List<at::Tensor> list;
    list.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor* t = next_tensor();
      if (t == nullptr) refuse("tensor " + std::to_string(i) + " of ", " is nil");
      list.push_back(*t);
    }
    return list;
  }

  // A number for a tensor, as PyTorch's Python functions make it.
  static at::Tensor wrapped(const at::Scalar& v) {
    at::Tensor t = c10::scalar_to_tensor(v);
    t.unsafeGetTensorImpl()->set_wrapped_number(true);
    return t;
  }

  c10::IValue integer(int64_t v) {
    switch (argument().kind) {
      case Kind::tensor:
        return wrapped(v);
      case Kind::integer:
        if (argument().numbered > 0 && (v < 0 || v >= argument().numbered)) {
          refuse("", " is " + std::to_string(v) + "; there is none of that number");
        }
        return v;
      case Kind::number:
        return v;
      case Kind::floating:
        return static_cast<double>(v);
      case Kind::boolean:
        return v != 0;
      case Kind::list:
        if (argument().element == Kind::integer) {
          return c10::List<int64_t>(std::vector<int64_t>(static_cast<size_t>(std::max(1, argument().fixed_size)), v));
        }
        [[fallthrough]];
      default:
        mismatch("an integer");
    }
  }

  c10::IValue floating(double v) {
    if (argument().kind == Kind::floating || argument().kind == Kind::number) return v;
    if (argument().kind == Kind::tensor) return wrapped(v);
    mismatch("a float");
  }

  c10::IValue boolean(bool v) {
    if (argument().kind == Kind::boolean || argument().kind == Kind::number) return v;
    if (argument().kind == Kind::tensor) return wrapped(v);
    mismatch("a bool");
  }

  c10::IValue complex() {
    const double real = next_float(), imaginary = next_float();
    const c10::complex<double> v(real, imaginary);
    if (argument().kind == Kind::number) return v;
    if (argument().kind == Kind::tensor) return wrapped(v);
    mismatch("a complex number");
  }

  template <typename T>
  static c10::List<at::Scalar> numbers(const std::vector<T>& list) {
    c10::List<at::Scalar> all;
    for (const T v : list) all.push_back(v);
    return all;
  }

  c10::IValue integers() {
    std::vector<int64_t> list(next_count());
    for (int64_t& v : list) v = next_int();
    if (argument().kind != Kind::list) mismatch("a list of integers");
    if (argument().element == Kind::floating) return c10::List<double>(std::vector<double>(list.begin(), list.end()));
    if (argument().element == Kind::number) return numbers(list);
    if (argument().element != Kind::integer) mismatch("a list of integers");
    return c10::List<int64_t>(std::move(list));
  }

  c10::IValue floats() {
    std::vector<double> list(next_count());
    for (double& v : list) v = next_float();
    if (argument().kind != Kind::list) mismatch("a list of floats");
    if (argument().element == Kind::number) return numbers(list);
    if (argument().element != Kind::floating) mismatch("a list of floats");
    return c10::List<double>(std::move(list));
  }

  c10::IValue booleans() {
    c10::List<bool> list;
    const size_t count = next_count();
    for (size_t i = 0; i < count; ++i) list.push_back(next() != 0);
    if (argument().kind != Kind::list || argument().element != Kind::boolean) mismatch("a list of bools");
    return list;
  }

  c10::IValue scalars() {
    c10::List<at::Scalar> list;
    const size_t count = next_count();
    for (size_t i = 0; i < count; ++i) {
      const uint64_t kind = next();
      if (kind == CT_ARG_FLOAT) {
        list.push_back(next_float());
      } else if (kind == CT_ARG_BOOL) {
        list.push_back(next() != 0);
      } else {
        list.push_back(next_int());
      }
    }
    if (argument().kind != Kind::list || argument().element != Kind::number) mismatch("a list of numbers");
    return list;
  }

  c10::IValue string() {
    const size_t bytes = next_count(1);
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; i += 8) {
      const uint64_t word = next();
      for (size_t k = 0; k < 8 && i + k < bytes; ++k) text[i + k] = static_cast<char>(word >> (8 * k));
    }
    if (argument().kind == Kind::device) return device(text);
    if (argument().kind != Kind::string) mismatch("a string");
    return text;
  }

  // Throws for a CUDA device other than the exec's, because the result would be made on that
  // device's current stream.
  c10::Device device(const std::string& text) const {
    const c10::Device named(text);
    if (named.is_cuda() && named != x_.stream->device) {
      refuse("", " is " + text + ", where the exec is on " + x_.stream->device.str());
    }
    return named;
  }

  const ct_exec& x_;
  const ct_op& op_;
  const uint64_t* word_;
  const uint64_t* const words_end_;
  ct_tensor* const* tensor_;
  ct_tensor* const* const tensors_end_;
  const bool has_tensors_;
  size_t index_ = 0;
};

}  // namespace

Argument::Argument(const c10::Argument& schema) : name(schema.name()), type(schema.type()->str()) {
  c10::TypePtr own = schema.type();
  numbered = numbered_of(schema.real_type());
  if (auto maybe = own->cast<c10::OptionalType>()) {
    optional = true;
    own = maybe->getElementType();
  }
  kind = kind_of(*own);
  if (auto list = own->cast<c10::ListType>()) {
    c10::TypePtr of = list->getElementType();
    if (auto maybe = of->cast<c10::OptionalType>()) {
      optional_elements = true;
      of = maybe->getElementType();
    }
    element = kind_of(*of);
    fixed_size = schema.N().value_or(0);
  }
}

void read_arguments(const ct_exec& x, const ct_op& op, const uint64_t* words, int32_t word_count, ct_tensor* const* tensors,
                    int32_t tensor_count, torch::jit::Stack& stack) {
  Reader(x, op, words, word_count, tensors, tensor_count).read(stack);
}

}  // namespace ct
