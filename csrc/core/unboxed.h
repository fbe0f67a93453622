// Calls without boxing, for operators on one to three tensors and up to two numbers, such as add,
// mul and relu. The dispatcher's boxing takes 10 % of a small operator's time. Such operators are
// found by signature and not by name. All other operators, and calls with other arguments, are
// boxed (op.cc).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Scalar.h>

#include <memory>

#include "cgotorch.h"

namespace ct {

class Unboxed {
 public:
  // Returns the unboxed form of an operator, or NULL if the operator has another signature.
  static std::unique_ptr<const Unboxed> find(const c10::OperatorHandle& op);
  virtual ~Unboxed() = default;

  // Runs the operator and returns true. Returns false and does nothing if an argument is neither a
  // tensor, a number nor a default.
  bool call(const ct_stream& stream, const uint64_t* words, int32_t word_count, ct_tensor* const* tensors,
            int32_t tensor_count, at::Tensor* result) const;

 protected:
  static constexpr int kMaxTensors = 3, kMaxScalars = 2;
  Unboxed(const c10::FunctionSchema& schema, int tensors, int scalars);
  virtual at::Tensor run(const at::Tensor* const* tensors, const at::Scalar* const* scalars) const = 0;

 private:
  const int tensors_, scalars_;
  at::Scalar defaults_[kMaxScalars];
  bool has_default_[kMaxScalars] = {};
};

}  // namespace ct
