#include "core/op.h"

#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>

#include "core/arguments.h"
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
  for (const c10::Argument& argument : this->handle.schema().arguments()) arguments.emplace_back(argument);
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
    ct::read_arguments(x, operation, words, word_count, tensors, tensor_count, stack);
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
