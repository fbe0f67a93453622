#include "core/op.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>

#include "core/device.h"
#include "core/exec.h"
#include "core/operator_library.h"
#include "core/tensor.h"
#include "graph/capture.h"

struct ct_overflow {
  std::vector<uint64_t> words;
  std::vector<ct_tensor*> tensors;
};

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

int64_t numbered(c10::TypePtr type) {
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

Argument describe(const c10::Argument& schema) {
  Argument argument;
  argument.name = schema.name();
  c10::TypePtr type = schema.type();
  argument.type = type->str();
  argument.numbered = numbered(schema.real_type());
  if (auto optional = type->cast<c10::OptionalType>()) {
    argument.optional = true;
    type = optional->getElementType();
  }
  argument.kind = kind_of(*type);
  if (auto list = type->cast<c10::ListType>()) {
    c10::TypePtr element = list->getElementType();
    if (auto optional = element->cast<c10::OptionalType>()) {
      argument.optional_elements = true;
      element = optional->getElementType();
    }
    argument.element = kind_of(*element);
    argument.fixed_size = schema.N().value_or(0);
  }
  return argument;
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
      if (word_ == words_end_) throw Failure(CT_INVALID_ARGUMENT, "argument " + place() + " is missing");
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

  [[noreturn]] void mismatch(const char* got) const {
    throw Failure(CT_INVALID_ARGUMENT, "argument " + place() + " cannot be " + got);
  }

  uint64_t next() {
    if (word_ == words_end_) throw Failure(CT_INVALID_ARGUMENT, "the words end inside argument " + place());
    return *word_++;
  }
  int64_t next_int() { return static_cast<int64_t>(next()); }
  double next_float() { return std::bit_cast<double>(next()); }
  // Reads the number of elements that follow. Throws if there are too few words for them.
  size_t next_count(size_t bytes_each = sizeof(uint64_t)) {
    const uint64_t count = next();
    if (count > static_cast<uint64_t>(words_end_ - word_) * (sizeof(uint64_t) / bytes_each)) {
      throw Failure(CT_INVALID_ARGUMENT, "the words end inside argument " + place());
    }
    return count;
  }

  const at::Tensor* next_tensor() {
    if (tensor_ == tensors_end_) throw Failure(CT_INVALID_ARGUMENT, "a tensor is missing for argument " + place());
    const ct_tensor* handle = *tensor_++;
    if (handle == nullptr) return nullptr;
    use(*handle, *x_.stream);  //edge:operator-tells-use TestCheckStreams_FreedWhileAnotherStreamUsesIt checked
    return &handle->tensor;
  }

  c10::IValue default_value() {
    const c10::Argument& schema = op_.handle.schema().arguments()[index_];
    if (!schema.default_value()) throw Failure(CT_INVALID_ARGUMENT, "argument " + place() + " is missing and has no default");
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
        throw Failure(CT_INVALID_ARGUMENT, "argument " + place() + " is of an unknown kind");
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
      throw Failure(CT_INVALID_ARGUMENT, "a tensor is missing for argument " + place());
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
      if (t == nullptr) throw Failure(CT_INVALID_ARGUMENT, "tensor " + std::to_string(i) + " of argument " + place() + " is nil");
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
          throw Failure(CT_INVALID_ARGUMENT, "argument " + place() + " is " + std::to_string(v) + "; there is none of that number");
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

  c10::IValue integers() {
    std::vector<int64_t> list(next_count());
    for (int64_t& v : list) v = next_int();
    if (argument().kind != Kind::list) mismatch("a list of integers");
    if (argument().element == Kind::floating) return c10::List<double>(std::vector<double>(list.begin(), list.end()));
    if (argument().element == Kind::number) {
      c10::List<at::Scalar> numbers;
      for (int64_t v : list) numbers.push_back(v);
      return numbers;
    }
    if (argument().element != Kind::integer) mismatch("a list of integers");
    return c10::List<int64_t>(std::move(list));
  }

  c10::IValue floats() {
    std::vector<double> list(next_count());
    for (double& v : list) v = next_float();
    if (argument().kind != Kind::list) mismatch("a list of floats");
    if (argument().element == Kind::number) {
      c10::List<at::Scalar> numbers;
      for (double v : list) numbers.push_back(v);
      return numbers;
    }
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
      throw Failure(CT_INVALID_ARGUMENT, "argument " + place() + " is " + text + ", where the exec is on " + x_.stream->device.str());
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

void check(const at::Tensor& result) {
  if (result.defined() && result.is_nested()) {
    throw Failure(CT_UNSUPPORTED, "a nested tensor, which has no shape, cannot be returned");
  }
}

// Writes the results of one call into the caller's arrays. If they do not fit, writes them into
// an overflow.
class Writer {
 public:
  Writer(const ct_exec& x, ct_tensor* const* inputs, int32_t input_count) : x_(x), inputs_(inputs), input_count_(input_count) {}

  void write(torch::jit::Stack& stack, ct_results* results, uint64_t* words, ct_tensor** tensors, ct_overflow** overflow) {
    size_t word_count = 0, tensor_count = 0;
    for (const c10::IValue& v : stack) count(v, &word_count, &tensor_count);
    std::unique_ptr<ct_overflow> spilled;
    if (word_count > static_cast<size_t>(results->word_capacity) || tensor_count > static_cast<size_t>(results->tensor_capacity)) {
      spilled = std::make_unique<ct_overflow>();
      spilled->words.resize(word_count);
      spilled->tensors.resize(tensor_count);
      words = spilled->words.data();
      tensors = spilled->tensors.data();
    }
    word_ = words;
    tensor_ = tensors;
    for (c10::IValue& v : stack) value(v);
    results->words = static_cast<int32_t>(word_count);
    results->tensors = static_cast<int32_t>(tensor_count);
    *overflow = spilled.release();
  }

 private:
  // Adds the room that a result needs. Throws for a result that cannot be returned. At this time
  // nothing has been written yet.
  static void count(const c10::IValue& v, size_t* words, size_t* tensors) {
    if (v.isTensor()) {
      ++*words;
      ++*tensors;
      check(v.toTensor());
    } else if (v.isTensorList()) {
      *words += 2;
      for (const c10::IValue& t : v.toListRef()) {
        ++*tensors;
        check(t.toTensor());
      }
    } else if (v.isInt() || v.isDouble() || v.isBool()) {
      *words += 2;
    } else if (v.isIntList() || v.isDoubleList()) {
      *words += 2 + v.toListRef().size();
    } else if (v.isNone()) {
      ++*words;
    } else {
      throw Failure(CT_UNSUPPORTED, "a result of type " + v.type()->str() + " cannot be returned");
    }
  }

  void value(c10::IValue& v) {
    if (v.isTensor()) {
      word(CT_ARG_TENSOR);
      tensor(std::move(v).toTensor());
    } else if (v.isTensorList()) {
      const auto list = v.toTensorList();
      word(CT_ARG_TENSORS);
      word(list.size());
      for (const auto& t : list) tensor(t);
    } else if (v.isInt()) {
      word(CT_ARG_INT);
      word(static_cast<uint64_t>(v.toInt()));
    } else if (v.isDouble()) {
      word(CT_ARG_FLOAT);
      word(std::bit_cast<uint64_t>(v.toDouble()));
    } else if (v.isBool()) {
      word(CT_ARG_BOOL);
      word(v.toBool());
    } else if (v.isIntList()) {
      const auto list = v.toIntVector();
      word(CT_ARG_INTS);
      word(list.size());
      for (int64_t i : list) word(static_cast<uint64_t>(i));
    } else if (v.isDoubleList()) {
      const auto list = v.toDoubleVector();
      word(CT_ARG_FLOATS);
      word(list.size());
      for (double d : list) word(std::bit_cast<uint64_t>(d));
    } else {
      word(CT_ARG_NONE);
    }
  }

  void word(uint64_t v) { *word_++ = v; }
  void tensor(at::Tensor t) {
    *tensor_++ = t.defined() ? new_result(std::move(t), *x_.stream, inputs_, input_count_) : nullptr;
  }

  const ct_exec& x_;
  ct_tensor* const* const inputs_;
  const int32_t input_count_;
  uint64_t* word_ = nullptr;
  ct_tensor** tensor_ = nullptr;
};

// The stack from which an operator takes its arguments and on which it leaves its results. Each
// thread keeps the memory of its stack, because a new allocation took 3 % of a small operator's
// time.
struct Arguments {
  Arguments() { stack.clear(); }
  ~Arguments() { stack.clear(); }
  static thread_local inline torch::jit::Stack stack;
};

struct Found {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<const ct_op>> ops;
};

Found& found() {
  static auto* const all = new Found;
  return *all;
}

// at::matmul of three dimensions and two makes one product if the second tensor requires a
// gradient, and otherwise a batch of products if the first one has gaps. at::linear calls it with a
// view of its weight.
bool looks_at_gradients(const c10::OperatorName& name) { return name.name == "aten::linear" || name.name == "aten::matmul"; }

std::string text_of(const c10::FunctionSchema& schema) {
  std::ostringstream out;
  out << schema;
  return out.str();
}

}  // namespace
}  // namespace ct

ct_op::ct_op(c10::OperatorHandle op)
    : handle(std::move(op)), draws(handle.hasTag(at::Tag::nondeterministic_seeded)), looks(ct::looks_at_gradients(handle.operator_name())),
      unboxed(ct::Unboxed::find(handle)) {
  for (const c10::Argument& argument : this->handle.schema().arguments()) arguments.push_back(ct::describe(argument));
}

extern "C" {

ct_status* ct_op_find(const char* name, const char* overload, const ct_op** out) noexcept {
  return ct::guarded([&] {
    ct::load_cuda();
    const std::pair<std::string, std::string> key(&ct::deref(name, "name"), overload == nullptr ? "" : overload);
    ct::Found& all = ct::found();
    const std::lock_guard lock(all.mutex);
    auto& op = all.ops[key];
    if (op == nullptr) {
      const auto handle = c10::Dispatcher::singleton().findSchema({key.first, key.second});
      if (!handle) {
        all.ops.erase(key);
        const bool own = key.first.rfind("aten::", 0) == 0 || key.first.find("::") == std::string::npos;
        throw ct::Failure(CT_NOT_FOUND, "LibTorch has no operator " + key.first + (key.second.empty() ? "" : "." + key.second) +
                                            (own ? "; names look like aten::add.Tensor" : "; open the library that registers it with OpenOperators"));
      }
      op = std::make_unique<const ct_op>(*handle);
    }
    *out = op.get();
  });
}

ct_status* ct_op_schema(const ct_op* op, char** out) noexcept {
  return ct::guarded([&] { *out = ct::new_text(ct::text_of(ct::deref(op, "op").handle.schema())); });
}

ct_status* ct_op_schemas(char** out) noexcept {
  return ct::guarded([&] {
    std::vector<std::string> lines;
    const std::set<std::string> opened = ct::opened_operators();
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name.rfind("aten::", 0) != 0 && opened.count(c10::toString(name)) == 0) continue;
      if (const auto handle = c10::Dispatcher::singleton().findSchema(name)) lines.push_back(ct::text_of(handle->schema()));
    }
    std::sort(lines.begin(), lines.end());
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    *out = ct::new_text(text);
  });
}

ct_status* ct_call(ct_exec x, const ct_op* op, const uint64_t* words, int32_t word_count, ct_tensor* const* tensors,
                   int32_t tensor_count, ct_results* results, uint64_t* result_words, ct_tensor** result_tensors,
                   ct_overflow** overflow) noexcept {
  return ct::executed(x, [&] {
    const ct_op& operation = ct::deref(op, "op");
    std::optional<ct::RandomUse> drawing;
    if (operation.draws) drawing.emplace(*x.stream);
    // Without grad mode autograd's kernels would only pass the call on, which takes a tenth of a
    // small operator's time. The kernels that count writes and mark views run after them and are not
    // skipped. An operator that looks at whether a tensor requires a gradient needs them: only they
    // say so of a view of that tensor.
    std::optional<c10::impl::ExcludeDispatchKeyGuard> past_autograd;
    if (x.grad == 0 && !operation.looks) past_autograd.emplace(c10::autograd_dispatch_keyset);
    if (operation.unboxed != nullptr && results->word_capacity >= 1 && results->tensor_capacity >= 1) {
      at::Tensor result;
      if (operation.unboxed->call(*x.stream, words, word_count, tensors, tensor_count, &result)) {
        ct::check(result);
        ct::values::raise(false);
        result_tensors[0] = result.defined() ? ct::new_result(std::move(result), *x.stream, tensors, tensor_count) : nullptr;
        result_words[0] = CT_ARG_TENSOR;
        results->words = results->tensors = 1;
        *overflow = nullptr;
        return;
      }
    }
    ct::Arguments arguments;
    torch::jit::Stack& stack = arguments.stack;
    ct::Reader(x, operation, words, word_count, tensors, tensor_count).read(stack);
    operation.handle.callBoxed(&stack);
    ct::values::raise(false);
    ct::Writer(x, tensors, tensor_count).write(stack, results, result_words, result_tensors, overflow);
  });
}

void ct_overflow_take(ct_overflow* overflow, uint64_t* result_words, ct_tensor** result_tensors) noexcept {
  if (overflow == nullptr) return;
  std::copy(overflow->words.begin(), overflow->words.end(), result_words);
  std::copy(overflow->tensors.begin(), overflow->tensors.end(), result_tensors);
  delete overflow;
}

}  // extern "C"
